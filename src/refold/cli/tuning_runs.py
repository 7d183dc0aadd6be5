"""Simulate parts of a history under policies with different settings: used by `tune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli.experiment import simulate_policy
from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.parallel_runs import map_items
from refold.cli.views import Advance
from refold.cli.worker_processes import WorkerProcesses, worker_processes

if TYPE_CHECKING:
    from refold.simulator.results import JobMeasures
    from refold.simulator.tuning import HistoryPart, PartRun, Study, StudyInputs


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
