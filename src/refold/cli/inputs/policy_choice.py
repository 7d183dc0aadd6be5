"""Which policies were asked for, with which settings; what cannot be is refused here, before anything is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

SPREAD = "genetic-power"
"""The placement that knows of power, which `--spread-power` is short for."""

SECONDS = "_seconds"
"""How settings are called that may be given as durations."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy as it was asked for, by name or file, with its settings; `name` is what people read.

    An oracle knows how long jobs will take.
    """

    policy: str
    settings: Mapping[str, Any]
    name: str
    oracle: bool = False


def name_of(policy: str, settings: Mapping[str, Any]) -> str:
    """'las', or 'las/fgd' where a placement was asked for; of a file, the file's."""
    short = Path(policy).stem if policy.endswith(".py") else policy
    placement = settings.get("placement")
    return f"{short}/{placement}" if placement else short


def is_oracle(policy: str) -> bool:
    """Whether a policy of the package knows how long jobs will take."""
    from refold.policies import POLICIES

    return policy in POLICIES and POLICIES[policy].oracle


def chosen_policy(text: str, settings: Mapping[str, Any]) -> Choice:
    """One policy, by 'name', 'name/placement' or file; placement and seed may be among the settings."""
    from refold.errors import BadInput

    policy, placement = _policy_and_placement(text)
    if not placement:
        return _checked(policy, settings)
    if "placement" in settings:
        other = settings["placement"]
        raise BadInput(f"{text} says where jobs go, and placement={other} does too: say it once")
    return _checked(policy, {"placement": placement, **settings})


def chosen_policies(policies: Sequence[str], placements: Sequence[str], given: Mapping[str, Any]) -> list[Choice]:
    """Every policy with every placement, if there are any.

    Settings given as POLICY.KEY go to that policy, and as KEY to all.
    """
    _check_placements(policies, placements, given)
    _check_settings(given, [_policy_and_placement(text)[0] for text in policies])
    chosen: list[Choice] = []
    for text in policies:
        settings = _settings_of(_policy_and_placement(text)[0], given)
        for placement in placements or [""]:
            where = {"placement": placement} if placement else {}
            choice = chosen_policy(text, {**where, **settings})
            if choice not in chosen:
                chosen.append(choice)
    return _told_apart(chosen)


def refuse_other_places(
    policies: Sequence[str], placements: Mapping[str, str | None], given: Mapping[str, Any]
) -> None:
    """`--spread-power` says where jobs go: nobody else may, and every policy has to take a placement.

    `placements` are options that name other placements, with what they say.
    """
    from refold.errors import BadInput

    said = [f"{option} by {value}" for option, value in placements.items() if value is not None]
    said += [f"--set {key} by {value}" for key, value in given.items() if key.rpartition(".")[2] == "placement"]
    said += [f"{text} by {where}" for text in policies if (where := _policy_and_placement(text)[1])]
    if said:
        raise BadInput(f"--spread-power places jobs by {SPREAD}, and {said[0]}: leave one of them out")
    for policy in policies:
        if not takes_placement(policy):
            raise BadInput(
                f"--spread-power chooses a placement, and {name_of(policy, {})} takes none: it decides itself where "
                f"jobs go. Policies that take one: {', '.join(filter(takes_placement, _all_policies()))}"
            )


def takes_placement(policy: str) -> bool:
    """Whether a placement rule can be chosen for a policy."""
    from refold.registry import settings_of

    return "placement" in settings_of(policy)


def _all_policies() -> list[str]:
    from refold.registry import policy_names

    return policy_names()


def _checked(policy: str, settings: Mapping[str, Any]) -> Choice:
    """The policy is made once, so that a mistake is told before the simulation and not after an hour."""
    from refold.cli import make_guarded
    from refold.registry import settings_of

    defaults = settings_of(policy)
    right = {key: _as_its_default(policy, key, value, defaults.get(key)) for key, value in settings.items()}
    made = make_guarded(policy, right)
    return Choice(policy, right, name_of(made.name, right), is_oracle(policy) or bool(getattr(made, "oracle", False)))


def _as_its_default(policy: str, key: str, value: Any, default: Any) -> Any:
    """The value as what its default is: numbers are numbers, names are text; of other defaults nothing is known."""
    match default:
        case bool():
            right, expected = isinstance(value, bool), "true or false"
        case int():
            right, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        case float() if key.endswith(SECONDS):
            value = _seconds(value)
            right, expected = _is_number(value), "a number or a duration such as 1h"
        case float():
            right, expected = _is_number(value), "a number"
        case str():
            right, expected = isinstance(value, str), "a word"
        case _:
            return value
    if not right:
        from refold.errors import BadInput

        raise BadInput(f"{name_of(policy, {})}: {key} is {value!r}, expected {expected}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _seconds(value: Any) -> Any:
    from refold.errors import BadValue
    from refold.model import seconds_from_text

    try:
        return seconds_from_text(value) if isinstance(value, str) else value
    except BadValue:
        return value


def _policy_and_placement(text: str) -> tuple[str, str]:
    if text.endswith(".py"):
        return text, ""
    policy, slash, placement = text.rpartition("/")
    return (policy, placement) if slash else (text, "")


def _settings_of(policy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given to all, and over it what was given to this one."""
    to_all = {key: value for key, value in given.items() if "." not in key}
    return to_all | {key.rpartition(".")[2]: value for key, value in given.items() if _is_for(policy, key)}


def _is_for(policy: str, key: str) -> bool:
    return key.rpartition(".")[0] in (policy, name_of(policy, {}))


def _check_placements(policies: Sequence[str], placements: Sequence[str], given: Mapping[str, Any]) -> None:
    from refold.errors import BadInput

    if not placements:
        return
    for text in policies:
        if _policy_and_placement(text)[1]:
            raise BadInput(f"{text} has its placement, and --placements gives it others: leave one of them out")
    for key in given:
        if key.rpartition(".")[2] == "placement":
            raise BadInput(f"--set {key} and --placements both say where jobs go: leave one of them out")


def _check_settings(given: Mapping[str, Any], policies: Sequence[str]) -> None:
    from refold.errors import UnknownName

    for key in given:
        if "." in key and not any(_is_for(policy, key) for policy in policies):
            raise UnknownName("policy to set that of,", key.rpartition(".")[0], set(policies))


def _told_apart(chosen: list[Choice]) -> list[Choice]:
    """Two files may hold policies of one name: then people read the files."""
    names = [choice.name for choice in chosen]
    return [replace(choice, name=choice.policy) if names.count(choice.name) > 1 else choice for choice in chosen]
