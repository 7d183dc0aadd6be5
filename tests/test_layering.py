"""The folders are the architecture: nothing imports what is listed below it, and the pure rooms stay pure."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "refold"

ORDER = [
    "errors",
    "model",
    "perf",
    "catalogue",
    "plans",
    "predict",
    "packing",
    "core",
    "policies",
    "journal",
    "registry",
    "traces",
    "results",
    "simulator",
    "backends",
    "train",
    "live",
    "testing",
    "cli",
    "web",
]

PURE = {"errors", "model", "perf", "plans", "predict", "packing", "core", "policies", "simulator"}
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
ALLOWED = {("packing/compiled.py", "pathlib")}
"""Kept kernels are known by their sources, which are files."""


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__main__.py")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.append(node.module or "")
            if node.module == "refold":
                names += [f"refold.{alias.name}" for alias in node.names if alias.name != "__version__"]
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ORDER, f"{room} has no place in the order of rooms"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "refold" and len(parts) > 1:
            assert ORDER.index(parts[1]) <= ORDER.index(room), f"{path.name} of {room} imports {name}"


@pytest.mark.parametrize("path", [path for path in modules() if room_of(path) in PURE], ids=lambda path: path.stem)
def test_a_pure_room_has_no_clock_files_threads_or_global_chance(path: Path) -> None:
    for name in imports_of(path):
        top = name.split(".")[0]
        where = (str(path.relative_to(SOURCE)), top)
        assert top not in IMPURE_MODULES or where in ALLOWED, f"{path} imports {name}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"{path} calls {node.func.id}"


def test_nobody_asks_whether_this_is_a_simulation() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If | ast.IfExp):
                asked = ast.unparse(node.test).lower()
                assert "simulat" not in asked, f"{path} line {node.lineno}: if {asked}"


def test_chance_comes_with_a_seed() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("default_rng", "Random")):
                assert node.args, f"{path} line {node.lineno}: chance without a seed"
