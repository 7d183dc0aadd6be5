"""Measure the source code: façades, repeated class names, import cycles, sizes, tests per line.

    python tools/code_measures.py              # this checkout
    python tools/code_measures.py OTHER        # another one, to compare with

`tests/test_layering.py` uses the same reader to enforce the order of folders, façades and the absence of cycles.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles

PACKAGE = "refold"

PERSONAL = re.compile(r"\b(whoever|whomever|nobody|everybody|somebody|anybody|who|whom)\b", re.IGNORECASE)
"""Jobs and nodes are things, so sentences about persons are rare in a scheduler."""


@dataclass(frozen=True)
class Import:
    """One imported name. `target` is the module that defines it, looked up in the stub of the façade."""

    module: str
    name: str
    line: int
    target: str
    across_folders: bool
    bypasses_facade: bool

    @property
    def folder(self) -> str:
        """The top-level folder that is imported from."""
        return [*self.module.split("."), ""][1]


@dataclass
class Module:
    """One source file; `path` is relative to the package."""

    path: str
    name: str
    text: str
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree; walking through it takes longer than all that is done with them."""
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        """Whether this is the `__init__.py` of a folder."""
        return self.path.endswith("__init__.py")

    @property
    def package(self) -> str:
        """The folder, as a dotted name."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def folder(self) -> str:
        """The top-level folder, or the module's own name beside the folders; "" for the package itself."""
        return [*self.name.split("."), ""][1]


def read_modules(source: Path) -> list[Module]:
    """All modules of the package, with their imports of each other."""
    modules = [_read(source, path) for path in sorted(source.rglob("*.py"))]
    reader = _ImportReader(modules, dict(_facade_names(source)))
    for module in modules:
        module.imports = list(reader.imports(module))
    return modules


def _read(source: Path, path: Path) -> Module:
    relative = path.relative_to(source)
    name = ".".join((PACKAGE, *relative.with_suffix("").parts)).removesuffix(".__init__")
    text = path.read_text()
    return Module(str(relative), name, text, ast.parse(text))


def _facade_names(source: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """(folder, name) → the module that defines the name."""
    for stub in sorted(source.rglob("__init__.py*")):
        package = ".".join((PACKAGE, *stub.relative_to(source).parts[:-1]))
        for node in ast.walk(ast.parse(stub.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = f"{package}.{node.module}" if node.level else node.module
                yield from (((package, alias.name), module) for alias in node.names)


class _ImportReader:
    def __init__(self, modules: Sequence[Module], facades: Mapping[tuple[str, str], str]) -> None:
        self._names = {module.name for module in modules}
        self._packages = {module.name for module in modules if module.is_package}
        self._facades = facades

    def imports(self, module: Module) -> Iterator[Import]:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    if self._is_ours(node.module):
                        yield self._import(module, node.module, alias.name, node.lineno)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if self._is_ours(alias.name):
                        yield self._import(module, alias.name, "", node.lineno)

    def _is_ours(self, module: str) -> bool:
        return module.split(".", maxsplit=1)[0] == PACKAGE

    def _import(self, importer: Module, module: str, name: str, line: int) -> Import:
        whole = f"{module}.{name}"
        target = whole if whole in self._names else self._facades.get((module, name), module)
        if module == PACKAGE and whole in self._names:
            module = whole
        package = module if module in self._packages else module.rpartition(".")[0]
        across = package not in {importer.package, PACKAGE, ""}
        return Import(module, name, line, target, across, across and module not in self._packages)


def import_cycles(modules: Sequence[Module]) -> list[list[str]]:
    """Groups of modules that import each other, wherever the import statements are."""
    names = {module.name for module in modules}
    graph = {
        module.name: {each.target for each in module.imports if each.target in names and each.target != module.name}
        for module in modules
    }
    reachable = {name: _reachable(name, graph) for name in graph}
    groups = {
        frozenset(other for other in reachable[name] if name in reachable.get(other, ())) | {name}
        for name in graph
        if name in reachable[name]
    }
    return sorted(sorted(group) for group in groups)


def _reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    open_names = [start]
    while open_names:
        for name in graph.get(open_names.pop(), ()):
            if name not in seen:
                seen.add(name)
                open_names.append(name)
    return seen


def repeated_class_names(modules: Sequence[Module]) -> list[str]:
    """Return the names that more than one class has."""
    counts = Counter(node.name for module in modules for node in module.nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in counts.items() if count > 1)


def measures(root: Path) -> dict[str, str]:
    """Every measure of a checkout, as text."""
    modules = read_modules(root / "src" / PACKAGE)
    imports = [each for module in modules for each in module.imports if each.across_folders]
    bypassing = sum(each.bypasses_facade for each in imports)
    repeated = repeated_class_names(modules)
    cycles = import_cycles(modules)
    source_lines, test_lines = _lines(root / "src"), _lines(root / "tests")
    core_lines, core_test_lines = _lines(root / "src" / PACKAGE / "core"), _lines(root / "tests" / "core")
    functions = sorted(lines for _, lines in function_lengths(modules))
    files = sorted(module.text.count("\n") for module in modules)
    persons = sum(len(PERSONAL.findall(module.text)) for module in modules)
    return {
        '"who", "whoever", "nobody", … in src/': f"{persons}",
        "imports across folders that bypass a façade": f"{bypassing} of {len(imports)}",
        "class names defined more than once": f"{len(repeated)} {' '.join(repeated[:50])}".strip(),
        "import cycles": f"{len(cycles)} {'; '.join(' ↔ '.join(cycle) for cycle in cycles)}".strip(),
        "lines per function (median, p90, longest)": f"{median(functions):.0f}, {_p90(functions):.0f}, {functions[-1]}",
        "lines per file (median, p90, longest)": f"{median(files):.0f}, {_p90(files):.0f}, {files[-1]}",
        "files, lines in src/": f"{len(files)}, {source_lines:,}",
        "test:code (all, core/)": f"{test_lines / source_lines:.2f}, {core_test_lines / core_lines:.2f}",
    }


def function_lengths(modules: Sequence[Module]) -> Iterator[tuple[str, int]]:
    """Yield `file:function` and its number of lines."""
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module.path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def _p90(values: Sequence[int]) -> float:
    return quantiles(values, n=10)[-1]


def _lines(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.rglob("*.py"))


def main() -> None:
    """Print the measures of a checkout, one per line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent, help="a checkout")
    for name, value in measures(parser.parse_args().root).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
