"""Folders are the architecture: their order, their façades and the purity of the inner ones are checked here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.code_measures import Module, import_cycles, read_modules

from refold.jit import SHARED_SOURCES, kernel_sources

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "refold"

ORDER = [
    "errors",
    "jit",
    "worker_processes",
    "model",
    "documents",
    "perf",
    "catalogue",
    "plans",
    "predict",
    "packing",
    "core",
    "journal",
    "policies",
    "simulator",
    "replays",
    "traces",
    "results",
    "research",
    "registry",
    "tuning",
    "comparison",
    "backends",
    "api",
    "jobspec",
    "train",
    "client",
    "web",
    "server",
    "cli",
    "testing",
    "__main__",
]
"""Nothing imports what is listed below it."""

PURE = {"errors", "jit", "model", "perf", "plans", "predict", "packing", "core", "policies", "simulator", "replays"}
IMPURE_MODULES = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
MAY_READ_FILES = {"jit.py"}
"""The cache of compiled kernels is on disk and keyed by the kernels' sources."""


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(SOURCE)


def test_folders_import_only_folders_listed_above_them(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} imports {imported.module}"
        for module in modules
        for imported in module.imports
        if module.folder and imported.folder and ORDER.index(imported.folder) > ORDER.index(module.folder)
    ]
    assert wrong == []


def test_other_folders_are_imported_through_their_facades(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} line {imported.line}: from {imported.module} import {imported.name}"
        for module in modules
        for imported in module.imports
        if imported.bypasses_facade
    ]
    assert wrong == []


def test_there_are_no_import_cycles(modules: list[Module]) -> None:
    assert import_cycles(modules) == []


def test_a_facade_offers_no_name_that_a_module_beside_it_has(modules: list[Module]) -> None:
    """`from refold.perf import fit` must not depend on whether `refold.perf.fit` has been imported."""
    wrong = [
        f"{stub}: {name}"
        for stub in SOURCE.rglob("__init__.pyi")
        for name, module in exported(stub)
        if (stub.parent / f"{name}.py").exists() and module
    ]
    assert wrong == []


def exported(stub: Path) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(ast.parse(stub.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.module) for alias in node.names)


def test_pure_folders_have_no_clock_files_threads_or_global_randomness(modules: list[Module]) -> None:
    wrong = []
    for module in modules:
        if module.folder not in PURE or module.path in MAY_READ_FILES:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                used = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                used = [(node.module or "").split(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                used = [node.func.id]
            else:
                continue
            wrong += [
                f"{module.path} line {node.lineno}: {name}"
                for name in used
                if name in IMPURE_MODULES | {"open", "print", "input"}
            ]
    assert wrong == []


def test_kernels_use_only_sources_by_which_their_cache_is_keyed(modules: list[Module]) -> None:
    """A change of anything else would not recompile them."""
    wrong = []
    for module in modules:
        used, folder = set(names_in_kernels(module.tree)), (SOURCE / module.path).parent
        sources = {*SHARED_SOURCES, *kernel_sources(folder), SOURCE / "jit.py"} if used else set()
        wrong += [
            f"{module.path} line {imported.line}: {imported.name}"
            for imported in module.imports
            if imported.name in used and SOURCE.parent / f"{imported.target.replace('.', '/')}.py" not in sources
        ]
    assert wrong == []


def names_in_kernels(tree: ast.Module) -> Iterator[str]:
    """Yield the names that compiled functions use, apart from annotations, and the functions that are compiled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(is_compiler(decorator) for decorator in node.decorator_list):
            yield from (used.id for part in node.body for used in ast.walk(part) if isinstance(used, ast.Name))
        elif isinstance(node, ast.Call) and is_compiler(node.func):
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def is_compiler(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {
        "compiled",
        "compiled_part",
        "compiled_without_references",
        "inlined",
    }


def test_no_code_asks_whether_it_is_simulated(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} line {node.lineno}: if {ast.unparse(node.test)}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If | ast.IfExp) and "simulat" in ast.unparse(node.test).lower()
    ]
    assert wrong == []


def test_random_generators_are_seeded(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} line {node.lineno}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("default_rng", "Random")) and not node.args
    ]
    assert wrong == []
