"""Options that several commands share, and what their text means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from refold.model import Seconds
    from refold.simulator import Costs


def _policies_beginning(incomplete: str) -> list[str]:
    from refold.errors import RefoldError
    from refold.registry import policy_names

    policy, slash, placement = incomplete.rpartition("/")
    try:
        names = policy_names()
    except RefoldError:
        return []  # a shell that completes has no place for complaints
    if slash and policy in names:
        return [f"{policy}/{name}" for name in _placements_beginning(placement)]
    return [name for name in names if name.startswith(incomplete)]


def _placements_beginning(incomplete: str) -> list[str]:
    from refold.packing import RULES

    return [name for name in RULES if name.startswith(incomplete)]


def _completed_last(incomplete: str, names: list[str]) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in names]


def _policy_lists_beginning(incomplete: str) -> list[str]:
    return _completed_last(incomplete, _policies_beginning(incomplete.rpartition(",")[2]))


def _placement_lists_beginning(incomplete: str) -> list[str]:
    return _completed_last(incomplete, _placements_beginning(incomplete.rpartition(",")[2]))


def _traces_beginning(incomplete: str) -> list[str]:
    """The shipped ones; beside them files, which the shell completes by itself only where nothing is offered."""
    from refold.traces import SHIPPED

    shipped = [name for name in SHIPPED if name.startswith(incomplete)]
    return shipped + sorted(path.name for path in Path().glob(f"{incomplete}*") if path.is_file()) if shipped else []


def _formats_beginning(incomplete: str) -> list[str]:
    from refold.traces import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def _settings_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of the policy named before, with their defaults."""
    from refold.errors import RefoldError
    from refold.registry import settings_of

    policy = ctx.params.get("policy") or DEFAULT_POLICY
    try:
        settings = settings_of(policy if policy.endswith(".py") else policy.partition("/")[0])
    except RefoldError:
        return []
    plain = {key: default for key, default in settings.items() if isinstance(default, str | int | float)}
    return [f"{key}={default}" for key, default in plain.items() if key.startswith(incomplete)]


def _rules_beginning(incomplete: str) -> list[str]:
    last = incomplete.rpartition(",")[2]
    return _completed_last(incomplete, [rule for rule in WATCH_RULES if rule.startswith(last)])


WATCH_RULES = (
    "no-progress=",
    "silent-too",
    "beyond-limit",
    "beyond-tail=",
    "tail-at-least=",
    "end-beyond-tail",
    "grace=",
    "per-job",
)
"""What `--watch` is made of: the fields of `policies.watch.Rules`."""

DEFAULT_POLICY = "fifo"

TRACE_HELP = "A trace file (plain or .gz), or 'demo'."
TraceName = Annotated[str, typer.Argument(metavar="TRACE", help=TRACE_HELP, autocompletion=_traces_beginning)]
TraceOrDemo = Annotated[str, typer.Argument(metavar="[TRACE]", help=TRACE_HELP, autocompletion=_traces_beginning)]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="How to read it (see 'refold trace formats'); else found out.",
        autocompletion=_formats_beginning,
    ),
]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Who runs when: a name (see 'refold policies'), a name/placement, or a file of your own.",
        autocompletion=_policies_beginning,
    ),
]
OtherPolicy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="Ask what this policy would have done: a name, a name/placement, or a file of your own.",
        autocompletion=_policies_beginning,
    ),
]
PolicyNames = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="NAME,…",
        help="Each a name, a name/placement, or a file of your own [all].",
        autocompletion=_policy_lists_beginning,
    ),
]
PlacementName = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="Where jobs go: a placement rule (see 'refold policies').",
        autocompletion=_placements_beginning,
    ),
]
PlacementNames = Annotated[
    str | None,
    typer.Option(
        "--placements",
        metavar="NAME,…",
        help="Try every policy with each of these placement rules [each policy's own].",
        autocompletion=_placement_lists_beginning,
    ),
]
SpreadPower = Annotated[
    bool,
    typer.Option(
        "--spread-power",
        help="Keep racks within their power limits, and even: jobs are placed by genetic-power.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=2**62, help="Chance of policy and placement: the policy's 'seed'."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the policy; repeatable.", autocompletion=_settings_beginning
    ),
]

