"""Simulations of Rubick's traces: what is simulated, what comes out, and keeping it.

A simulation is asked for as a Point and answered with Figures. The answer is kept under build/ by a hash of
everything it depends on: the point, the jobs, what is known and measured, and every source file that the policy, the
simulator and the measures import. So a second run takes no time, and after a change only what it touches runs again.
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

from benchmarks.measure import REPOSITORY
from benchmarks.scheduling import variants, world
from refold.journal import History, HistoryJournal
from refold.model import HOUR, Cluster, Job, Tenant
from refold.plans import Speeds
from refold.policies import POLICIES
from refold.registry import make_policy, settings_of
from refold.results import broken_guarantees, measure
from refold.simulator import Costs, MeasuredSpeeds, simulate

KEPT = REPOSITORY / "build" / "scheduling"
PROCESSES = 2
REPORT_EVERY = 60.0
QUOTA = (Tenant("A", 64.0),)
"""Of the multi-tenant trace: all GPUs for tenant A, none for B (Rubick, section 7)."""

LAST = "pollux"
"""Takes as long as all others together: what the others say need not wait for it."""

ALWAYS = (
    "refold.simulator.simulation",
    "refold.simulator.measured_speeds",
    "refold.results.measures",
    "refold.results.guarantees",
    "benchmarks.scheduling.runs",
    "benchmarks.scheduling.world",
    "benchmarks.scheduling.variants",
)
"""What every figure depends on, whatever the policy."""

NOT_FOLLOWED = ("refold.policies", "refold.registry")
"""Tables of names: a new line there changes no figure."""


class Point(msgspec.Struct, frozen=True):
    """One simulation.

    `load`: how many times as fast jobs arrive. `large`: the share of large models; None: as in the trace. `error`: how
    far off believed speeds are (`variants.MistakenSpeeds`).
    """

    policy: str
    trace: str = "random-plan"
    restart: float = 78.0
    settings: tuple[tuple[str, Any], ...] = ()
    load: float = 1.0
    large: float | None = None
    error: float = 0.0
    seed: int = 0


class Figures(msgspec.Struct, frozen=True):
    """What came out. Times are hours.

    `changes` counts how often runs were stopped before their end, for each job, and `reshapes` those of them after
    which the job went on at once in another shape. `broken_believed` and `broken_measured` are jobs.
    """

    jobs: int
    finished: int
    mean: float
    p99: float
    makespan: float
    guaranteed: float | None
    best_effort: float | None
    changes: float
    reshapes: float
    lost: float
    gpu_hours: float
    promised: int
    broken_believed: int
    broken_measured: int
    cpu_seconds: float


def figures_of(points: Iterable[Point]) -> dict[Point, Figures]:
    """The answers: those that are kept, and the others simulated in two processes."""
    wanted = list(dict.fromkeys(points))
    found = {point: kept for point in wanted if (kept := _kept(point)) is not None}
    missing = [point for point in wanted if point not in found]
    missing.sort(key=lambda point: point.policy == LAST)
    if missing:
        found |= _simulate_all(missing)
    return {point: found[point] for point in wanted}


def _simulate_all(points: Sequence[Point]) -> dict[Point, Figures]:
    world.knowledge()  # is kept in files: made before two processes make it
    found = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        begun = {pool.submit(simulated, point, str(_path(point))): point for point in points}
        for done, answer in enumerate(as_completed(begun), start=1):
            point = begun[answer]
            found[point] = figures = answer.result()
            _say(f"{done}/{len(points)}  {_told(point)}: mean {figures.mean:.3f} h, {figures.cpu_seconds:.1f} s of CPU")
    return found


def _told(point: Point) -> str:
    changed = [f"{name}={value}" for name, value in msgspec.structs.asdict(point).items() if name != "policy" and value]
    return f"{point.policy} ({', '.join(changed)})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def simulated(point: Point, path: str) -> Figures:
    """Simulate, measure, and keep what came out, unless a source file has changed since somebody asked."""
    try:
        figures = fresh(point)
    except Exception as error:
        error.add_note(f"in the simulation of {_told(point)}")
        raise
    for kept in (_content, _imports, _imported_by):
        kept.cache_clear()
    if _path(point) != Path(path):
        _say(f"sources have changed meanwhile, so this is not kept: {_told(point)}")
        return figures
    KEPT.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(msgspec.json.encode(figures))
    return figures


def fresh(point: Point) -> Figures:
    """Simulate and measure, whatever is kept."""
    cluster = cluster_for(point.trace)
    charge, journal = _charge(cluster), HistoryJournal()
    policy = make_policy(point.policy, _settings(point))
    costs = Costs(restart=point.restart, report_every=REPORT_EVERY)
    believing = variants.mistaken(point.error, point.seed) if point.error else nullcontext()
    before = time.process_time()
    with believing:
        simulate(jobs_of(point), cluster, policy, journal=journal, charge=charge, costs=costs)
    return _figures(journal.history(cluster), charge, _grace(point), time.process_time() - before)


def _figures(history: History, charge: MeasuredSpeeds, grace: float, cpu_seconds: float) -> Figures:
    found = measure(history)
    speeds = Speeds(history.cluster, world.knowledge())
    believed = broken_guarantees(history, speeds, grace=grace)
    truly = broken_guarantees(history, speeds, measured=charge, grace=grace)
    by_class = {group.name: group.completion.mean for group in found.classes}
    mean, p99, makespan = found.completion.mean, found.completion.p99, found.makespan
    assert mean is not None and p99 is not None and makespan is not None
    return Figures(
        jobs=found.jobs,
        finished=found.outcomes.finished,
        mean=mean / HOUR,
        p99=p99 / HOUR,
        makespan=makespan / HOUR,
        guaranteed=_hours(by_class.get("guaranteed")),
        best_effort=_hours(by_class.get("best-effort")),
        changes=found.preemptions / found.jobs,
        reshapes=found.reshapes / found.jobs,
        lost=found.overhead_share or 0.0,
        gpu_hours=found.gpu_hours,
        promised=believed.promised,
        broken_believed=believed.jobs,
        broken_measured=truly.jobs,
        cpu_seconds=cpu_seconds,
    )


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR


def _settings(point: Point) -> dict[str, Any]:
    """What the policy is told: what is known of models, and what a restart costs, if it wants to know."""
    told = {"knowledge": world.knowledge(), "restart_seconds": point.restart}
    taken = settings_of(point.policy)
    return {name: value for name, value in told.items() if name in taken} | dict(point.settings)


def _grace(point: Point) -> float:
    """How long it takes to get GPUs back: a restart, and a round of a policy that has rounds."""
    return point.restart + float(settings_of(point.policy).get("round_seconds", 0.0))


def cluster_for(trace: str) -> Cluster:
    """The testbed, with the quota if the trace has tenants."""
    return world.cluster(tenants=QUOTA if trace == "multi-tenant" else ())


@cache
def _charge(cluster: Cluster) -> MeasuredSpeeds:
    return world.charge(cluster)


def jobs_of(point: Point) -> tuple[Job, ...]:
    """The jobs of the trace, changed as the point says."""
    jobs = world.jobs(point.trace)
    if point.large is not None:
        jobs = variants.with_large_share(jobs, point.large, _charge(cluster_for(point.trace)), point.seed)
    return jobs if point.load == 1 else variants.at_load(jobs, point.load)


# --- keeping ------------------------------------------------------------------------------------------------


def _kept(point: Point) -> Figures | None:
    path = _path(point)
    return msgspec.json.decode(path.read_bytes(), type=Figures) if path.exists() else None


def _path(point: Point) -> Path:
    depends = hashlib.sha256(msgspec.json.encode(point))
    depends.update(_known())
    depends.update(msgspec.json.encode(jobs_of(point)))
    modules = _imported_by((POLICIES[point.policy].module, *ALWAYS))
    for path in sorted({_file(module) for module in modules}):
        depends.update(_content(path))
    return KEPT / f"{point.policy}-{depends.hexdigest()[:20]}.json"


@cache
def _known() -> bytes:
    """What is known and measured, and the catalogue."""
    catalogue = sorted((REPOSITORY / "src" / "refold" / "catalogue").glob("*.yaml"))
    known = msgspec.json.encode((world.knowledge(), world.table()))
    return b"".join([known, *(path.read_bytes() for path in catalogue)])


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _imported_by(modules: tuple[str, ...]) -> frozenset[str]:
    """Every module of ours that these import, and those that these import, and so on."""
    seen: set[str] = set()
    left = list(modules)
    while left:
        module = left.pop()
        if module not in seen and module not in NOT_FOLLOWED:
            seen.add(module)
            left += _imports(module)
    return frozenset(seen)


@cache
def _imports(module: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in ast.walk(ast.parse(_content(_file(module)))):
        if isinstance(part, ast.Import):
            found += [name.name for name in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module and not part.level:
            found += [part.module, *(f"{part.module}.{name.name}" for name in part.names)]
    return tuple(name for name in found if name.startswith(("refold.", "benchmarks.")) and _file(name).exists())


def _file(module: str) -> Path:
    root = REPOSITORY / "src" if module.startswith("refold.") else REPOSITORY
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
