"""Why jobs wait, said once each: a reason is repeated only when it has become another."""

from __future__ import annotations

from collections.abc import Container, Sequence

from refold.core import View
from refold.model import Job, Reason, Start, Wait
from refold.packing import Placer


class Reasons:
    """Collects what a decision says of waiting jobs. A `placer` may lack more than nodes have: the power of racks."""

    def __init__(self, placer: Placer | None = None) -> None:
        self._placer = placer if placer is not None and placer.minds_power else None
        self._lacks_power: dict[str, bool] = {}
        self._said: dict[str, Reason] = {}
        self._waits: list[Wait] = []

    def no_place(self, view: View, job: Job) -> None:
        """It was looked at and no node has room for it."""
        if self._placer is not None:
            self._no_place_or_power(self._placer, view, job)
        elif self._is_new(job, Reason.RESOURCES):
            self._waits.append(Wait(job.id, Reason.RESOURCES, shortage=view.shortage(job.demand)))

    def _no_place_or_power(self, placer: Placer, view: View, job: Job) -> None:
        """The view does not count power: so it is told again when it is power that is lacking, and when no longer."""
        free = view.trial().free
        lacks_power = free.has_room_for_one(job.demand)  # there is room, and still it has no place
        if self._is_new(job, Reason.RESOURCES) or self._lacks_power.get(job.id) != lacks_power:
            self._lacks_power[job.id] = lacks_power
            self._waits.append(Wait(job.id, Reason.RESOURCES, shortage=placer.shortage(free, job.demand)))

    def promised_to_others(self, job: Job) -> None:
        """There is room for it, but not for as long as it will last: others before it are promised it."""
        if self._is_new(job, Reason.RESERVED):
            self._waits.append(Wait(job.id, Reason.RESERVED))

    def releasing(self, job: Job) -> None:
        """Its place is being given back."""
        if self._is_new(job, Reason.RELEASING):
            self._waits.append(Wait(job.id, Reason.RELEASING))

    def of_everybody(
        self, view: View, starts: Sequence[Start], awaited: Container[str], behind: Container[str] = ()
    ) -> tuple[Wait, ...]:
        """Why everybody waits who is not started; who is `behind` others is not looked at."""
        self.note_everybody(view, starts, awaited, behind)
        return self.collect(view, starts)

    def note_everybody(
        self, view: View, starts: Sequence[Start], awaited: Container[str], behind: Container[str] = ()
    ) -> None:
        """Whose place is being given back, and who has none."""
        started = {start.job for start in starts}
        for job in view.waiting.values():
            if job.id in awaited:
                self.releasing(job)
            elif job.id not in started and job.id not in behind:
                self.no_place(view, job)

    def nobody_waits(self) -> None:
        """Whatever was said is past."""
        self._said.clear()
        self._lacks_power.clear()

    def collect(self, view: View, starts: Sequence[Start]) -> tuple[Wait, ...]:
        """What was said in this look of those who are not started after all.

        Those who came now and were not looked at stand behind the others.
        """
        changes = view.changes
        for start in starts:
            self._lacks_power.pop(start.job, None)
            if self._said.pop(start.job, None) is not None and self._waits:
                self._waits = [wait for wait in self._waits if wait.job != start.job]
        for job_id in changes.gone:
            self._said.pop(job_id, None)
            self._lacks_power.pop(job_id, None)
        if len(starts) < len(view.waiting):
            self._say_who_is_ahead(view, starts)
        waits, self._waits = tuple(self._waits), []
        return waits

    def _say_who_is_ahead(self, view: View, starts: Sequence[Start]) -> None:
        started = {start.job for start in starts}
        fresh = [
            job.id
            for job in (*view.changes.returned, *view.changes.submitted)
            if job.id not in self._said and job.id not in started
        ]
        before = len(view.waiting) - len(starts) - len(fresh)
        for position, job_id in enumerate(fresh):
            self._said[job_id] = Reason.AHEAD
            self._waits.append(Wait(job_id, Reason.AHEAD, ahead=before + position))

    def _is_new(self, job: Job, reason: Reason) -> bool:
        if self._said.get(job.id) is reason:
            return False
        self._said[job.id] = reason
        return True
