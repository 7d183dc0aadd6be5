"""`refold policies`: who can run when, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.registry import PolicyInfo

OF_THE_PACKAGE = "refold.policies."


def policies(as_json: AsJson = False) -> None:
    """List policies, their settings, and placement rules.

    A policy of your own is a file: name it with --policy path/to/mine.py, or put it into the folder that
    REFOLD_POLICIES names, and it is listed here. See docs/policies.md.
    """
    from refold.packing import RULES
    from refold.registry import list_policies

    found = list_policies()
    rules = [{"name": name, "summary": summary} for name, (_, summary) in RULES.items()]
    if as_json:
        print_json({"policies": [_document(one) for one in found], "placements": rules})
        return
    columns = {"name": Column("name", whole=True), "summary": Column("which nodes")}
    print_tables(_table(found), Table("Placements (--placement)", columns, rules))


def _document(one: PolicyInfo) -> dict[str, object]:
    return one._asdict() | {
        "problem": one.problem or None,
        "settings": {name: _plain(default) for name, default in one.settings.items()},
    }


def _plain(default: object) -> object:
    """A default that JSON can say, our nouns by what they say beyond their own defaults; else how Python writes it."""
    import inspect

    import msgspec

    if default is inspect.Parameter.empty:
        return None
    if isinstance(default, msgspec.Struct):
        return msgspec.to_builtins(default)
    return default if isinstance(default, str | int | float | bool | None) else repr(default)


def _table(found: list[PolicyInfo]) -> Table:
    columns = {
        "name": Column("name", whole=True),
        "summary": Column("who runs when"),
        "knows": Column("knows durations"),
        "stops": Column("stops runs"),
        "settings": Column("settings (--set)"),
        "where": Column("from"),
    }
    rows = [
        {
            "name": one.name,
            "summary": one.summary,
            "knows": "yes" if one.oracle else "",
            "stops": "yes" if one.preempts else "",
            "settings": ", ".join(f"{name}={_plain(default)}" for name, default in one.settings.items()),
            "where": "refold" if one.where.startswith(OF_THE_PACKAGE) else one.where,
        }
        for one in found
        if not one.problem
    ]
    problems = [f"cannot be used: {one.where}: {one.problem}" for one in found if one.problem]
    return Table("Policies (--policy)", columns, rows, after=problems)
