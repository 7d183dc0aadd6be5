"""Find policies by name: the built-in ones, policies in the user's own Python files, and policy files.

A user's policy is referred to by the path of its file, or by its name if the file is in the folder that the environment
variable REFOLD_POLICIES names. The file has one class with a `name` and a `decide` method; the first line of the class
docstring is its summary.

A policy file is a YAML document with the name of a policy and its settings, such as `refold tune` writes. It stands for
that policy wherever a policy is named.
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

import msgspec

from refold.core import Policy
from refold.errors import BadFile, BadInput, RefoldError, UnknownName
from refold.model.documents import convert as convert_document, load_yaml, read_text
from refold.policies import POLICIES, SettingRange, range_by_default

FOLDER_VARIABLE = "REFOLD_POLICIES"
WATCH = "watch"
"""The setting that every policy accepts: the rules of the run-time watch."""
PROFILE = "profile"
"""The setting of policies that choose plans: the limits of profiling new model types. True: the default limits."""
START_ESTIMATES = "start_estimates"
"""The setting that every policy accepts: in simulations, estimate when waiting jobs start. The orders are the same.

Daemons make their own estimates, and leave it out; it was a setting of some policies once, so journals have it.
"""


POLICY_FILE_SUFFIXES = (".yaml", ".yml")

FIXED_SETTINGS = ("placement", "seed", "restart_seconds")
"""Settings that are not tuned unless a policy says so: random seeds, and what is a fact of the cluster."""

FORMER_SETTINGS = {
    ("refold", "starvation_seconds"): "waits are bounded by GPU time that others use meanwhile: 'overtaking_share'",
    **{
        (policy, setting): "it hardly shortened the longest waits: waits are bounded under the policy 'refold'"
        for policy in ("easy", "conservative")
        for setting in ("max_overtaken", "max_wait_seconds")
    },
}
"""What replaces settings that policies had once."""


class PolicyFile(msgspec.Struct, frozen=True):
    """A policy with its settings, as a document. `tuned`: how the settings were chosen, for people."""

    name: str
    settings: dict[str, Any] = {}
    tuned: dict[str, Any] = {}


class PolicyInfo(NamedTuple):
    """The description of a policy, as `refold policies` lists it.

    `where` is its module or file; `problem` says why it cannot be used, and is empty if it can.
    """

    name: str
    summary: str
    oracle: bool
    preempts: bool
    settings: Mapping[str, Any]
    where: str
    problem: str = ""


def policy_names() -> list[str]:
    return [*POLICIES, *(described.name for path in _user_files() if not (described := _describe_file(path)).problem)]


def default_policies() -> list[str]:
    """Return the policies that `refold compare` runs by default: the built-in ones marked so, and the user's."""
    return [name for name in policy_names() if name not in POLICIES or POLICIES[name].compared_by_default]


def list_policies() -> list[PolicyInfo]:
    """Return all built-in policies and all files in the user's folder, including files that cannot be loaded."""
    builtin_policies = [
        PolicyInfo(name, builtin.summary, builtin.oracle, builtin.preempts, default_settings(name), builtin.module)
        for name, builtin in POLICIES.items()
    ]
    return builtin_policies + [_describe_file(path) for path in _user_files()]


def _describe_file(path: Path) -> PolicyInfo:
    try:
        policy_class = _load_class(path)
    except BadFile as error:
        return PolicyInfo(path.stem, "", False, False, {}, str(path), error.problem)
    return PolicyInfo(
        policy_class.name,
        (inspect.getdoc(policy_class) or "").split("\n")[0],
        getattr(policy_class, "oracle", False),
        getattr(policy_class, "preempts", False),
        _settings(policy_class),
        str(path),
        f"the name {policy_class.name!r} is a built-in policy" if policy_class.name in POLICIES else "",
    )


def is_policy_file(name: str) -> bool:
    return name.endswith(POLICY_FILE_SUFFIXES)


