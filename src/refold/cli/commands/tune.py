"""`refold tune`: choose the settings of a policy on one part of a history, and report on a later part."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from refold.cli import (
    ClusterFile,
    ExperimentOptions,
    OptionalTrace,
    Settings,
    SourceOptions,
    option,
    parse_duration_option,
    parse_settings,
    with_option_groups,
)
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables
from refold.errors import BadFile, BadInput, RefoldError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from refold.cli.inputs import SelectedPolicy, Workload
    from refold.simulator import PolicyFile
    from refold.simulator.tuning import Goal, Objective, ReportPolicy, Split, TunedPolicy, TuningResult

STUDY_FILE = "study.jsonl"
HISTORY_FILE = "history.json"
POLICY_FILE = "policy.yaml"
PICTURE_FILE = "report.html"
DEFAULT_BASELINES = "fifo,fifo-skip,easy,srtf"
EXPECTED_POINTS = 6
"""Points of the trade-off, for the progress bar."""

NOT_WRITTEN = ("knowledge", "watch")
"""Settings that are not part of a policy file: the daemon has its own."""


def _complete_policies(incomplete: str) -> list[str]:
    from refold.simulator import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def _complete_objectives(incomplete: str) -> list[str]:
    from refold.simulator.tuning import OBJECTIVES

    return [name for name in OBJECTIVES if name.startswith(incomplete)]


@dataclass(frozen=True, slots=True)
class _TunedPolicy:
    policy: Annotated[
        str, option("POLICY", "Policy to tune: a name or a Python file.", complete=_complete_policies)
    ] = "refold"
    settings: Settings = None
    ranges: Annotated[
        list[str] | None,
        option(
            "KEY=LOW:HIGH|A,B,…",
            "Range or values of a setting (default: what the policy declares; --set keeps one fixed); repeatable.",
            "--range",
        ),
    ] = None

    def select(self, watch: str | None) -> SelectedPolicy:
        """Return the policy with the settings that are fixed."""
        from refold.cli.inputs import parse_policy

        return parse_policy(self.policy, parse_settings(self.settings, watch=watch))

    def tuned(self, selected: SelectedPolicy) -> TunedPolicy:
        """Return the policy with the settings that vary: those with a range, unless they are set."""
        from refold.cli.inputs import parse_ranges
        from refold.simulator import default_settings, setting_ranges
        from refold.simulator.tuning import Space, TunedPolicy

        name, defaults = selected.policy, default_settings(selected.policy)
        ranges = {**setting_ranges(name), **parse_ranges(self.ranges or [], name, defaults)}
        varied = {key: one for key, one in ranges.items() if key not in selected.settings}
        if not varied:
            raise BadInput(f"no setting of {name} varies; give a range, such as --range KEY=1:10")
        return TunedPolicy(name, Space(varied, selected.settings, _is_valid(name)), defaults)


REPORT_SHARE = 0.4
"""Share of the jobs, the latest, that are reported on. Settings are chosen on the earlier ones."""


@dataclass(frozen=True, slots=True)
class _SearchOptions:
    """How long to search, and for what."""

    trials: Annotated[int, option("N", "Number of settings to try.", min=1, max=100_000)] = 48
    time: Annotated[str | None, option("TIME", "Try no further settings after this time.")] = None
    workers: Annotated[int, option("N", "Number of processes that simulate.", min=1, max=256)] = 1
    seed: Annotated[int, option("N", "Random seed of the search.", min=0, max=2**62)] = 0
    baselines: Annotated[str, option("NAME,…", "Policies that the settings have to beat.")] = DEFAULT_BASELINES

    def select_baselines(self, tuned: SelectedPolicy) -> list[SelectedPolicy]:
        """Return the policies to compare with; the tuned policy itself is compared with its default settings anyway."""
        from refold.cli.inputs import parse_policies

        names = [name.strip() for name in self.baselines.split(",") if name.strip()]
        return parse_policies([name for name in names if name != tuned.policy], [], {})


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which settings to choose."""

    objective: Annotated[
        str | None,
        option(
            "NAME",
            "What to minimise: balanced, delay, tail, wide, fairness or preemptions (default: balanced).",
            complete=_complete_objectives,
        ),
    ] = None
    weights: Annotated[str | None, option("NAME=W,…", "Weights of the measures, such as delay=2,tail=1.")] = None
    pick: Annotated[
        int | None, option("N", "Choose this point of the trade-off (default: the best by the objective).", min=1)
    ] = None

    def parse(self) -> Objective:
        from refold.simulator.tuning import OBJECTIVES, Objective

        if self.weights is None:
            name = self.objective or "balanced"
            if name not in OBJECTIVES:
                raise UnknownName("objective", name, OBJECTIVES)
            return OBJECTIVES[name]
        if self.objective is not None:
            raise BadInput("--objective and --weights both say what to minimise: leave one of them out")
        weights = {}
        for text in self.weights.split(","):
            name, _, value = text.partition("=")
            try:
                weights[name.strip()] = float(value)
            except ValueError:
                raise BadInput(f"--weights {text}: expected NAME=WEIGHT, such as delay=2") from None
        return Objective(weights)


