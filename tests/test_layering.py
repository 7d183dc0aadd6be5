"""Folders are the architecture: their order, their façades and the purity of the inner ones are checked here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.code_measures import Module, function_lengths, import_cycles, read_modules, repeated_class_names

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "refold"

ORDER = [
    "moved",
    "errors",
    "model",
    "planning",
    "predict",
    "placement",
    "core",
    "journal",
    "policies",
    "simulator",
    "train",
    "client",
    "server",
    "engines",
    "cli",
    "testing",
    "__main__",
]
"""Nothing imports what is listed below it."""

PURE = {"errors", "model", "planning", "predict", "placement", "core", "policies", "simulator"}
IMPURE = {
    "model/documents",  # YAML files
    "planning/catalogue",  # data files
    "simulator/registry.py",  # policy files
    "simulator/results",
    "simulator/traces",
    "simulator/tuning",
}
"""Folders and files in pure folders that read and write files."""

MAX_FUNCTION_LINES, MAX_FILE_LINES = 80, 400
LONG_FUNCTIONS: set[str] = set()
LONG_FILES = {
    "policies/common/run_watch.py",
    "policies/published/gavel.py",
    "policies/published/pollux.py",
}

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
    """Compiled modules need the C types of those that they call, which a façade does not have."""
    wrong = [
        f"{module.path} line {imported.line}: from {imported.module} import {imported.name}"
        for module in modules
        for imported in module.imports
        if imported.bypasses_facade and not c_types(module).exists()
    ]
    assert wrong == []


def test_there_are_no_import_cycles(modules: list[Module]) -> None:
    assert import_cycles(modules) == []


def test_a_class_name_means_one_thing(modules: list[Module]) -> None:
    assert repeated_class_names(modules) == []


def test_functions_and_files_are_no_longer_than_they_are_now(modules: list[Module]) -> None:
    """The lists may only shrink: what gets shorter than the limit leaves them."""
    long_functions = {name for name, lines in function_lengths(modules) if lines > MAX_FUNCTION_LINES}
    long_files = {module.path for module in modules if module.text.count("\n") > MAX_FILE_LINES}
    assert (long_functions, long_files) == (LONG_FUNCTIONS, LONG_FILES)


def test_a_facade_offers_no_name_that_a_module_beside_it_has(modules: list[Module]) -> None:
    """`from refold.planning.perf import fit` must not depend on whether that module has been imported."""
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
        if module.folder not in PURE or module.path.startswith(tuple(IMPURE)):
            continue
        for node in module.nodes:
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


def test_every_private_function_of_a_compiled_module_has_c_types(modules: list[Module]) -> None:
    """One without them would be called through Python objects, which is slow. Public ones may be meant for Python."""
    missing = []
    for module in modules:
        if c_types(module).exists():
            declared = set(re.findall(r"(\w+)\(", c_types(module).read_text()))
            functions = [node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)]
            missing += [f"{module.path}: {name}" for name in functions if name[0] == "_" and name not in declared]
    assert missing == []


def c_types(module: Module) -> Path:
    """Return the file with the C types of a module; it exists for compiled modules."""
    return (SOURCE / module.path).with_suffix(".pxd")


def test_no_code_asks_whether_it_is_simulated(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} line {node.lineno}: if {ast.unparse(node.test)}"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.If | ast.IfExp) and "simulat" in ast.unparse(node.test).lower()
    ]
    assert wrong == []


def test_random_generators_are_seeded(modules: list[Module]) -> None:
    wrong = [
        f"{module.path} line {node.lineno}"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("default_rng", "Random")) and not node.args
    ]
    assert wrong == []
