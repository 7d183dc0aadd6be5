"""Simulations of Rubick's traces, with a cache of the results.

The summary of a scenario is cached under build/ by a hash of everything it depends on: the scenario, the jobs, the
knowledge of policies, the measurements, and every source file that the policy, the simulator and the measures import.
A second run takes no time; after a change, only the affected scenarios are simulated again.
"""

from __future__ import annotations

import ast
import hashlib
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.scheduling import testbed, variants
from refold.journal import History, HistoryJournal
from refold.model import HOUR, Cluster, Job, Tenant
from refold.planning.plans import Speeds
from refold.policies import POLICIES
from refold.simulator import Costs, MeasuredSpeeds, simulate
from refold.simulator.registry import default_settings, make_policy
from refold.simulator.results import compute_spread, find_violations, measure

CACHE = REPOSITORY / "build" / "scheduling"
PROCESSES = 2
REPORT_SECONDS = 60.0
QUOTA = (Tenant("A", 64.0),)
"""Quotas of the multi-tenant trace: all GPUs for tenant A, none for B (Rubick, section 7)."""

SLOWEST_POLICY = "pollux"
"""Takes as long as all others together, so it is simulated last."""

COMMON_DEPENDENCIES = (
    "refold.simulator.simulation",
    "refold.simulator.costs",
    "refold.simulator.results.measures",
    "refold.simulator.results.guarantees",
    "benchmarks.scheduling.runs",
    "benchmarks.scheduling.testbed",
    "benchmarks.scheduling.variants",
)
"""Modules on which the results of every policy depend."""

IGNORED_MODULES = ("refold.policies", "refold.simulator.registry")
"""Tables of names, in which a new line does not change any result."""


class Scenario(msgspec.Struct, frozen=True):
    """The parameters of one simulation.

    `load`: arrival rate relative to the trace. `large`: share of large models; None: as in the trace. `error`: spread
    of the errors of predicted speeds (`variants.ErroneousSpeeds`). `first_start`: cost of the first start of a job.
    `draw`: permutation of the jobs (`variants.permuted`).
    """

    policy: str
    trace: str = "random-plan"
    restart: float = 78.0
    settings: tuple[tuple[str, Any], ...] = ()
    load: float = 1.0
    large: float | None = None
    error: float = 0.0
    seed: int = 0
    first_start: float = 0.0
    draw: int = 0


class ModelTimes(msgspec.Struct, frozen=True):
    """Completion times, in hours, of the jobs that train one model."""

    jobs: int
    mean: float
    median: float


class Summary(msgspec.Struct, frozen=True):
    """Results of a simulation. Times are hours.

    `preemptions` and `reshapes` are per job; a reshape is a preemption after which the job continues immediately with
    another shape. `guaranteed_jobs` have a guarantee; `predicted_violations` and `measured_violations` count jobs whose
    guarantee is violated by predicted and by measured speeds. `overhead` is the share of GPU time lost to starts and
    restarts. `models` are the trained models by name.
    """

    jobs: int
    finished: int
    mean: float
    median: float
    p99: float
    makespan: float
    guaranteed: float | None
    best_effort: float | None
    preemptions: float
    reshapes: float
    overhead: float
    gpu_hours: float
    guaranteed_jobs: int
    predicted_violations: int
    measured_violations: int
    models: dict[str, ModelTimes]
    cpu_seconds: float


def summarise_all(scenarios: Iterable[Scenario]) -> dict[Scenario, Summary]:
    """Return the summaries of all scenarios, from the cache or simulated in two processes."""
    unique = list(dict.fromkeys(scenarios))
    found = {scenario: summary for scenario in unique if (summary := cached(scenario)) is not None}
    missing = [scenario for scenario in unique if scenario not in found]
    missing.sort(key=lambda scenario: scenario.policy == SLOWEST_POLICY)
    if missing:
        found |= _simulate_all(missing)
    return {scenario: found[scenario] for scenario in unique}


def _simulate_all(scenarios: Sequence[Scenario]) -> dict[Scenario, Summary]:
    testbed.knowledge()  # is cached in files; compute it before both processes do
    found = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        futures = {
            pool.submit(simulate_and_cache, scenario, str(cache_path(scenario))): scenario for scenario in scenarios
        }
        for done, future in enumerate(as_completed(futures), start=1):
            scenario = futures[future]
            found[scenario] = summary = future.result()
            times = f"mean {summary.mean:.3f} h, {summary.cpu_seconds:.1f} s of CPU"
            _print_progress(f"{done}/{len(scenarios)}  {_describe(scenario)}: {times}")
    return found


def _describe(scenario: Scenario) -> str:
    parameters = msgspec.structs.asdict(scenario)
    changed = [f"{name}={value}" for name, value in parameters.items() if name != "policy" and value]
    return f"{scenario.policy} ({', '.join(changed)})"


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def simulate_and_cache(scenario: Scenario, path: str) -> Summary:
    """Simulate a scenario and cache its summary, unless a source file has changed in the meantime."""
    try:
        summary = simulate_scenario(scenario)
    except Exception as error:
        error.add_note(f"in the simulation of {_describe(scenario)}")
        raise
    for function in (_content, _imports, _imported_by):
        function.cache_clear()
    if cache_path(scenario) != Path(path):
        _print_progress(f"source files have changed, not cached: {_describe(scenario)}")
        return summary
    CACHE.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(msgspec.json.encode(summary))
    return summary


