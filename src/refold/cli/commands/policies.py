"""`refold policies`: list policies, their settings, and placement rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.simulator import PolicyInfo

PACKAGE_PREFIX = "refold.policies."


def policies(as_json: AsJson = False) -> None:
    """List policies, their settings, and placement rules.

    A policy of your own is a Python file: pass it as --policy path/to/mine.py, or put it into the folder
    $REFOLD_POLICIES to list it here. See docs/policies.md.
    """
    from refold.placement import RULES
    from refold.simulator import list_policies

    infos = list_policies()
    rules = [{"name": name, "summary": summary} for name, (_, summary) in RULES.items()]
    if as_json:
        print_json({"policies": [_document(one) for one in infos], "placements": rules})
        return
    placements: list[Column[dict[str, str]]] = [
        Column("name", lambda rule: rule["name"], whole=True),
        Column("description", lambda rule: rule["summary"]),
    ]
    print_tables(_table(infos), Table("Placements (--placement)", placements, rules))


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
    columns: list[Column[PolicyInfo]] = [
        Column("name", lambda one: one.name, whole=True),
        Column("description", lambda one: one.summary),
        Column("knows run times", lambda one: "yes" if one.oracle else ""),
        Column("preempts", lambda one: "yes" if one.preempts else ""),
        Column(
            "settings (--set)",
            lambda one: ", ".join(f"{key}={_to_plain(value)}" for key, value in one.settings.items()),
        ),
        Column("source", lambda one: "refold" if one.where.startswith(PACKAGE_PREFIX) else one.where),
    ]
    problems = [f"cannot load {one.where}: {one.problem}" for one in infos if one.problem]
    return Table("Policies (--policy)", columns, [one for one in infos if not one.problem], problems)
