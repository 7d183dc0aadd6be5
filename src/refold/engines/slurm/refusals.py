"""What Slurm has refused: nodes that are left alone for a while, and jobs that wait for a limit."""

from __future__ import annotations

from collections.abc import Mapping
from time import localtime, strftime

from refold.core import NodeDrained
from refold.model import MINUTE, Seconds

PREFIX = "slurm: "
"""Nodes that are down for a reason that begins so return when Slurm says so; others when an operator does."""

AVOID_SECONDS: Seconds = 5 * MINUTE
"""How long nodes are not used after Slurm has not started a run there."""

LIMIT_DELAYS: tuple[Seconds, ...] = (1 * MINUTE, 2 * MINUTE, 5 * MINUTE)
"""How long a job that reaches a limit of Slurm waits, the first time and later; the last one from then on."""

ABSENT = ("", "None", "N/A")


class Refusals:
    """What was refused, and why runs that were submitted have not begun. Times are Unix seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Seconds, str]] = {}
        self._waiting: dict[str, str] = {}
        self._limits: dict[str, list[str]] = {}

    def refuse(self, nodes: Mapping[int, str], why: str, now: Seconds) -> list[NodeDrained]:
        """Leave nodes alone where a run was not started; return what is reported of them. `nodes`: names by index."""
        self._nodes |= dict.fromkeys(nodes.values(), (now + AVOID_SECONDS, why))
        return [NodeDrained(index, PREFIX + self.node_reason(nodes[index], now)) for index in sorted(nodes)]

    def node_reason(self, node: str, now: Seconds) -> str:
        """Return why a node is left alone, or ''."""
        until, why = self._nodes.get(node, (0.0, ""))
        return f"{why}; next try at {strftime('%H:%M', localtime(until))}" if now < until else ""

    def note_waiting(self, job: str, reason: str | None) -> None:
        """Note why the run of a job has not begun; None: it has, or there is none."""
        if reason is None:
            self._waiting.pop(job, None)
        else:
            self._waiting[job] = reason

    def note_limit(self, job: str, reason: str) -> None:
        """Note that a limit of Slurm keeps a job from starting."""
        self._limits.setdefault(job, []).append(reason)

    def note_started(self, job: str) -> None:
        """Note that a run of a job has begun, or that the job has ended: nothing keeps it from starting."""
        self._limits.pop(job, None)
        self._waiting.pop(job, None)

    def retry_delay(self, job: str) -> Seconds:
        """Return how long a job waits before it is submitted again; 0 if no limit keeps it from starting."""
        count = len(self._limits.get(job, ()))
        return LIMIT_DELAYS[min(count, len(LIMIT_DELAYS)) - 1] if count else 0.0

    def is_too_long(self, job: str) -> bool:
        """Whether a job was refused because of its time limit, by a QOS or an association."""
        return any("MaxWall" in reason for reason in self._limits.get(job, ()))

    def text(self, job: str) -> str:
        """Return why the run of a job has not begun, or ''."""
        if (reason := self._waiting.get(job)) is not None:
            return "submitted to Slurm" if reason in ABSENT else f"submitted to Slurm ({reason})"
        limits = self._limits.get(job)
        return f"a limit of Slurm: {limits[-1]}" if limits else ""
