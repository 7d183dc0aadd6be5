"""`refold policies`: list policies, their settings, and placement rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.registry import PolicyInfo

PACKAGE_PREFIX = "refold.policies."


def policies(as_json: AsJson = False) -> None:
    """List policies, their settings, and placement rules.

    A policy of your own is a Python file: pass it as --policy path/to/mine.py, or put it into the folder
    $REFOLD_POLICIES to list it here. See docs/policies.md.
    """
    from refold.packing import RULES
    from refold.registry import list_policies

    infos = list_policies()
    rules = [{"name": name, "summary": summary} for name, (_, summary) in RULES.items()]
    if as_json:
        print_json({"policies": [_document(one) for one in infos], "placements": rules})
        return
    columns = {"name": Column("name", whole=True), "summary": Column("description")}
    print_tables(_table(infos), Table("Placements (--placement)", columns, rules))


def _document(one: PolicyInfo) -> dict[str, object]:
    return one._asdict() | {
        "problem": one.problem or None,
        "settings": {name: _to_plain(default) for name, default in one.settings.items()},
    }


def _to_plain(default: object) -> object:
    """Return a default as a plain value: structs as dictionaries of non-default fields, other objects as their repr."""
    import inspect

    import msgspec

    if default is inspect.Parameter.empty:
        return None
    if isinstance(default, msgspec.Struct):
        return msgspec.to_builtins(default)
    return default if isinstance(default, str | int | float | bool | None) else repr(default)


def _table(infos: list[PolicyInfo]) -> Table:
    columns = {
        "name": Column("name", whole=True),
        "summary": Column("description"),
        "knows": Column("knows run times"),
        "stops": Column("preempts"),
        "settings": Column("settings (--set)"),
        "where": Column("source"),
    }
    rows = [
        {
            "name": one.name,
            "summary": one.summary,
            "knows": "yes" if one.oracle else "",
            "stops": "yes" if one.preempts else "",
            "settings": ", ".join(f"{name}={_to_plain(default)}" for name, default in one.settings.items()),
            "where": "refold" if one.where.startswith(PACKAGE_PREFIX) else one.where,
        }
        for one in infos
        if not one.problem
    ]
    problems = [f"cannot load {one.where}: {one.problem}" for one in infos if one.problem]
    return Table("Policies (--policy)", columns, rows, after=problems)
