"""What a job has behind it, and what has happened since the policy last looked."""

from __future__ import annotations

from math import inf

from refold.model import Job, Run, Seconds


class Progress:
    """What a job has behind it: runs so far, work and steps kept, GPU-seconds of the runs that have ended."""

    __slots__ = ("computing_since", "done", "gpu_seconds", "runs", "said_started", "steps", "steps_at")

    def __init__(self) -> None:
        self.runs = 0
        self.done: Seconds = 0.0
        self.steps = 0
        self.steps_at: Seconds = -inf
        self.gpu_seconds = 0.0
        self.computing_since: Seconds | None = None
        self.said_started = False


class Changes:
    """What has happened since the policy last looked. `remembered` is what lasted how long before the journal began."""

    __slots__ = ("ended", "gone", "nodes", "progressed", "remembered", "returned", "started", "submitted")

    def __init__(self) -> None:
        self.submitted: list[Job] = []
        self.returned: list[Job] = []
        self.gone: list[str] = []
        self.started: list[Run] = []
        self.progressed: list[Run] = []
        self.ended: list[Run] = []
        self.nodes: list[int] = []
        self.remembered: list[tuple[Job, Seconds]] = []

    def forget(self) -> None:
        """The policy has looked."""
        if self.submitted:
            self.submitted.clear()
        if self.started:
            self.started.clear()
        if self.ended:
            self.ended.clear()
        if self.returned or self.progressed or self.gone or self.nodes or self.remembered:
            for rare in (self.returned, self.progressed, self.gone, self.nodes, self.remembered):
                rare.clear()

    @property
    def freed(self) -> bool:
        """Whether a job that had no place could have one now."""
        return bool(self.ended or self.nodes)
