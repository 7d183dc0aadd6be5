"""Options shared by several commands, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from refold.cli.declare import argument, option, switch
from refold.errors import BadFile, BadInput, BadValue, RefoldError, UnknownName
from refold.model import Seconds, parse_duration


def _complete_policies(incomplete: str) -> list[str]:
    from refold.simulator import policy_names

    policy, slash, placement = incomplete.rpartition("/")
    try:
        names = policy_names()
    except RefoldError:
        return []  # shell completion cannot show errors
    if slash and policy in names:
        return [f"{policy}/{name}" for name in _complete_placements(placement)]
    return [name for name in names if name.startswith(incomplete)]


def _complete_placements(incomplete: str) -> list[str]:
    from refold.placement import RULES

    return [name for name in RULES if name.startswith(incomplete)]


def _complete_last_item(incomplete: str, names: list[str]) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in names]


def _complete_policy_lists(incomplete: str) -> list[str]:
    return _complete_last_item(incomplete, _complete_policies(incomplete.rpartition(",")[2]))


def _complete_placement_lists(incomplete: str) -> list[str]:
    return _complete_last_item(incomplete, _complete_placements(incomplete.rpartition(",")[2]))


def _complete_traces(incomplete: str) -> list[str]:
    """Return shipped traces and matching files: the shell completes files itself only without other completions."""
    from refold.simulator.traces import SHIPPED

    shipped = [name for name in SHIPPED if name.startswith(incomplete)]
    return shipped + sorted(path.name for path in Path().glob(f"{incomplete}*") if path.is_file()) if shipped else []


def complete_formats(incomplete: str) -> list[str]:
    from refold.simulator.traces import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def parse_optional_duration(option: str, text: str | None) -> Seconds | None:
    """Parse the value of an option that is a duration, if it is given."""
    return None if text is None else parse_duration_option(option, text)


def parse_duration_option(option: str, text: str) -> Seconds:
    try:
        return parse_duration(text)
    except BadValue as error:
        raise BadValue(f"{option}: {error}") from None


def _complete_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the settings of the policy given by --policy, with their defaults."""
    from refold.simulator import default_settings

    policy = ctx.params.get("policy") or DEFAULT_POLICY
    try:
        settings = default_settings(policy if policy.endswith((".py", ".yaml", ".yml")) else policy.partition("/")[0])
    except RefoldError:
        return []
    plain = {key: default for key, default in settings.items() if isinstance(default, str | int | float)}
    return [f"{key}={default}" for key, default in plain.items() if key.startswith(incomplete)]


def _complete_watch_rules(incomplete: str) -> list[str]:
    last = incomplete.rpartition(",")[2]
    return _complete_last_item(incomplete, [rule for rule in WATCH_RULE_NAMES if rule.startswith(last)])


WATCH_RULE_NAMES = (
    "no-progress=",
    "silent-too",
    "beyond-limit",
    "beyond-tail=",
    "tail-at-least=",
    "end-beyond-tail",
    "grace=",
    "per-job",
    "limit-grace=",
)
"""The rules of `--watch`: the fields of `policies.common.WatchRules`. Rules that end in '=' take a value."""

DEFAULT_POLICY = "fifo"

TRACE_HELP = "Trace file (plain or .gz), or 'demo'."
TraceName = Annotated[str, argument("TRACE", TRACE_HELP, complete=_complete_traces)]
TraceOrDemo = Annotated[str, argument("TRACE", TRACE_HELP, complete=_complete_traces)]
OptionalTrace = Annotated[str | None, argument("TRACE", TRACE_HELP, complete=_complete_traces)]
PolicyName = Annotated[
    str,
    option(
        "POLICY",
        "Scheduling policy: NAME, NAME/PLACEMENT (see 'refold policies'), a Python file, or a policy file.",
        "--policy",
        complete=_complete_policies,
    ),
]
OtherPolicy = Annotated[
    str | None,
    option(
        "POLICY",
        "Simulate this policy instead: NAME, NAME/PLACEMENT, a Python file, or a policy file.",
        "--policy",
        complete=_complete_policies,
    ),
]
PolicyNames = Annotated[
    str | None,
    option(
        "NAME,…",
        "Policies to compare: NAME, NAME/PLACEMENT, a Python file, or a policy file (default: ten, and your own).",
        "--policies",
        complete=_complete_policy_lists,
    ),
]
PlacementName = Annotated[
    str | None, option("NAME", "Placement rule (see 'refold policies').", "--placement", complete=_complete_placements)
]
PlacementNames = Annotated[
    str | None,
    option(
        "NAME,…",
        "Run every policy with each of these placement rules (default: the policy's own).",
        "--placements",
        complete=_complete_placement_lists,
    ),
]
SpreadPower = Annotated[
    bool,
    switch("--spread-power", "Place jobs by genetic-power: keep racks within their power limits and balance them."),
]
Seed = Annotated[
    int | None, option("N", "Random seed of the policy and its placement rule.", "--seed", min=0, max=2**62)
]
Settings = Annotated[
    list[str] | None, option("KEY=VALUE", "Policy setting; repeatable.", "--set", complete=_complete_settings)
]

