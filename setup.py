"""Compile the kernels: every module of the package that has a `.pxd` file with the C types of its functions.

What is compiled stays Python: without the compiled files, the same modules are interpreted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from c_compiler import compiler_variables

SOURCES = Path("src")
GENERATED = Path("build/kernels")
MEMORY_VIEWS = "refold._memory_views"
"""The extension with what Cython's memory views need, which would otherwise be compiled into every kernel."""

DIRECTIVES = {
    "annotation_typing": False,  # types are in the .pxd files; annotations are for mypy and readers
    "boundscheck": False,
    "cdivision": True,  # division by zero gives infinity, as in NumPy
    "infer_types": True,
    "initializedcheck": False,
    "language_level": 3,
    "show_performance_hints": False,
    "wraparound": False,
}
FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fwrapv"]  # the same results on every architecture

CHECKED = "# cython: boundscheck=True"
"""How a module begins that works with Python objects: it has little that a compiler could optimise."""


def kernels() -> list[Extension]:
    """Return the extensions, one for each module with C types."""
    modules = sorted(path for path in SOURCES.rglob("*.pxd") if path.with_suffix(".py").exists())
    return [
        Extension(
            ".".join(path.relative_to(SOURCES).with_suffix("").parts),
            [str(path.with_suffix(".py"))],
            extra_compile_args=[*FLAGS, "-O1"] if path.with_suffix(".py").read_text().startswith(CHECKED) else FLAGS,
        )
        for path in modules
    ]


class BuildKernels(build_ext):
    """Translates the kernels to C, and compiles them with the compiler that there is."""

    def run(self) -> None:
        """Compile all that has changed."""
        os.environ.update(compiler_variables())
        if self.editable_mode:
            self._build_where_it_lasts()
        annotate = bool(os.environ.get("REFOLD_ANNOTATE"))  # write pages that show which lines call Python
        translated = cythonize(
            self.extensions,
            annotate=annotate,
            build_dir=str(GENERATED),
            compiler_directives=DIRECTIVES,
            force=annotate,
            include_path=[str(SOURCES)],
            nthreads=os.cpu_count() or 1,
            quiet=True,
            shared_utility_qualified_name=MEMORY_VIEWS,
        )
        for extension, in_c in zip(self.extensions, translated, strict=True):
            extension.sources = in_c.sources
        super().run()

    def _build_where_it_lasts(self) -> None:
        """Use the folders of `build_ext --inplace`, which would compile all again after a build in temporary ones."""
        usual = build(self.distribution)
        usual.ensure_finalized()
        self.build_lib, self.build_temp = usual.build_platlib, usual.build_temp


COMMIT = "refold/_commit.txt"
"""In wheels and source distributions: the commit from which they were made."""


def write_commit(path: Path) -> None:
    """Write the commit of the checkout, or `REFOLD_COMMIT`; nothing if it is not known, as in a source distribution."""
    commit = os.environ.get("REFOLD_COMMIT", "")
    if not commit and Path(".git").exists():
        command = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if commit:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{commit[:12]}\n")


class BuildModules(build_py):
    """Copies the modules of a wheel, and writes the commit."""

    def run(self) -> None:
        """Copy all modules."""
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib) / COMMIT)


class MakeSource(sdist):
    """Collects the files of a source distribution, and writes the commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy all files."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / SOURCES / COMMIT)


if __name__ == "__main__":
    flags = [*FLAGS, "-O1"]  # no loops over elements
    memory_views = Extension(MEMORY_VIEWS, ["_memory_views.c"], extra_compile_args=flags)
    setup(
        ext_modules=[memory_views, *kernels()],
        cmdclass={"build_ext": BuildKernels, "build_py": BuildModules, "sdist": MakeSource},
        options={"build_ext": {"parallel": os.cpu_count()}},
    )