@with_option_groups
def tune(
    *,
    history: OptionalTrace = None,
    cluster: ClusterFile = None,
    source: SourceOptions,
    policy: _TunedPolicy,
    search: _SearchOptions,
    choice: _Choice,
    experiment: ExperimentOptions,
    out: Annotated[Path, option("DIR", "Folder of the study, the report and the policy file.")] = Path("refold-tune"),
    as_json: AsJson = False,
) -> None:
    """Choose the settings of a policy on one part of a history, and report on a later part.

    Prints numbered points of the trade-off between mean delay, tail, wide jobs, fairness and preemptions, with
    confidence intervals on jobs that the search has not seen. If the chosen point is better there than the default
    settings and the baselines, writes a policy file for `refold serve --policy`; otherwise recommends nothing. Ctrl-C
    stops the search, and the same command continues it.

    Examples: refold tune jobs.csv --cluster 16x8:A100 --trials 100 --workers 8 ·
    refold tune --from slurm --since 90d
    """
    from refold.cli import output_folder, prepare_experiment, trace_notes
    from refold.cli.inputs import KeptHistory
    from refold.cli.views import describe_verdict, tuning_tables
    from refold.simulator.tuning import Goal, split_history

    objective, fixed = choice.parse(), policy.select(experiment.watch)
    others, reader = search.select_baselines(fixed), source.reader(history)
    if history is None and reader is None:
        raise BadInput("no job history given: name a trace file, or use --from slurm")
    kept = KeptHistory(out / HISTORY_FILE, reader) if reader else None
    with output_folder(out):
        read = kept.read if kept else None
        workload, [fixed, *others] = prepare_experiment(history or "", cluster, [fixed, *others], experiment, read)
        split = split_history([job.submitted for job in workload.jobs], REPORT_SHARE)
        if kept:
            kept.write()
        goal = Goal(objective, tuple(map(_baseline, others)), choice.pick)
        result = _run(workload, split, policy.tuned(fixed), goal, search, out)
    report = result.report
    written = _write_policy(out / POLICY_FILE, workload, result) if report.is_recommended else None
    picture = _write_picture(out / PICTURE_FILE, f"{fixed.policy} on {workload.name}", result)
    if as_json:
        print_json(_document(workload, result, written, picture))
        return
    print_notes(trace_notes(workload))
    print_tables(*tuning_tables(f"{fixed.policy} on {workload}", result))
    print_line(describe_verdict(report))
    print_line(f"report: {picture}")
    if written:
        print_line(f"policy file: {written} (refold serve --policy {written})")
    elif (out / POLICY_FILE).exists():
        print_notes([f"{out / POLICY_FILE} was written by an earlier command"])


