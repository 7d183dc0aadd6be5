"""Parse the selected policies and their settings. Errors are raised here, before anything is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import parse_duration

POWER_PLACEMENT = "genetic-power"
"""The power-aware placement rule, which `--spread-power` selects."""

DURATION_SUFFIX = "_seconds"
"""Suffix of the names of settings that accept durations such as 1h."""


@dataclass(frozen=True, slots=True)
class SelectedPolicy:
    """A policy by name or file, with its settings. `name`: label in tables. `oracle`: it knows run times in advance."""

    policy: str
    settings: Mapping[str, Any]
    name: str
    oracle: bool = False


def policy_label(policy: str, settings: Mapping[str, Any]) -> str:
    """Return 'las', or 'las/fgd' if the settings have a placement; for a file, its name."""
    short = Path(policy).stem if _is_file(policy) else policy
    placement = settings.get("placement")
    return f"{short}/{placement}" if placement else short


def is_oracle(policy: str) -> bool:
    """Whether a policy of the package knows run times in advance."""
    from refold.policies import POLICIES

    return policy in POLICIES and POLICIES[policy].oracle


def parse_policy(text: str, settings: Mapping[str, Any]) -> SelectedPolicy:
    """Parse one policy: 'name', 'name/placement' or a file. The settings may contain the placement and the seed."""
    policy, placement = _policy_and_placement(text)
    if not placement:
        return _select_policy(policy, settings)
    if "placement" in settings:
        other = settings["placement"]
        raise BadInput(f"{text} and placement={other} both select a placement: leave one of them out")
    return _select_policy(policy, {"placement": placement, **settings})


def parse_policies(
    policies: Sequence[str], placements: Sequence[str], given: Mapping[str, Any]
) -> list[SelectedPolicy]:
    """Return every policy combined with every placement (none given: the policy's own).

    A setting POLICY.KEY applies to that policy, KEY to all policies.
    """
    _check_placements(policies, placements, given)
    _check_settings(given, [_policy_and_placement(text)[0] for text in policies])
    selected: list[SelectedPolicy] = []
    for text in policies:
        settings = _settings_for(_policy_and_placement(text)[0], given)
        for placement in placements or [""]:
            placement_setting = {"placement": placement} if placement else {}
            policy = parse_policy(text, {**placement_setting, **settings})
            if policy not in selected:
                selected.append(policy)
    return _with_unique_names(selected)


def with_start_estimates(selected: SelectedPolicy) -> SelectedPolicy:
    """Return a policy with start estimates; it gives the same orders."""
    from refold.simulator import START_ESTIMATES

    return replace(selected, settings={START_ESTIMATES: True, **selected.settings})


def check_spread_power(policies: Sequence[str], placements: Mapping[str, str | None], given: Mapping[str, Any]) -> None:
    """Reject `--spread-power`, which selects a placement, with other placements or policies that take none.

    `placements`: options that select other placements, with their values.
    """
    others = [f"{option} {value}" for option, value in placements.items() if value is not None]
    others += [f"--set {key}={value}" for key, value in given.items() if key.rpartition(".")[2] == "placement"]
    others += [text for text in policies if _policy_and_placement(text)[1]]
    if others:
        raise BadInput(
            f"--spread-power and {others[0]} both select a placement ({POWER_PLACEMENT} and another): "
            "leave one of them out"
        )
    for policy in policies:
        if not takes_placement(policy):
            raise BadInput(
                f"--spread-power selects a placement, but {policy_label(policy, {})} places jobs itself; "
                f"policies that take a placement: {', '.join(filter(takes_placement, _all_policies()))}"
            )


def takes_placement(policy: str) -> bool:
    from refold.simulator import default_settings

    return "placement" in default_settings(policy)


def _all_policies() -> list[str]:
    from refold.simulator import policy_names

    return policy_names()


def _select_policy(policy: str, settings: Mapping[str, Any]) -> SelectedPolicy:
    """Check the settings and construct the policy once, so that errors appear before the simulation.

    A policy file is replaced by what it stands for, but gives the policy its label.
    """
    from refold.cli import make_guarded_policy
    from refold.simulator import default_settings, is_policy_file, resolve_policy

    if is_policy_file(policy):
        selected = _select_policy(*resolve_policy(policy, settings))
        return replace(selected, name=policy)
    defaults = default_settings(policy)
    valid = {key: _check_setting(policy, key, value, defaults.get(key)) for key, value in settings.items()}
    _, valid = resolve_policy(policy, valid)
    policy_object = make_guarded_policy(policy, valid)
    return SelectedPolicy(
        policy,
        valid,
        policy_label(policy_object.name, valid),
        is_oracle(policy) or bool(getattr(policy_object, "oracle", False)),
    )


def _check_setting(policy: str, key: str, value: Any, default: Any) -> Any:
    """Check that a value has the type of the setting's default; parse durations. Other types are not checked."""
    match default:
        case bool():
            valid, expected = isinstance(value, bool), "true or false"
        case int():
            valid, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        case float() if key.endswith(DURATION_SUFFIX):
            value = _parse_seconds(value)
            valid, expected = _is_number(value), "a number or a duration such as 1h"
        case float():
            valid, expected = _is_number(value), "a number"
        case str():
            valid, expected = isinstance(value, str), "a name"
        case _:
            return value
    if not valid:
        raise BadInput(f"{policy_label(policy, {})}: {key} is {value!r}, expected {expected}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _parse_seconds(value: Any) -> Any:
    try:
        return parse_duration(value) if isinstance(value, str) else value
    except BadValue:
        return value


def _is_file(policy: str) -> bool:
    from refold.simulator import is_policy_file

    return policy.endswith(".py") or is_policy_file(policy)


def _policy_and_placement(text: str) -> tuple[str, str]:
    if _is_file(text):
        return text, ""
    policy, slash, placement = text.rpartition("/")
    return (policy, placement) if slash else (text, "")


def _settings_for(policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for all policies, overridden by those for this policy."""
    for_all = {key: value for key, value in given.items() if "." not in key}
    return for_all | {key.rpartition(".")[2]: value for key, value in given.items() if _is_for(policy, key)}


def _is_for(policy: str, key: str) -> bool:
    return key.rpartition(".")[0] in (policy, policy_label(policy, {}))


def _check_placements(policies: Sequence[str], placements: Sequence[str], given: Mapping[str, Any]) -> None:
    if not placements:
        return
    for text in policies:
        if _policy_and_placement(text)[1]:
            raise BadInput(f"{text} and --placements both select a placement: leave one of them out")
    for key in given:
        if key.rpartition(".")[2] == "placement":
            raise BadInput(f"--set {key} and --placements both select a placement: leave one of them out")


def _check_settings(given: Mapping[str, Any], policies: Sequence[str]) -> None:
    for key in given:
        if "." in key and not any(_is_for(policy, key) for policy in policies):
            raise UnknownName(f"policy in --set {key}:", key.rpartition(".")[0], set(policies))


def _with_unique_names(selected: list[SelectedPolicy]) -> list[SelectedPolicy]:
    """Label policies of the same name, from different files, by their files."""
    names = [policy.name for policy in selected]
    return [replace(policy, name=policy.policy) if names.count(policy.name) > 1 else policy for policy in selected]
