"""Read the sections `policy`, `prediction` and `watch` of `refold.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from refold.documents import Part
from refold.errors import BadValue, RefoldError
from refold.jobspec import Pattern
from refold.server.config.settings import (
    DEFAULT_WATCH_RULES,
    BadGpuRule,
    IdleRule,
    OutputAction,
    OutputRule,
    PolicyConfig,
    WatchConfig,
)

Reader = Callable[[Part], Any]


def read_policy(part: Part) -> PolicyConfig:
    """Read a policy name, or a name with settings. Settings are checked by creating the policy."""
    if isinstance(part.value, str):
        return PolicyConfig(_known_policy(part))
    config = PolicyConfig(**part.read(POLICY))
    settings = part.fields().get("settings")
    if settings is not None and settings.value is not None:
        settings.fields(_settings_of(config.name))
        _check_settings(config, settings)
    return config


def _check_settings(config: PolicyConfig, settings: Part) -> None:
    from refold.registry import make_policy

    try:
        make_policy(config.name, config.settings)
    except RefoldError as error:
        raise settings.error(error) from None


def _known_policy(part: Part) -> str:
    from refold.registry import default_settings  # imports the policy

    name = part.text("the name of a policy")
    try:
        default_settings(name)
    except RefoldError as error:
        raise part.error(error) from None
    return name


def _settings_of(policy: str) -> Mapping[str, Any]:
    from refold.registry import default_settings

    return default_settings(policy)


def read_prediction(part: Part) -> dict[str, Part]:
    """Check the section and return it unread; `apply_prediction` moves it into the policy's settings."""
    part.read(PREDICTION)
    return part.fields()


def apply_prediction(policy: PolicyConfig, prediction: Mapping[str, Part]) -> PolicyConfig:
    """Return the policy with the keys of `prediction` as settings. Raises if the policy lacks one of them."""
    settings = dict(policy.settings)
    for key, part in prediction.items():
        if part.value is None:
            continue
        if key not in _settings_of(policy.name):
            raise part.error(
                f"policy {policy.name!r} has no setting {key!r}; the policies easy and conservative have it"
            )
        if key in settings:
            raise part.error(f"also set by policy.settings.{key}; set it once")
        settings[key] = PREDICTION[key](part)
    return PolicyConfig(policy.name, settings)


def read_watch(part: Part) -> WatchConfig:
    """Read the watch rules, merged with the defaults, and the other checks."""
    fields = part.read({**RULES, **WATCH})
    rules = {**DEFAULT_WATCH_RULES, **{key: fields.pop(key) for key in RULES if key in fields}}
    return WatchConfig(rules=_checked_rules(part, rules), **fields)


def _checked_rules(part: Part, rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules, {} if none is active."""
    if not any(rules.get(key) for key in ("no_progress", "beyond_limit", "beyond_tail")):
        for key in part.fields():
            if key in ("silent_too", "tail_at_least", "end_beyond_tail"):
                raise part.fields()[key].error("has no effect: the rule that it modifies is off")
        return {}
    from refold.policies.common import WatchRules  # slow to import

    try:
        WatchRules(**rules)
    except BadValue as error:
        raise part.error(error) from None
    return rules


def _idle(part: Part) -> IdleRule | None:
    if part.value is False:
        return None
    if not isinstance(part.value, dict):
        raise part.unexpected("off, or a rule such as {utilisation_below: 5, for: 30m}")
    fields = part.read({"utilisation_below": _percent, "for": Part.positive_duration})
    return IdleRule(**{"seconds" if key == "for" else key: value for key, value in fields.items()})


def _percent(part: Part) -> float:
    return part.number("a percentage, 0 to 100", maximum=100)


def _output(part: Part) -> tuple[OutputRule, ...]:
    return tuple(_output_rule(entry) for entry in part.entries("a list of patterns and actions"))


def _output_rule(part: Part) -> OutputRule:
    fields = part.read({"pattern": _pattern, "action": lambda action: action.one_of(get_args(OutputAction))})
    for key in ("pattern", "action"):
        if key not in fields:
            raise part.error(
                f"{key} is missing, expected a rule such as {{pattern: 'out of memory', action: no-retry}}"
            )
    return OutputRule(**fields)


def _pattern(part: Part) -> str:
    pattern = part.text("a regular expression", maximum=512)
    try:
        Pattern(pattern)
    except BadValue as error:
        raise part.unexpected(f"a regular expression: {error}") from None
    return pattern


POLICY: dict[str, Reader] = {
    "name": _known_policy,
    "settings": lambda part: {} if part.value is None else part.to_plain(),
}
PREDICTION: dict[str, Reader] = {
    "durations": lambda part: part.one_of(("predicted", "limit")),
    "duration_quantile": lambda part: part.number("a quantile, 0 to 1", maximum=1),
    "confidence": lambda part: part.number("a quantile, 0 to 1", maximum=1),
}
RULES: dict[str, Reader] = {
    "no_progress": Part.positive_duration,
    "silent_too": Part.boolean,
    "beyond_limit": Part.boolean,
    "beyond_tail": lambda part: part.number("a factor such as 3", minimum=1e-9, maximum=1e6),
    "tail_at_least": Part.duration,
    "end_beyond_tail": Part.boolean,
    "grace": Part.duration,
}
WATCH: dict[str, Reader] = {
    "idle": _idle,
    "bad_gpus": lambda part: part.one_of(get_args(BadGpuRule)),
    "output": _output,
}