def simulate_scenario(scenario: Scenario) -> Summary:
    """Simulate a scenario without using the cache."""
    cluster = cluster_for(scenario.trace)
    charge, journal = _charge(cluster), HistoryJournal()
    policy = make_policy(scenario.policy, settings_for(scenario.policy, scenario.restart) | dict(scenario.settings))
    costs = Costs(start=scenario.first_start, restart=scenario.restart, report_every=REPORT_SECONDS)
    errors = variants.with_model_errors(scenario.error, scenario.seed) if scenario.error else nullcontext()
    before = time.process_time()
    with errors:
        simulate(jobs_of(scenario), cluster, policy, journal=journal, charge=charge, costs=costs)
    return _summarise(journal.history(cluster), charge, _grace(scenario), time.process_time() - before)


def _summarise(history: History, charge: MeasuredSpeeds, grace: float, cpu_seconds: float) -> Summary:
    found = measure(history)
    speeds = Speeds(history.cluster, testbed.knowledge())
    predicted = find_violations(history, speeds, grace=grace)
    measured = find_violations(history, speeds, measured=charge, grace=grace)
    by_class = {group.name: group.completion.mean for group in found.classes}
    mean, median, p99, makespan = found.completion.mean, found.completion.median, found.completion.p99, found.makespan
    assert mean is not None and median is not None and p99 is not None and makespan is not None
    return Summary(
        jobs=found.jobs,
        finished=found.outcomes.finished,
        mean=mean / HOUR,
        median=median / HOUR,
        p99=p99 / HOUR,
        makespan=makespan / HOUR,
        guaranteed=_hours(by_class.get("guaranteed")),
        best_effort=_hours(by_class.get("best-effort")),
        preemptions=found.preemptions / found.jobs,
        reshapes=found.reshapes / found.jobs,
        overhead=found.overhead_share or 0.0,
        gpu_hours=found.gpu_hours,
        guaranteed_jobs=predicted.guaranteed_jobs,
        predicted_violations=predicted.violated_jobs,
        measured_violations=measured.violated_jobs,
        models=_by_model(history),
        cpu_seconds=cpu_seconds,
    )


def _by_model(history: History) -> dict[str, ModelTimes]:
    """Return the completion times of finished jobs by model, the fastest model first."""
    workloads = np.array([job.workload for job in history.jobs.jobs])
    found = {}
    for workload in np.unique(workloads).tolist():
        spread = compute_spread((history.jobs.ended - history.jobs.submitted)[workloads == workload] / HOUR)
        if spread.mean is not None and spread.median is not None:
            found[workload] = ModelTimes(spread.count, spread.mean, spread.median)
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR


def settings_for(policy: str, restart: float) -> dict[str, Any]:
    """Return the knowledge of models and the restart cost, as far as the policy has such settings."""
    available = {"knowledge": testbed.knowledge(), "restart_seconds": restart}
    accepted = default_settings(policy)
    return {name: value for name, value in available.items() if name in accepted}


def _grace(scenario: Scenario) -> float:
    """Return the time in which a guarantee may be violated: a restart, and a round if the policy has rounds."""
    return scenario.restart + float(default_settings(scenario.policy).get("round_seconds", 0.0))


def cluster_for(trace: str) -> Cluster:
    """Return the testbed, with quotas if the trace has tenants."""
    return testbed.cluster(tenants=QUOTA if trace == "multi-tenant" else ())


@cache
def _charge(cluster: Cluster) -> MeasuredSpeeds:
    return testbed.charged_speeds(cluster)


def jobs_of(scenario: Scenario) -> tuple[Job, ...]:
    """Return the jobs of the trace, modified as the scenario specifies."""
    jobs = variants.permuted(testbed.jobs(scenario.trace), scenario.draw)
    if scenario.large is not None:
        jobs = variants.with_large_share(jobs, scenario.large, _charge(cluster_for(scenario.trace)), scenario.seed)
    return jobs if scenario.load == 1 else variants.at_load(jobs, scenario.load)


# --- cache --------------------------------------------------------------------------------------------------


def cached(scenario: Scenario) -> Summary | None:
    """Return the summary of a scenario from the cache, or None."""
    path = cache_path(scenario)
    return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None


def cache_path(scenario: Scenario) -> Path:
    """Return the file of the cache for a scenario, as everything that it depends on is now."""
    key = hashlib.sha256(msgspec.json.encode(scenario))
    key.update(_common_data())
    key.update(msgspec.json.encode(jobs_of(scenario)))
    modules = _imported_by((POLICIES[scenario.policy].module, *COMMON_DEPENDENCIES))
    for path in sorted({_file(module) for module in modules}):
        key.update(_content(path))
    return CACHE / f"{scenario.policy}-{key.hexdigest()[:20]}.json"


@cache
def _common_data() -> bytes:
    """Return the knowledge of policies, the measurements and the catalogue."""
    catalogue = sorted((REPOSITORY / "src" / "refold" / "catalogue").glob("*.yaml"))
    data = msgspec.json.encode((testbed.knowledge(), testbed.measurements()))
    return b"".join([data, *(path.read_bytes() for path in catalogue)])


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _imported_by(modules: tuple[str, ...]) -> frozenset[str]:
    """Return all modules of this repository that these modules import, directly or indirectly, and themselves."""
    seen: set[str] = set()
    remaining = list(modules)
    while remaining:
        module = remaining.pop()
        if module not in seen and module not in IGNORED_MODULES:
            seen.add(module)
            remaining += _imports(module)
    return frozenset(seen)


@cache
def _imports(module: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(_content(_file(module)))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return tuple(name for name in found if name.startswith(("refold.", "benchmarks.")) and _file(name).exists())


def _file(module: str) -> Path:
    root = REPOSITORY / "src" if module.startswith("refold.") else REPOSITORY
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