ClusterFile = Annotated[
    str | None, option("CLUSTER", "Cluster file, 'demo', or shorthand such as 135x8 or 16x8:A100+4x2:T4.", "--cluster")
]


class HistorySource(StrEnum):
    """Where jobs are recorded, if not in a trace or a journal."""

    SLURM = "slurm"


HistorySourceOption = Annotated[
    HistorySource | None, option("slurm", "Instead of a file: the jobs of Slurm's accounting, on its nodes.", "--from")
]
Since = Annotated[str | None, option("TIME", "With --from slurm: how far back to read jobs (default: 30d).", "--since")]

WatchOption = Annotated[
    str | None,
    option(
        "RULE,…",
        "Flag hung runs, then end them: no-progress=TIME, beyond-limit, beyond-tail=FACTOR, "
        "grace=TIME (default: 5m); see docs/watch.md.",
        "--watch",
        complete=_complete_watch_rules,
    ),
]

OutFolder = Annotated[Path | None, option("DIR", "Write the report to this folder.", "--out")]


def parse_settings(
    given: list[str] | None, placement: str | None = None, seed: int | None = None, watch: str | None = None
) -> dict[str, Any]:
    """Return the settings of a policy from `--set`, and from `--placement`, `--seed` and `--watch`."""
    settings: dict[str, Any] = {}
    if watch is not None:
        settings["watch"] = parse_watch_rules(watch)
    if placement is not None:
        settings["placement"] = placement
    if seed is not None:
        settings["seed"] = seed
    for text in given or []:
        key, value = _parse_setting(text)
        if key in settings:
            raise BadInput(f"--set {text}: {key} is already set to {settings[key]}; set it once")
        settings[key] = value
    return settings


def parse_watch_rules(text: str) -> dict[str, Any]:
    """Parse the value of `--watch` into all fields of `WatchRules`, as plain values for the journal header."""
    import msgspec

    from refold.policies.common import WatchRules

    rules: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, value = _parse_watch_rule(part)
        rules[name] = value
    complete: dict[str, Any] = msgspec.to_builtins(WatchRules.from_settings(rules))
    return complete


def _parse_watch_rule(part: str) -> tuple[str, Any]:
    """Parse one rule, such as 'no-progress=10m' or 'beyond-limit'."""
    name, equals, value = part.partition("=")
    if f"{name}{equals}" in WATCH_RULE_NAMES:
        field = name.replace("-", "_")
        if not equals:
            return field, True
        return field, _parse_factor(part, value) if name == "beyond-tail" else parse_duration(value)
    same_name = [rule for rule in WATCH_RULE_NAMES if rule.partition("=")[0] == name]
    if not same_name:
        raise UnknownName("watch rule", name, [rule.partition("=")[0] for rule in WATCH_RULE_NAMES])
    raise BadInput(f"--watch {part}: {name} takes {'no value' if equals else f'a value, such as {name}=10'}")


def _parse_factor(part: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadInput(f"--watch {part}: expected a factor, such as beyond-tail=3") from None


def check_watch(rules: Mapping[str, Any] | None, report_every: Seconds | None) -> None:
    """Reject `no-progress` unless runs report progress, and more often than that time."""
    from refold.policies.common import WatchRules

    if rules is None or (no_progress := WatchRules.from_settings(rules).no_progress) is None:
        return
    if report_every is None:
        raise BadInput("--watch no-progress needs --report-every: the progress report interval, such as 1m")
    if report_every >= no_progress:
        raise BadInput(
            f"--watch no-progress={no_progress:g}s would flag every run, since runs report every {report_every:g} s: "
            "increase no-progress or decrease --report-every"
        )


def require_option(required: str, given: Mapping[str, object], explanation: str) -> None:
    """Raise BadInput if any option of `given` has a value: it has no effect without `required`, which is missing."""
    for name, value in given.items():
        if value is not None:
            raise BadInput(f"{name} needs {required}: {explanation}")


def _parse_setting(text: str) -> tuple[str, Any]:
    import json

    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadInput(f"--set {text}: expected KEY=VALUE, such as --set threshold_gpu_seconds=600")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents unless they exist, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(folder, f"cannot create the folder: {error.strerror}") from None
    return folder


# Files that a command writes for a later one.


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file that has the old or the new contents if the command is interrupted. Raises `BadFile`."""
    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.write_bytes(contents)
        unfinished.replace(path)
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