ClusterFile = Annotated[
    str | None,
    typer.Option("--cluster", help="A cluster file, 'demo', or shorthand such as 135x8 or 16x8:A100+4x2:T4."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="JOBS", help="Only so many jobs, the first ones.")]

StartCost = Annotated[
    str | None, typer.Option("--start-cost", metavar="TIME", help="What the first start of a job takes [nothing].")
]
StopCost = Annotated[
    str | None, typer.Option("--stop-cost", metavar="TIME", help="What stopping a run takes [nothing].")
]
RestartCost = Annotated[
    str | None,
    typer.Option("--restart-cost", metavar="TIME", help="What every later start takes [as the first]."),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-every", metavar="TIME", help="How often work is kept for when a run is lost [never: all is lost]."
    ),
]
ReportEvery = Annotated[
    str | None,
    typer.Option("--report-every", metavar="TIME", help="How often runs say how far they are [when they stop]."),
]
ChargeBy = Annotated[
    str | None,
    typer.Option(
        "--charge",
        metavar="recorded|model|FILE",
        help="How fast jobs are where they run: as recorded, as modelled, or as in a CSV of samples "
        "[model, for reshapable jobs that the catalogue knows].",
    ),
]
KnowledgeFile = Annotated[
    Path | None,
    typer.Option("--knowledge", metavar="FILE", help="JSON: what policies know of speeds beside the catalogue."),
]
FitFiles = Annotated[
    list[Path] | None,
    typer.Option("--fit", metavar="FILE", help="What 'refold fit' saved, for policies and model to know; repeatable."),
]
Faults = Annotated[
    str | None, typer.Option("--faults", metavar="TIME", help="Mean time between the faults of one node [no faults].")
]
Repair = Annotated[
    str | None, typer.Option("--repair", metavar="TIME", help="Mean time until a lost node returns [1h].")
]
FaultSeed = Annotated[int | None, typer.Option("--fault-seed", min=0, max=2**62, help="Chance of the faults [0].")]
StuckShare = Annotated[
    float | None,
    typer.Option("--stuck", min=0.0, max=1.0, metavar="SHARE", help="So many of the jobs hang at some point [0]."),
]
EndlessShare = Annotated[
    float | None,
    typer.Option(
        "--endless", min=0.0, max=1.0, metavar="SHARE", help="So many of the jobs work on and on, beyond their end [0]."
    ),
]
StuckSeed = Annotated[
    int | None, typer.Option("--stuck-seed", min=0, max=2**62, help="Chance of who is stuck or endless [0].")
]
WatchRules = Annotated[
    str | None,
    typer.Option(
        "--watch",
        metavar="RULE,…",
        help="Flag runs that go nowhere, then end them: no-progress=TIME, beyond-limit, beyond-tail=TIMES, "
        "grace=TIME [5m]; docs/watch.md has all.",
        autocompletion=_rules_beginning,
    ),
]

OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the report into this folder.")]


def settings_from(
    given: list[str] | None, placement: str | None = None, seed: int | None = None, watch: str | None = None
) -> dict[str, Any]:
    """The settings of a policy: `--placement`, `--seed` and `--watch` are some that have options of their own."""
    from refold.errors import BadInput

    settings: dict[str, Any] = {}
    if watch is not None:
        settings["watch"] = rules_from(watch)
    if placement is not None:
        settings["placement"] = placement
    if seed is not None:
        settings["seed"] = seed
    for text in given or []:
        key, value = _setting(text)
        if key in settings:
            raise BadInput(f"--set {text}: {key} is {settings[key]} already; say it once")
        settings[key] = value
    return settings


def rules_from(text: str) -> dict[str, Any]:
    """Rules of a watch as a journal's header has them, all of them, from how people write them."""
    import msgspec

    from refold.policies.common import WatchRules

    rules: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, value = _rule(part)
        rules[name] = value
    whole: dict[str, Any] = msgspec.to_builtins(WatchRules.of(rules))
    return whole


