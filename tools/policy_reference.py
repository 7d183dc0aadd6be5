"""Print the reference of what a policy may read and decide, from the code: `python tools/policy_reference.py`.

The page is docs/policies/reference.md; tests/docs/test_policy_reference.py checks that it is that of the code.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import refold.core
from refold.model import Decision, Demand, End, Flag, Job, Launch, Reshape, Run, Start, Stop, Wait

HEAD = """# Reference: what a policy reads and decides

Made from the code by `tools/policy_reference.py`. How to write a policy: [policies.md](../policies.md). Times are
seconds on the clock of the journal. Nothing that a policy reads may be changed by it.
"""

STRUCTS: tuple[type[msgspec.Struct], ...] = (Job, Demand, Launch, Run)
FOR_THE_SCHEDULER = ("clear", "end_trial", "with_changes")
"""Methods that policies do not need."""

DECISIONS: tuple[type[msgspec.Struct], ...] = (Decision, Start, Stop, Reshape, Wait, End, Flag)


def render() -> str:
    """Return the page."""
    view, changed = _read_class("view.py", "View"), _read_class("changes.py", "Changes")
    parts = [HEAD, "## View", _text(view), _table(_members(view)), "### view.changes", _text(changed)]
    parts += [_table(_members(changed)), "## What the view contains"]
    parts += [_struct(one) for one in STRUCTS] + ["## Decisions"] + [_struct(one) for one in DECISIONS]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _read_class(file: str, name: str) -> ast.ClassDef:
    """Return a class of the core from its source, which is compiled when it runs."""
    tree = ast.parse(Path(refold.core.__file__).with_name(file).read_text(encoding="utf-8"))
    return next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)


def _text(node: ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "| attribute | meaning |\n|---|---|\n" + "\n".join(f"| `{name}` | {_cell(text)} |" for name, text in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the public attributes with a docstring below them, the properties and the methods of a class."""
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef):
            continue
        if statement.name == "__init__":
            yield from _attributes(statement)
        elif not statement.name.startswith("_") and statement.name not in FOR_THE_SCHEDULER:
            is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in statement.decorator_list)
            yield (statement.name if is_property else _signature(statement)), ast.get_docstring(statement) or ""


def _attributes(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for index, statement in enumerate(function.body):
        target: ast.expr | None = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            after = function.body[index + 1] if index + 1 < len(function.body) else None
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield target.attr, value.value
            else:
                yield target.attr, ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""


def _signature(function: ast.FunctionDef) -> str:
    names = [one.arg for one in function.args.args[1:]]
    return f"{function.name}({', '.join(names)})"


def _struct(kind: type[msgspec.Struct]) -> str:
    """Return a section about a struct: its docstring, and its fields with types and defaults."""
    annotations = inspect.get_annotations(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        kind_text = str(annotations[field.name]).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{kind_text}` | {_default(field)} |")
    table = "| field | type | default |\n|---|---|---|\n" + "\n".join(rows)
    return f"### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table}"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT:
        return "empty"
    return "all defaults" if isinstance(field.default, msgspec.Struct) else f"`{field.default!r}`"


if __name__ == "__main__":
    sys.stdout.write(render())
