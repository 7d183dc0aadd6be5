"""What the daemon needs from an engine, which launches its runs: this machine, Kubernetes, Slurm or Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from refold.client.api import Caller, JobStatus, Submission
from refold.core import NodeUsed, PastJob
from refold.model import WHOLE, Cluster, Job, MiB, Milli, Seconds
from refold.server.admission import Admission
from refold.server.backend import Backend, ExportedOf, LimitsOf, MachineUse, Report, SecretsOf
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.metrics import Metric
from refold.server.store import Store
from refold.server.subscribers import Subscriber


class ServedBackend(Backend, Protocol):
    """A back end, and what the API needs of it."""

    def kill(self, job_id: str) -> None:
        """Kill the run of a job without a grace period, if there is one."""

    def enforcement(self) -> str:
        """Describe which limits on GPUs and GPU shares are enforced; '' if there is nothing to say."""


class BackendOptions(NamedTuple):
    """What a back end is made with: where to report, the folder of output, and what runs get."""

    report: Report
    logs: Path
    grace: Seconds
    exported: ExportedOf
    secrets: SecretsOf
    max_output_bytes: int
    limits_of: LimitsOf


class OutputCopier(Protocol):
    """Copies output that is elsewhere to the files that have the output of runs."""

    async def refresh(self, job: str, run: int, instance: int) -> None:
        """Copy the new output of an instance. Raises Refused if there is none, and none can be had."""

    async def copy_progress(self) -> None:
        """Copy the output of jobs that report progress in it."""


def no_metrics() -> list[Metric]:
    return []


class EngineParts(NamedTuple):
    """What takes part in the steps of the loop, what runs beside it, and the metrics of the engine."""

    subscribers: Sequence[Subscriber]
    tasks: Sequence[Coroutine[Any, Any, None]]
    metrics: Callable[[], list[Metric]] = no_metrics


StatusOf = Callable[[Caller, str], JobStatus]


class ClusterEngine(Protocol):
    """A connection to a cluster, and the cluster as it was when the daemon began to schedule it.

    `limits_text`: whether CPUs and memory that jobs request are enforced; '' if the engine itself sees to it.
    """

    limits_text: str = ""

    @property
    def cluster(self) -> Cluster:
        """The cluster that is scheduled."""

    def rebuild(self) -> None:
        """Take the nodes as they are now."""

    def history(self) -> list[PastJob]:
        """Return the jobs of the cluster that have succeeded without this daemon."""

    def make_backend(self, options: BackendOptions) -> ServedBackend:
        """Return a back end for the cluster as it is."""

    def notes(self) -> list[str]:
        """Return what the operator should know about runs."""
        return []

    def run_note(self, job: str) -> str:
        """Return what the engine says about the run of a job that has not begun, or about its last one, or ''."""
        del job
        return ""

    def retry_delay(self, job: str) -> Seconds:
        """Return how long a job whose run was given back waits before the next; 0: not at all."""
        del job
        return 0.0

    async def job_use(self) -> Mapping[str, MachineUse]:
        """Return how many CPUs and how much memory jobs use at present, as far as it is measured."""
        return {}

    def complete(self, _: Submission, job: Job) -> Job:
        """Add to a submitted job what the engine knows, such as the nodes on which it may be placed."""
        return job

    def make_output(self, state: LiveState, logs: Path, max_bytes: int) -> OutputCopier | None:
        """Return what copies output, at most this much of each instance; None: it comes to the files by itself."""
        del state, logs, max_bytes
        return None

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return the parts that connect the queue with the cluster. `end`: ends the daemon, if the nodes change."""


def load_daemon_id(folder: Path, key: str, size: int = 8) -> str:
    """Return what tells the runs of the daemon with this state folder from those of others: `size` random bytes.

    It is created with the folder. `key`: that of the store's `meta` table.
    """
    with Store(folder) as store:
        found: str | None = store.reader.read_meta(key, str)
        if found is None:
            found = os.urandom(size).hex()
            store.write_meta(key, found)
        return found


# What others than the scheduler use on the nodes of an engine, as events.


class UseByOthers:
    """Reports changes of what others use. What an earlier daemon has reported still counts, until it is replaced."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._reported: dict[int, NodeUsed] = {}

    def change(self, node: int, gpus: int, cpu_milli: Milli, memory_mib: MiB) -> NodeUsed | None:
        """Return what others use on a node, if that is not what was reported last. Negative numbers count as 0."""
        before = self._reported.get(node) or self._state.view.used_by_others(node)
        used = NodeUsed(node, self._choose_gpus(before, max(0, gpus)), max(0, cpu_milli), max(0, memory_mib))
        if used == before:
            return None
        self._reported[node] = used
        return used

    def _choose_gpus(self, before: NodeUsed, count: int) -> tuple[int, ...]:
        """Return GPUs that no run has: those that were reported before, then the last ones.

        Which GPU of a node is used is decided by the engine; the scheduler only counts them.
        """
        free = [gpu for gpu, milli in enumerate(self._state.view.free_gpu_milli(before.node)) if milli == WHOLE]
        candidates = [*before.gpus, *(gpu for gpu in reversed(free) if gpu not in before.gpus)]
        return tuple(sorted(candidates[:count]))