def _rule(part: str) -> tuple[str, Any]:
    """'no-progress=10m', 'beyond-limit'."""
    from refold.errors import BadInput, UnknownName
    from refold.model import seconds_from_text

    name, equals, value = part.partition("=")
    if f"{name}{equals}" in WATCH_RULES:
        field = name.replace("-", "_")
        if not equals:
            return field, True
        return field, _number_of_times(part, value) if name == "beyond-tail" else seconds_from_text(value)
    takes = [rule for rule in WATCH_RULES if rule.partition("=")[0] == name]
    if not takes:
        raise UnknownName("rule of a watch", name, [rule.partition("=")[0] for rule in WATCH_RULES])
    raise BadInput(f"--watch {part}: {name} takes {'no value' if equals else f'a value, such as {name}=10'}")


def _number_of_times(part: str, value: str) -> float:
    from refold.errors import BadInput

    try:
        return float(value)
    except ValueError:
        raise BadInput(f"--watch {part}: expected how many times the tail, such as beyond-tail=3") from None


def check_watch(rules: Mapping[str, Any] | None, report_every: Seconds | None) -> None:
    """That no progress is made can be told only of runs that report it, and more often than they are asked."""
    from refold.errors import BadInput
    from refold.policies.common import WatchRules

    if rules is None or (wanted := WatchRules.of(rules).no_progress) is None:
        return
    if report_every is None:
        raise BadInput("--watch no-progress needs --report-every: how often runs say how far they are, such as 1m")
    if report_every >= wanted:
        raise BadInput(
            f"--watch no-progress={wanted:g}s would flag every run, since they report every {report_every:g} s: "
            "ask for longer, or let them report more often"
        )


def refuse_without(needed: str, given: Mapping[str, object], why: str) -> None:
    """Options that would change nothing, since another is missing, are not passed over in silence."""
    from refold.errors import BadInput

    for option, value in given.items():
        if value is not None:
            raise BadInput(f"{option} needs {needed}: {why}")


def _setting(text: str) -> tuple[str, Any]:
    import json

    from refold.errors import BadInput

    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadInput(f"--set {text}: expected KEY=VALUE, such as --set threshold_gpu_seconds=600")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def costs_from(
    start: str | None,
    stop: str | None,
    restart: str | None,
    checkpoint_every: str | None,
    report_every: str | None = None,
) -> Costs:
    """What changes cost, from how people write durations."""
    from refold.model import seconds_from_text
    from refold.simulator import Costs

    first = seconds_from_text("0" if start is None else start)
    return Costs(
        start=first,
        stop=seconds_from_text("0" if stop is None else stop),
        restart=first if restart is None else seconds_from_text(restart),
        checkpoint_every=None if checkpoint_every is None else seconds_from_text(checkpoint_every),
        report_every=None if report_every is None else seconds_from_text(report_every),
    )


def check_faults(faults: str | None, checkpoint_every: str | None, repair: str | None, seed: int | None) -> None:
    """What is about faults needs some."""
    if faults is None:
        about = {"--checkpoint-every": checkpoint_every, "--repair": repair, "--fault-seed": seed}
        refuse_without("--faults", about, "how often nodes are lost, such as --faults 30d")


def check_never_ending(stuck: float | None, endless: float | None, seed: int | None, report_every: str | None) -> None:
    """What is about jobs that never end needs some; and those that report on and on need reports."""
    if not stuck and not endless:
        refuse_without("--stuck or --endless", {"--stuck-seed": seed}, "which share of jobs never ends, such as 0.02")
    if report_every is None:
        refuse_without("--report-every", {"--endless": endless}, "an endless job is one that reports more and more")


def make_folder(folder: Path) -> Path:
    """A folder to write into, made if need be."""
    from refold.errors import BadFile

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(folder, f"cannot be made a folder: {error.strerror}") from None
    return folder