def _run(
    workload: Workload, split: Split, policy: TunedPolicy, goal: Goal, search: _SearchOptions, out: Path
) -> TuningResult:
    """Search and report; results are kept in the study of the output folder."""
    from time import monotonic

    import numpy as np

    from refold.cli import start_tuning_runs, stoppable, study_inputs
    from refold.cli.views import progress
    from refold.simulator.tuning import Study, TrialBudget, Tuner, expected_slices

    submitted = np.array([job.submitted for job in workload.jobs])
    study = Study(out / STUDY_FILE, study_inputs(workload, [policy.name, *(one.policy for one in goal.baselines)]))
    ends = monotonic() + parse_duration_option("--time", search.time) if search.time else inf
    budget = TrialBudget(search.trials, lambda: monotonic() < ends)
    slice_jobs = sum(part.simulated for part in split.slices) / len(split.slices)
    jobs = expected_slices(search.trials, len(split.slices)) * slice_jobs
    jobs += (len(goal.baselines) + EXPECTED_POINTS) * split.report.simulated
    gpus = np.array([job.demand.total_gpus for job in workload.jobs], dtype=np.float64)
    with (
        stoppable(f"the same command continues with what is in {out / STUDY_FILE}"),
        progress(f"tuning {policy.name}", jobs) as advance,
        start_tuning_runs(workload, study, search.workers, advance) as runs,
    ):
        tuner = Tuner(split, submitted, gpus, runs.run, search.seed)
        return tuner.tune(policy, goal, budget)


def _is_valid(policy: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that says whether a policy takes settings."""
    from refold.simulator import make_policy

    def is_valid(settings: Mapping[str, Any]) -> bool:
        try:
            make_policy(policy, settings)
        except RefoldError:
            return False
        return True

    return is_valid


def _baseline(policy: SelectedPolicy) -> ReportPolicy:
    from refold.simulator.tuning import ReportPolicy

    return ReportPolicy("oracle" if policy.oracle else "baseline", policy.name, policy.policy, policy.settings)


def _write_policy(path: Path, workload: Workload, result: TuningResult) -> Path:
    """Write the chosen settings, with how they were chosen."""
    from refold import __version__
    from refold.simulator import PolicyFile

    report = result.report
    assert report.chosen is not None
    row = report.row(report.chosen)
    settings = {name: value for name, value in row.policy.settings.items() if name not in NOT_WRITTEN}
    tuned = {
        "history": workload.name,
        "jobs": len(workload.jobs),
        "reported_jobs": report.jobs,
        "objective": dict(report.objective.weights),
        "score": {"value": round(row.score.value, 4), "low": round(row.score.low, 4), "high": round(row.score.high, 4)},
        "refold": __version__,
    }
    _write_policy_file(path, PolicyFile(row.policy.policy, settings, tuned))
    return path


def _write_policy_file(path: Path, file: PolicyFile) -> None:
    """Write a policy file. The path of a Python file in it becomes relative to its folder."""
    from os.path import relpath

    import msgspec
    import yaml

    if file.name.endswith(".py"):
        name = relpath(Path(file.name).resolve(), path.parent.resolve())
        file = msgspec.structs.replace(file, name=name)
    comment = f"# Settings of a policy, for example: refold serve --policy {path}\n"
    try:
        document = yaml.safe_dump(msgspec.to_builtins(file), sort_keys=False, allow_unicode=True)
        path.write_text(comment + document, encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def _write_picture(path: Path, title: str, result: TuningResult) -> Path:
    """Write the chart of the trade-off."""
    from refold.cli.views import current_command_line, describe_parts, describe_verdict
    from refold.simulator.tuning import render_trade_off

    verdict = describe_verdict(result.report)
    page = render_trade_off(result.report, title, describe_parts(result), verdict, current_command_line())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None
    return path


def _document(workload: Workload, result: TuningResult, written: Path | None, picture: Path) -> object:
    from refold.cli.views import describe_verdict

    report = result.report
    return {
        "history": workload.name,
        "skipped_rows": workload.skipped_rows,
        "tried": result.tried,
        "finalists": result.finalists,
        "report": report,
        "recommended": report.is_recommended,
        "verdict": describe_verdict(report),
        "policy_file": written and str(written),
        "picture": str(picture),
    }
