"""What `refold.yaml` says of who decides, with which predictions, and of what is watched for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from refold.documents import Part
from refold.errors import BadValue, RefoldError
from refold.jobspec import read_pattern
from refold.server.config.settings import (
    USUAL_RULES,
    BadGpuRule,
    IdleRule,
    OutputRule,
    PolicyChoice,
    Then,
    WatchChoice,
)

Reader = Callable[[Part], Any]


def policy_from(part: Part) -> PolicyChoice:
    """A name alone, or a name and settings, which are checked against those that the policy has."""
    if isinstance(part.value, str):
        return PolicyChoice(_known_policy(part))
    choice = PolicyChoice(**part.read(POLICY))
    settings = part.fields().get("settings")
    if settings is not None and settings.value is not None:
        settings.fields(_settings_of(choice.name))
        _try_out(choice, settings)
    return choice


def _try_out(choice: PolicyChoice, settings: Part) -> None:
    from refold.registry import make_policy

    try:
        make_policy(choice.name, choice.settings)
    except RefoldError as error:
        raise settings.refused(error) from None


def _known_policy(part: Part) -> str:
    from refold.registry import settings_of  # it imports the policy

    name = part.text("the name of a policy")
    try:
        settings_of(name)
    except RefoldError as error:
        raise part.refused(error) from None
    return name


def _settings_of(policy: str) -> Mapping[str, Any]:
    from refold.registry import settings_of

    return settings_of(policy)


def prediction_from(part: Part) -> dict[str, Part]:
    """What is said of predictions, once it is known to be right; it goes into the settings of the policy."""
    part.read(PREDICTION)
    return part.fields()


def with_prediction(policy: PolicyChoice, prediction: Mapping[str, Part]) -> PolicyChoice:
    """What predictions are used for is up to the policy: these are settings of it, if it plans with durations."""
    settings = dict(policy.settings)
    for key, part in prediction.items():
        if part.value is None:
            continue
        if key not in _settings_of(policy.name):
            raise part.refused(f"the policy {policy.name!r} does not plan with {key}; easy and conservative do")
        if key in settings:
            raise part.refused(f"policy.settings.{key} says so already; say it once")
        settings[key] = PREDICTION[key](part)
    return PolicyChoice(policy.name, settings)


def watch_from(part: Part) -> WatchChoice:
    """Rules beside the usual ones, and what else is watched for."""
    given = part.read({**RULES, **WATCH})
    rules = {**USUAL_RULES, **{key: given.pop(key) for key in RULES if key in given}}
    return WatchChoice(rules=_checked_rules(part, rules), **given)


def _checked_rules(part: Part, rules: dict[str, Any]) -> dict[str, Any]:
    """The same; none, where nothing is left to watch for."""
    if not any(rules.get(key) for key in ("no_progress", "beyond_limit", "beyond_tail")):
        for key in part.fields():
            if key in ("silent_too", "tail_at_least", "end_beyond_tail"):
                raise part.fields()[key].refused("there is no rule that this is about")
        return {}
    from refold.policies.common import WatchRules  # predictions take a while to load

    try:
        WatchRules(**rules)
    except BadValue as error:
        raise part.refused(error) from None
    return rules


def _idle(part: Part) -> IdleRule | None:
    if part.value is False:
        return None
    if not isinstance(part.value, dict):
        raise part.wrong("off, or such as {load_below: 5, for: 30m}")
    given = part.read({"load_below": _percent, "for": Part.distribution})
    return IdleRule(**{"seconds" if key == "for" else key: value for key, value in given.items()})


def _percent(part: Part) -> float:
    return part.number("a percentage, 0 to 100", most=100)


def _output(part: Part) -> tuple[OutputRule, ...]:
    return tuple(_output_rule(entry) for entry in part.entries("a list of patterns and what follows from them"))


def _output_rule(part: Part) -> OutputRule:
    given = part.read({"pattern": _pattern, "then": lambda one: one.one_of(get_args(Then))})
    for key in ("pattern", "then"):
        if key not in given:
            raise part.refused(f"{key} is absent, expected such as {{pattern: 'out of memory', then: no-retry}}")
    return OutputRule(**given)


def _pattern(part: Part) -> str:
    pattern = part.text("a regular expression", most=512)
    _, problem = read_pattern(pattern)
    if problem:
        raise part.refused(f"{pattern!r} is not a regular expression: {problem}")
    return pattern


POLICY: dict[str, Reader] = {"name": _known_policy, "settings": lambda part: {} if part.value is None else part.plain()}
PREDICTION: dict[str, Reader] = {
    "durations": lambda part: part.one_of(("predicted", "limit")),
    "likely": lambda part: part.number("a share of 0 to 1", most=1),
    "confidence": lambda part: part.number("a share of 0 to 1", most=1),
}
RULES: dict[str, Reader] = {
    "no_progress": Part.distribution,
    "silent_too": Part.truth,
    "beyond_limit": Part.truth,
    "beyond_tail": lambda part: part.number("how many times the tail, such as 3", least=1e-9, most=1e6),
    "tail_at_least": Part.seconds,
    "end_beyond_tail": Part.truth,
    "grace": Part.seconds,
}
WATCH: dict[str, Reader] = {
    "idle": _idle,
    "bad_gpus": lambda part: part.one_of(get_args(BadGpuRule)),
    "output": _output,
}
