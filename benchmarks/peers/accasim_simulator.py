"""AccaSim's simulator (PyPI `accasim`), run on the same jobs and nodes as Refold.

For a fair comparison, GPUs are its only resource, jobs come from memory instead of a parsed file, all output is off,
and requests, which are known to fit, are not checked. Its `FirstInFirstOut` is strict, like our `fifo`; its
`EASYBackfilling` is given exact durations, like our `easy` with known durations. AccaSim imports `collections.Mapping`,
which newer Python versions removed; it is restored in this process before the import.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import io
import json
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from refold.model import Cluster, Job

Allocator = Literal["first-fit", "best-fit"]
Order = Literal["fifo", "easy"]
ALLOCATORS: tuple[Allocator, ...] = ("first-fit", "best-fit")

GPU = "core"
"""Name of the GPU resource. AccaSim has a fast path for `core`: it skips nodes without free cores."""

TIME_OFFSET = 1_000_000
"""Added to all times, because AccaSim treats a time of 0 as "not started"."""


class Result(NamedTuple):
    """Result of a run. Times are seconds."""

    cpu_seconds: float
    finished: int
    mean_waiting: float


def run(jobs: Sequence[Job], cluster: Cluster, allocator: Allocator, order: Order = "fifo") -> Result:
    """Simulate with AccaSim. The CPU time is that of its event loop alone."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        simulator = _simulator(jobs, cluster, allocator, order, Path(folder))
        before = time.process_time()
        simulator.start_simulation()
        elapsed = time.process_time() - before
    waiting = simulator.mapper.wtimes
    return Result(elapsed, simulator.mapper.finished, sum(waiting) / max(1, len(waiting)))


def _simulator(jobs: Sequence[Job], cluster: Cluster, allocator: Allocator, order: Order, folder: Path) -> Any:
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    from accasim.base.allocator_class import BestFit, FirstFit
    from accasim.base.event_class import AttributeType, JobFactory
    from accasim.base.resource_manager_class import Resources
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut, JobVerification
    from accasim.base.simulator_class import Simulator
    from accasim.utils.reader_class import Reader

    class FromMemory(Reader):  # type: ignore[misc]
        """A reader that yields jobs from memory."""

        def __init__(self, factory: Any) -> None:
            Reader.__init__(self, factory)
            self._requests = map(_request, jobs)

        def _read(self, _current_time: int) -> dict[str, Any] | None:
            request = next(self._requests, None)
            if request is None:
                self.stop_submission()
            return request

    system = _system(cluster)
    config = folder / "system.json"
    config.write_text(json.dumps(system))
    manager = Resources(system["groups"], system["resources"]).resource_manager()
    factory = JobFactory(manager, job_attrs=[AttributeType("expected_duration", int)])
    scheduler = FirstInFirstOut if order == "fifo" else EASYBackfilling
    allocation = FirstFit() if allocator == "first-fit" else BestFit()
    return Simulator(
        str(folder / "jobs"),
        str(config),
        scheduler(allocation, job_check=JobVerification.NO_CHECK),
        resource_manager=manager,
        reader=FromMemory(factory),
        job_factory=factory,
        scheduling_output=False,
        statistics_output=False,
        show_statistics=False,
        RESULTS_FOLDER_PATH=str(folder),
        LOG_LEVEL="ERROR",
    )


def _system(cluster: Cluster) -> dict[str, Any]:
    """Return AccaSim's description of the cluster: a node group for each number of GPUs."""
    sizes = collections.Counter(node.gpus for node in cluster.nodes)
    return {
        "groups": {f"gpus{size}": {GPU: size} for size in sizes},
        "resources": {f"gpus{size}": count for size, count in sizes.items()},
        "equivalence": {"processor": {GPU: 1}},
    }


def _request(job: Job) -> dict[str, Any]:
    """Return AccaSim's description of a job. Times are whole seconds, as in the traces."""
    duration = int(job.work or 0)
    return {
        "job_id": job.id,
        "queued_time": TIME_OFFSET + int(job.submitted),
        "duration": duration,
        "expected_duration": duration,
        "requested_nodes": job.demand.instances,
        "requested_resources": {GPU: job.demand.gpus},
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress AccaSim's output and the warnings about invalid escape sequences in its source."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