def resolve_policy(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the policy and the settings that a policy file stands for; given settings override those of the file.

    Another name is returned as it is.
    """
    if not is_policy_file(name):
        return name, dict(settings)
    file = _read_policy_file(Path(name))
    return file.name, {**file.settings, **settings}


def _read_policy_file(path: Path) -> PolicyFile:
    """Read a policy file. The path of a Python file in it is relative to its folder."""
    root = load_yaml(read_text(path), str(path))
    file = convert_document(root, PolicyFile)
    if is_policy_file(file.name):
        raise root.at("name").unexpected("the name of a policy, or a Python file")
    if file.name.endswith(".py"):
        file = msgspec.structs.replace(file, name=str(path.parent / file.name))
    try:
        known = default_settings(file.name)
    except RefoldError as error:
        raise root.at("name").error(error) from None
    if file.settings:
        root.at("settings").fields({*known, WATCH, START_ESTIMATES})
    return file


def setting_ranges(name: str) -> dict[str, SettingRange]:
    """Return the ranges of a policy's settings: those that it declares or, if none, by the type of the defaults."""
    policy_class = _find_class(name)
    declared: Mapping[str, SettingRange] | None = getattr(policy_class, "ranges", None)
    if declared is not None:
        return dict(declared)
    defaults = {key: value for key, value in _settings(policy_class).items() if key not in FIXED_SETTINGS}
    by_default = {key: range_by_default(value) for key, value in defaults.items()}
    return {key: found for key, found in by_default.items() if found is not None}


def default_settings(name: str) -> Mapping[str, Any]:
    """Return the settings of a policy with their default values; of a policy file, with its values."""
    if is_policy_file(name):
        name, given = resolve_policy(name, {})
        return {**default_settings(name), **given}
    settings = _settings(_find_class(name))
    return {**settings, PROFILE: None} if chooses_plans(name) else settings


def chooses_plans(name: str) -> bool:
    """Return whether a policy gives jobs other plans than their own."""
    return name in POLICIES and POLICIES[name].chooses_plans


def make_policy(name: str, settings: Mapping[str, Any] | None = None) -> Policy:
    """Construct a policy by name or by file path. `settings` may include a run-time watch and profiling."""
    name, settings = resolve_policy(name, settings or {})
    own, rules = split_settings(name, settings)
    limits = own.pop(PROFILE, None) if chooses_plans(name) else None
    estimates = own.get(START_ESTIMATES, False)
    policy = _with_profiling(_construct(name, without_start_estimates(own)), limits, own)
    return with_run_watch(with_start_estimates(policy) if estimates else policy, rules)


def without_start_estimates(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a policy that is not to estimate when waiting jobs start."""
    return {name: value for name, value in settings.items() if name != START_ESTIMATES}


def with_start_estimates(policy: Policy) -> Policy:
    """Wrap a policy with estimates of when waiting jobs start."""
    from refold.simulator.start_estimates import EstimatingPolicy  # imported late: a daemon does without it

    return EstimatingPolicy(policy)


def _with_profiling(policy: Policy, limits: Mapping[str, Any] | bool | None, settings: Mapping[str, Any]) -> Policy:
    """Wrap a policy with profiling of new model types; without limits, return the policy itself."""
    if limits is None or limits is False:
        return policy
    from refold.planning.plans import Knowledge
    from refold.policies.common import Profiling, ProfilingLimits

    used = {name: settings[name] for name in ("restart_seconds",) if name in settings}
    knowledge = Knowledge.from_settings(settings.get("knowledge", {}))
    return Profiling(policy, ProfilingLimits.from_settings({} if limits is True else limits), knowledge, **used)


def with_run_watch(policy: Policy, rules: Mapping[str, Any] | None) -> Policy:
    """Wrap a policy with a run-time watch; without rules, return the policy itself."""
    if rules is None:
        return policy
    from refold.policies.common import RunWatch, WatchRules  # imported late: prediction is slow to load

    return RunWatch(policy, WatchRules.from_settings(rules))


def split_settings(name: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Separate the settings of the policy itself from the watch rules (None: no watch).

    A policy that has its own setting of that name keeps it.
    """
    own = dict(settings)
    if WATCH not in own or WATCH in default_settings(name):
        return own, None
    return own, own.pop(WATCH)


def _construct(name: str, settings: Mapping[str, Any]) -> Policy:
    policy_class = _find_class(name)
    known = _settings(policy_class)
    for setting in settings:
        if setting not in known:
            if (name, setting) in FORMER_SETTINGS:
                raise BadInput(f"{name} has no setting {setting!r} any more; {FORMER_SETTINGS[name, setting]}")
            raise UnknownName(f"{name} setting", setting, known)
    try:
        policy: Policy = policy_class(**settings)
    except RefoldError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"policy {name} does not accept the settings {dict(settings)}: {error}") from error
    return policy


def _find_class(name: str) -> Any:
    if name in POLICIES:
        builtin = POLICIES[name]
        return getattr(importlib.import_module(builtin.module), builtin.class_name)
    if name.endswith(".py"):
        return _load_class(Path(name))
    files = _user_files()
    for path in files:
        if path.stem == name:
            return _load_class(path)
    for path in files:
        with suppress(BadFile):  # a broken file must not hide the others
            policy_class = _load_class(path)
            if policy_class.name == name:
                return policy_class
    raise UnknownName("policy", name, policy_names())


def _settings(policy_class: Any) -> dict[str, Any]:
    parameters = inspect.signature(policy_class).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def _user_files() -> list[Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise BadInput(f"{FOLDER_VARIABLE} is {folder!r}, expected a folder")
    return sorted(path for path in Path(folder).glob("*.py") if not path.name.startswith(("_", "test_", "conftest.")))


def _load_class(path: Path) -> Any:
    module = _load_module(path)
    classes = [
        policy_class
        for _, policy_class in inspect.getmembers(module, inspect.isclass)
        if policy_class.__module__ == module.__name__
        and hasattr(policy_class, "decide")
        and isinstance(policy_class.__dict__.get("name"), str)
    ]
    if len(classes) != 1:
        raise BadFile(path, f"has {len(classes)} classes with a name and decide(view), expected one")
    return classes[0]


def _load_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadFile(path, "no such file")
    name = f"refold_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadFile(path, f"cannot be loaded: {type(error).__name__}: {error}") from error
    return module
