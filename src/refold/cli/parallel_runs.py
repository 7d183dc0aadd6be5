"""Simulate a workload under several policies: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from refold.cli.experiment import run_policy, simulate_policy
from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.views import Advance, progress
from refold.cli.worker_processes import WorkerProcesses, worker_processes
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.simulator.results import JobMeasures, ReportRun
    from refold.simulator.tuning import HistoryPart, PartRun, Study, StudyInputs


Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


def run_policies(workload: Workload, policies: Sequence[SelectedPolicy], processes: int = 1) -> list[ReportRun]:
    """Simulate the workload under each policy; results are in the given order for any number of processes."""
    if processes == 1 or len(policies) == 1:
        return [run_policy(workload, policy) for policy in policies]
    with (
        worker_processes(workload, min(processes, len(policies)), "--processes") as workers,
        progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance,
    ):
        found = dict(map_items(workers, _simulate, policies, advance))
    return [found[number] for number in range(len(policies))]


def run_policies_on_ray(workload: Workload, policies: Sequence[SelectedPolicy]) -> list[ReportRun]:
    """Simulate the workload under each policy on a Ray cluster; results are in the given order."""
    from refold.engines.ray import RayTasks, connected, load_ray

    ray = load_ray("--workers ray")
    items = [_with_absolute_path(policy) for policy in policies]
    with connected(ray), progress(f"{len(policies)} policies", len(policies) * len(workload.jobs)) as advance:
        results = RayTasks(ray).map(_simulate_on_ray, workload, items, advance)
    return [_unpack(result) for result in results]


def _with_absolute_path(policy: SelectedPolicy) -> SelectedPolicy:
    """Return a policy that a worker with another working directory finds, if it is a file."""
    path = Path(policy.policy)
    return replace(policy, policy=str(path.resolve())) if path.is_file() else policy


def _simulate(workload: Workload, policy: SelectedPolicy, advance: Advance) -> ReportRun:
    return simulate_policy(workload, policy, None, advance)


def _simulate_on_ray(
    workload: Workload, policy: SelectedPolicy, advance: Callable[..., None]
) -> ReportRun | _SerialisedError:
    return _try(_simulate, workload, policy, advance)


def map_items(
    workers: WorkerProcesses[Shared],
    function: Callable[[Shared, Item, Advance], Result],
    items: Sequence[Item],
    advance: Advance,
) -> Iterator[tuple[int, Result]]:
    """Yield the number and the result of each item as soon as it is there; the first error is raised."""
    for number, result in workers.map(partial(_try, function), items, advance):
        yield number, _unpack(result)


def _try(
    function: Callable[[Shared, Item, Advance], Result], shared: Shared, item: Item, advance: Advance
) -> Result | _SerialisedError:
    try:
        return function(shared, item, advance)
    except RefoldError as error:
        return _SerialisedError(str(error), getattr(error, "frames", ""))


class _SerialisedError:
    """An error as text, to send between processes: exceptions whose constructor takes more than a message cannot be."""

    def __init__(self, text: str, frames: str) -> None:
        self._text, self._frames = text, frames

    def error(self) -> Exception:
        from refold.cli.policy_guard import PolicyFailed

        return PolicyFailed(self._text, self._frames)


def _unpack(result: Result | _SerialisedError) -> Result:
    if isinstance(result, _SerialisedError):
        raise result.error()
    return result


# Simulate parts of a history under policies with different settings: used by `tune`.


class TuningRuns:
    """Simulates parts of a history, in this process or in others; results are kept in a study."""

    def __init__(
        self, workload: Workload, study: Study, workers: WorkerProcesses[Workload] | None, advance: Advance
    ) -> None:
        self._workload, self._study, self._workers, self._advance = workload, study, workers, advance

    def run(self, runs: Sequence[PartRun]) -> list[JobMeasures]:
        """Return the results in the given order; those that the study has are not simulated again."""
        missing = [run for run in runs if self._study.get(run) is None]
        self._advance(sum(run.part.simulated for run in runs) - sum(run.part.simulated for run in missing))
        for number, result in self._simulate(missing):
            self._study.add(missing[number], result)
        found = (self._study.get(run) for run in runs)
        return [result for result in found if result is not None]

    def _simulate(self, runs: Sequence[PartRun]) -> Iterator[tuple[int, JobMeasures]]:
        if self._workers is not None:
            yield from map_items(self._workers, simulate_part, runs, self._advance)
            return
        for number, run in enumerate(runs):
            yield number, simulate_part(self._workload, run, self._advance)


@contextmanager
def start_tuning_runs(workload: Workload, study: Study, workers: int, advance: Advance) -> Iterator[TuningRuns]:
    """Start worker processes, if more than one is requested, and end them at the end."""
    if workers == 1:
        yield TuningRuns(workload, study, None, advance)
        return
    with worker_processes(workload, workers, "--workers") as processes:
        yield TuningRuns(workload, study, processes, advance)


def simulate_part(workload: Workload, run: PartRun, advance: Advance) -> JobMeasures:
    """Simulate a part of the history, and return the measures of those of its jobs that are measured."""
    import numpy as np

    from refold.simulator.results import measure_jobs

    part, policy = run.part, SelectedPolicy(run.policy, run.settings, run.policy)
    history = simulate_policy(workload_of_part(workload, part), policy, None, advance).history
    position = {job.id: number for number, job in enumerate(history.jobs.jobs)}
    measured = [position[job.id] for job in workload.jobs[part.measured : part.last]]
    return measure_jobs(history).of(np.array(measured))


def workload_of_part(workload: Workload, part: HistoryPart) -> Workload:
    """Return the simulated jobs of a part, with the faults of their time."""
    jobs = workload.jobs[part.first : part.last]
    ids = {job.id for job in jobs}
    never_end = [one for one in workload.never_end if one.job in ids]
    faults = [fault for fault in workload.faults if fault.returned > jobs[0].submitted]
    return replace(workload, jobs=jobs, never_end=never_end, faults=faults)


def study_inputs(workload: Workload, policies: Sequence[str]) -> StudyInputs:
    """Return checksums of everything that results depend on; `policies` may be Python files."""
    from refold import __version__
    from refold.simulator.tuning import StudyInputs

    values = {
        "jobs": _checksum(workload.jobs),
        "cluster": _checksum(workload.cluster),
        "overheads": _checksum(workload.costs),
        "faults": _checksum([list(workload.faults), list(workload.never_end)]),
        "job speeds": _checksum(repr(workload.charging)),
        "version": __version__,
    }
    files = {path: _checksum(Path(path).read_text(encoding="utf-8")) for path in policies if path.endswith(".py")}
    return StudyInputs(values | files)


def _checksum(value: Any) -> str:
    import msgspec

    return sha256(msgspec.json.encode(value, enc_hook=repr)).hexdigest()[:16]
