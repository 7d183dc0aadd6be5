# cython: boundscheck=True, wraparound=True
"""The progress of a job, and the changes of the state since the last call of the policy."""

from __future__ import annotations

from math import inf

from refold.model import ChangeWay, Job, Run, Seconds


class JobProgress:
    """The progress of a job: number of runs, work (seconds) and steps done, GPU-seconds of the ended runs."""

    __slots__ = (
        "change_costs",
        "changed_at",
        "changes",
        "computing_since",
        "done",
        "first_report",
        "gpu_seconds",
        "loss",
        "reported_start",
        "runs",
        "samples_per_second",
        "steps",
        "steps_at",
    )

    def __init__(self) -> None:
        self.runs = 0
        self.done: Seconds = 0.0
        self.steps = 0
        self.steps_at: Seconds = -inf
        self.gpu_seconds = 0.0
        self.computing_since: Seconds | None = None
        self.reported_start = False
        self.loss: float | None = None
        self.samples_per_second: float | None = None
        self.first_report: tuple[int, Seconds] | None = None
        """Steps and time of the first report of the current run with a speed."""
        self.change_costs: dict[ChangeWay, Seconds] = {}
        """What the last change in each way has cost, in seconds."""
        self.changes = 0
        """How often the policy has stopped or reshaped a run, and when it did so last."""
        self.changed_at: Seconds = -inf

    def record_steps(self, steps: int | None, now: Seconds) -> None:
        """Record the steps done, if they were reported."""
        if steps is not None:
            self.steps, self.steps_at = steps, now


class Changes:
    """The changes since the last call of the policy."""

    __slots__ = ("ended", "nodes", "past_jobs", "progressed", "removed", "requeued", "started", "submitted")

    def __init__(self) -> None:
        self.submitted: list[Job] = []
        """Jobs new to the queue."""
        self.requeued: list[Job] = []
        """Jobs that are queued again after a run."""
        self.removed: list[str] = []
        """Ids of jobs that left the queue without a run: cancelled, held, or adopted with their run."""
        self.started: list[Run] = []
        self.progressed: list[Run] = []
        self.ended: list[Run] = []
        self.nodes: list[int] = []
        """Nodes that went down or came up, or of which a GPU did."""
        self.past_jobs: list[tuple[Job, Seconds]] = []
        """Jobs that ended before the journal began, with their run times."""

    def clear(self) -> None:
        """Forget all changes: the policy has seen them."""
        if self.submitted:
            self.submitted.clear()
        if self.started:
            self.started.clear()
        if self.ended:
            self.ended.clear()
        if self.requeued or self.progressed or self.removed or self.nodes or self.past_jobs:
            for rare in (self.requeued, self.progressed, self.removed, self.nodes, self.past_jobs):
                rare.clear()

    @property
    def freed(self) -> bool:
        """Whether resources may have become free, so that jobs which did not fit may fit now."""
        return bool(self.ended or self.nodes)
