"""Finding policies by name: those of the package, and those that people bring as files.

A file of one's own is named by its path, or lies in a folder that REFOLD_POLICIES names. It holds one class with
a `name` and a `decide`; the class's docstring is its summary.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from refold.core import Policy
from refold.errors import BadFile, BadInput, RefoldError, UnknownName
from refold.policies import POLICIES

FOLDER_VARIABLE = "REFOLD_POLICIES"
WATCH = "watch"
"""The setting that every policy takes: rules by which its runs are watched."""


class PolicyInfo(NamedTuple):
    """One line of `refold policies`."""

    name: str
    summary: str
    oracle: bool
    preempts: bool
    settings: Mapping[str, Any]
    where: str
    problem: str = ""


def policy_names() -> list[str]:
    """Every name that can be asked for."""
    return [listed.name for listed in list_policies() if not listed.problem]


def usual_policies() -> list[str]:
    """Those that are compared where nobody says with what: no search that takes minutes, and one's own."""
    return [name for name in policy_names() if name not in POLICIES or POLICIES[name].usual]


def list_policies() -> list[PolicyInfo]:
    """Every policy that can be asked for by name; and files in one's own folder that cannot, with the problem."""
    listed = [
        PolicyInfo(name, known.summary, known.oracle, known.preempts, settings_of(name), known.module)
        for name, known in POLICIES.items()
    ]
    return listed + [_listed(path) for path in _own_files()]


def _listed(path: Path) -> PolicyInfo:
    try:
        found = _class_in(path)
    except BadFile as error:
        return PolicyInfo(path.stem, "", False, False, {}, str(path), error.problem)
    return PolicyInfo(
        found.name,
        (inspect.getdoc(found) or "").split("\n")[0],
        getattr(found, "oracle", False),
        getattr(found, "preempts", False),
        _settings(found),
        str(path),
        f"the name {found.name!r} is taken" if found.name in POLICIES else "",
    )


def settings_of(name: str) -> Mapping[str, Any]:
    """The settings of a policy, with their defaults."""
    return _settings(_class_of(name))


def make_policy(name: str, settings: Mapping[str, Any] | None = None) -> Policy:
    """A policy by its name, or by the path of a file, with its settings. Any may be watched, which is one of them."""
    own, rules = parted(name, settings or {})
    return watched(_made(name, own), rules)


def watched(policy: Policy, rules: Mapping[str, Any] | None) -> Policy:
    """The policy with somebody beside it who watches its runs by these rules; None: nobody does."""
    if rules is None:
        return policy
    from refold.policies.common import RunWatch, WatchRules  # few are watched, and predictions take a while to load

    return RunWatch(policy, WatchRules.of(rules))


def parted(name: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The settings of the policy itself; and the rules by which its runs are watched, unless it has its own such."""
    own = dict(settings)
    if WATCH not in own or WATCH in settings_of(name):
        return own, None
    return own, own.pop(WATCH)


def _made(name: str, settings: Mapping[str, Any]) -> Policy:
    kind = _class_of(name)
    known = _settings(kind)
    for setting in settings:
        if setting not in known:
            raise UnknownName(f"setting of {name}", setting, known)
    try:
        policy: Policy = kind(**settings)
    except RefoldError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{name} cannot be made with {dict(settings)}: {error}") from error
    return policy


def _class_of(name: str) -> Any:
    if name in POLICIES:
        known = POLICIES[name]
        return getattr(importlib.import_module(known.module), known.class_name)
    if name.endswith(".py"):
        return _class_in(Path(name))
    files = _own_files()
    for path in files:
        if path.stem == name:
            return _class_in(path)
    for path in files:
        with suppress(BadFile):  # a broken file is no reason not to find another
            found = _class_in(path)
            if found.name == name:
                return found
    raise UnknownName("policy", name, policy_names())


def _settings(kind: Any) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def _own_files() -> list[Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise BadInput(f"{FOLDER_VARIABLE} names {folder!r}, which is not a folder")
    return sorted(path for path in Path(folder).glob("*.py") if not path.name.startswith(("_", "test_", "conftest.")))


def _class_in(path: Path) -> Any:
    module = _load(path)
    found = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and hasattr(kind, "decide") and isinstance(kind.__dict__.get("name"), str)
    ]
    if len(found) != 1:
        raise BadFile(path, f"has {len(found)} classes with a name and a decide(view), expected one")
    return found[0]


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadFile(path, "no such file")
    name = f"refold_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadFile(path, f"cannot be loaded: {type(error).__name__}: {error}") from error
    return module
