"""Somebody beside a policy who watches runs: those that go nowhere are flagged, and after a grace ended, by rule.

The policy within decides as if nobody watched: it is not shown looks that only the watch asked for, and what it starts
and stops is passed on untouched. A run that is ended looks to it like one whose job was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf, isfinite
from typing import Any, Protocol

import msgspec

from refold.core import Changes, Policy, View
from refold.errors import BadInput, BadValue, UnknownName
from refold.model import HOUR, KEEP, MINUTE, Allocation, Decision, End, Flag, Job, Run, Seconds, text_from_seconds
from refold.predict import Predictor

TAIL = 0.99
"""Of so many jobs, predictions say, one like it has ended by then: beyond lies the tail."""

ROUNDING: Seconds = 1e-6
"""Work that is more by less than this is the same, summed otherwise."""

SOON: Seconds = 1.0
"""A run that begins beyond its limit, since earlier ones have used it up, is looked at when it is there."""


class WatchRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is watched for; nothing is that was not asked for."""

    no_progress: Seconds | None = None
    """A run that computes for so long without a report of more work done makes no progress."""
    silent_too: bool = False
    """Whether that holds of jobs, too, that have never reported any."""
    beyond_limit: bool = False
    """Whether the time limit that its user gave is held against a job."""
    beyond_tail: float | None = None
    """A job is far beyond the tail when it has run so many times as long as 99 of 100 like it were predicted to."""
    tail_at_least: Seconds = HOUR
    """Nobody is beyond the tail sooner than this."""
    end_beyond_tail: bool = False
    """Whether such a job is ended as well: a prediction is no proof."""
    grace: Seconds = 5 * MINUTE
    """How long lies between the flag and the end."""
    per_job: bool = False
    """Whether a job that names its own time without progress is held to that, even if it has never reported any."""

    def __post_init__(self) -> None:
        if self.no_progress is None and not self.per_job and not self.beyond_limit and self.beyond_tail is None:
            raise BadValue("a watch needs a rule: no_progress, per_job, beyond_limit or beyond_tail")
        for name, value in (("no_progress", self.no_progress), ("beyond_tail", self.beyond_tail)):
            if value is not None and not 0 < value < inf:
                raise BadValue(f"{name} of a watch is > 0, not {value}")
        for name, value in (("grace", self.grace), ("tail_at_least", self.tail_at_least)):
            if not 0 <= value < inf:
                raise BadValue(f"{name} of a watch is seconds ≥ 0, not {value}")
        if self.silent_too and self.no_progress is None:
            raise BadValue("silent_too of a watch is about no_progress: say for how long")
        if self.end_beyond_tail and self.beyond_tail is None:
            raise BadValue("end_beyond_tail of a watch is about beyond_tail: say how far")

    @staticmethod
    def of(given: WatchRules | Mapping[str, Any]) -> WatchRules:
        """Rules as they are in a journal's header; seconds are numbers there."""
        if isinstance(given, WatchRules):
            return given
        if not isinstance(given, Mapping):
            raise BadInput(f"watch is {given!r}, expected rules: {', '.join(WatchRules.__struct_fields__)}")
        for name in given:
            if name not in WatchRules.__struct_fields__:
                raise UnknownName("rule of a watch", str(name), WatchRules.__struct_fields__)
        try:
            return msgspec.convert(dict(given), WatchRules)
        except msgspec.ValidationError as error:
            raise BadInput(f"watch is {dict(given)}: {error}") from None


class _WatchedRun:
    """A run: since when it computes or has last made progress, with how much done then, and what it is flagged for."""

    __slots__ = ("done", "flagged", "has_what_it_asked_for", "job", "number", "reports", "since", "steps", "tail")

    def __init__(self, job: Job, number: int, allocation: Allocation, since: Seconds) -> None:
        self.job = job
        self.number = number
        self.has_what_it_asked_for = allocation.gpu_milli >= job.demand.total_gpu_milli
        self.since = since
        self.done: Seconds = 0.0
        self.steps = 0
        self.reports = False
        self.tail: Seconds = inf
        self.flagged: dict[str, Seconds] = {}

    def will_have_done(self, seconds: Seconds) -> Seconds:
        """When it has run for so long in all, if it goes on; a smaller share of GPUs than asked for is no measure."""
        return max(self.since, self.since + seconds - self.done) if self.has_what_it_asked_for else inf

    def has_run(self, now: Seconds) -> str:
        """For how long, in all its runs, so far as what they did was kept."""
        return text_from_seconds(self.done + now - self.since)


class _Rule(Protocol):
    """From when on a run breaks a rule, if it goes on as it does; and what is then said of it."""

    name: str
    ends: bool

    def broken_at(self, run: _WatchedRun) -> Seconds: ...

    def says(self, run: _WatchedRun, now: Seconds) -> str: ...


class _NoProgress:
    name, ends = "no progress", True

    def __init__(self, seconds: Seconds | None, silent_too: bool, per_job: bool) -> None:
        self._seconds = inf if seconds is None else seconds
        self._silent_too, self._per_job = silent_too, per_job

    def broken_at(self, run: _WatchedRun) -> Seconds:
        own = run.job.launch.no_progress if self._per_job else None
        if own is not None:
            return run.since + own
        return run.since + self._seconds if run.reports or self._silent_too else inf

    def says(self, run: _WatchedRun, now: Seconds) -> str:
        return f"no progress for {text_from_seconds(now - run.since)}"


class _BeyondLimit:
    name, ends = "beyond limit", True

    def broken_at(self, run: _WatchedRun) -> Seconds:
        return run.will_have_done(run.job.time_limit or inf)

    def says(self, run: _WatchedRun, now: Seconds) -> str:
        return (
            f"has run for {run.has_run(now)}, beyond its time limit of {text_from_seconds(run.job.time_limit or inf)}"
        )


class _BeyondTail:
    name = "beyond tail"

    def __init__(self, factor: float, at_least: Seconds, ends: bool) -> None:
        self._factor, self._at_least, self.ends = factor, at_least, ends

    def broken_at(self, run: _WatchedRun) -> Seconds:
        return run.will_have_done(max(self._at_least, self._factor * run.tail))

    def says(self, run: _WatchedRun, now: Seconds) -> str:
        tail = text_from_seconds(run.tail)
        return f"has run for {run.has_run(now)}, and of 100 such jobs 99 were expected to end within {tail}"


def _listed(rules: WatchRules) -> list[_Rule]:
    listed: list[_Rule] = []
    if rules.no_progress is not None or rules.per_job:
        listed.append(_NoProgress(rules.no_progress, rules.silent_too, rules.per_job))
    if rules.beyond_limit:
        listed.append(_BeyondLimit())
    if rules.beyond_tail is not None:
        listed.append(_BeyondTail(rules.beyond_tail, rules.tail_at_least, rules.end_beyond_tail))
    return listed


class RunWatch:
    """A policy, and the runs that it has started with what is known of their progress."""

    def __init__(self, policy: Policy, rules: WatchRules) -> None:
        self.name = policy.name
        self.oracle = bool(getattr(policy, "oracle", False))
        self._policy = policy
        self._grace = rules.grace
        self._rules = _listed(rules)
        self._runs: dict[str, _WatchedRun] = {}
        self._reporting: set[str] = set()
        self._tails = _Tails() if rules.beyond_tail is not None else None
        self._looks = _CheckTimes()
        self._wakes: list[Seconds] = []
        self._asked: Seconds | None = None
        self._unseen: list[Run] = []
        self._looks_away = False

    def look_away(self) -> None:
        """From now on nobody is flagged or ended: for imagined futures, in which runs report nothing."""
        self._looks_away = True

    def decide(self, view: View) -> Decision:
        """What the policy decides, and which runs are flagged and ended beside that."""
        if self._looks_away:
            return self._decision_within(view)
        self._note_changes(view)
        decision = self._decision_within(view)
        left_alone = {stop.job for stop in decision.stops} | {reshape.job for reshape in decision.reshapes}
        flags: list[Flag] = []
        ends: list[End] = []
        for run in self._due(view):
            if run.job.id not in left_alone:
                self._judge(run, view.now, flags, ends)
        for start in decision.starts:
            if (job := view.waiting.get(start.job)) is not None:  # else it will be refused
                self._begin(view, job, view.runs_so_far(job.id) + 1, start.allocation)
        return self._with(decision, flags, ends)

    # The policy within.

    def _decision_within(self, view: View) -> Decision:
        wakes = self._wakes
        asked_for = bool(wakes) and wakes[0] <= view.now
        while wakes and wakes[0] <= view.now:
            heappop(wakes)
        if self._looks.is_due(view.now) and not asked_for and not _anything_new(view.changes):
            self._unseen += view.changes.started
            return KEEP
        decision = self._policy.decide(_Later(view, self._unseen) if self._unseen else view)
        self._unseen = []
        if decision.wake_at is not None:
            heappush(wakes, decision.wake_at)
        return decision

    def _with(self, decision: Decision, flags: list[Flag], ends: list[End]) -> Decision:
        """Both together. When to be woken is said once, and again after what may have been refused."""
        moments = [*self._wakes[:1], *self._looks.next()]
        wake_at = min(moments, default=None)
        news = bool(flags or ends)
        if wake_at == self._asked and not news and decision.wake_at is None:
            return decision
        changes = decision.starts or decision.stops or decision.reshapes
        self._asked = None if changes or news else wake_at
        if wake_at == decision.wake_at and not news:
            return decision
        return msgspec.structs.replace(
            decision, flags=(*decision.flags, *flags), ends=(*decision.ends, *ends), wake_at=wake_at
        )

    # What is known of runs.

    def _note_changes(self, view: View) -> None:
        changes = view.changes
        if self._tails is not None:
            self._tails.note_arrivals(changes, view.now)
        self._reporting.difference_update(changes.gone)
        for run in changes.started:  # those of the last decision are known; one that was reshaped begins by itself
            known, present = self._runs.get(run.job), view.runs.get(run.job)
            if present == run and (known is None or known.number != run.number):
                self._begin(view, view.active[run.job], run.number, run.allocation)
        for run in changes.progressed:
            self._progressed(view, run)
        for run in changes.ended:
            self._ended(view, run)

    def _begin(self, view: View, job: Job, number: int, allocation: Allocation) -> None:
        """A run begins now, or did so since the last look."""
        since = view.computing_since(job.id)
        run = self._runs[job.id] = _WatchedRun(job, number, allocation, view.now if since is None else since)
        run.done = view.done(job.id) - (view.now - run.since)
        run.steps = view.steps_done(job.id)[0]
        run.reports = job.id in self._reporting
        if self._tails is not None:
            run.tail = self._tails.of(job, view.now)
        self._look_again(run, view.now + SOON)

    def _progressed(self, view: View, told: Run) -> None:
        """A report of more, or that the run has begun to compute: from then on the time without any is counted."""
        run = self._present(view, told.job)
        since = None if run is None else view.computing_since(told.job)
        if run is None or since is None or run.number != told.number:
            return
        done, steps = view.done(told.job) - (view.now - since), view.steps_done(told.job)[0]
        sooner = since - done < run.since - run.done - ROUNDING  # it does more than a second's work in a second
        if not run.reports and (done > run.done + ROUNDING or steps > run.steps):
            run.reports = sooner = True
            self._reporting.add(told.job)
        run.since, run.done, run.steps = since, done, steps
        if run.flagged:
            self._withdraw_flags(run, view.now)
        elif sooner:  # else the look that is to come is soon enough
            self._look_again(run)

    def _withdraw_flags(self, run: _WatchedRun, now: Seconds) -> None:
        for rule in self._rules:
            if rule.name in run.flagged and rule.broken_at(run) > now:
                del run.flagged[rule.name]
        self._look_again(run)

    def _ended(self, view: View, ended: Run) -> None:
        run = self._runs.get(ended.job)
        if run is not None and run.number == ended.number:
            del self._runs[ended.job]
        if ended.job in view.waiting or ended.job in view.runs:
            return
        self._reporting.discard(ended.job)
        if self._tails is not None:
            lasted = None if run is None or ended.stopping else run.done + view.now - run.since
            self._tails.over(ended.job, lasted, view.now)

    def _present(self, view: View, job_id: str) -> _WatchedRun | None:
        """A run that goes on; of one that was ordered and did not come to be, nothing is known any more."""
        run, present = self._runs.get(job_id), view.runs.get(job_id)
        if run is None or present is None or present.number != run.number or present.stopping:
            return None
        return run

    # Judging them.

    def _due(self, view: View) -> Iterator[_WatchedRun]:
        for job_id in self._looks.due(view.now):
            run = self._present(view, job_id)
            if run is not None:
                yield run

    def _judge(self, run: _WatchedRun, now: Seconds, flags: list[Flag], ends: list[End]) -> None:
        for rule in self._rules:
            if rule.broken_at(run) > now:
                continue
            if rule.name not in run.flagged:
                run.flagged[rule.name] = now
                flags.append(Flag(run.job.id, rule.says(run, now) + self._what_will_come(rule)))
            if rule.ends and run.flagged[rule.name] + self._grace <= now:
                ends.append(End(run.job.id, rule.says(run, now)))
                self._looks.at(now + (self._grace or MINUTE), run.job.id)  # should the decision be refused
                return
        self._look_again(run)

    def _what_will_come(self, rule: _Rule) -> str:
        if not rule.ends:
            return ""
        return f"; ended in {text_from_seconds(self._grace)} if that stays so" if self._grace else "; ended now"

    def _look_again(self, run: _WatchedRun, not_before: Seconds = -inf) -> None:
        self._looks.at(max(not_before, min(self._next(rule, run) for rule in self._rules)), run.job.id)

    def _next(self, rule: _Rule, run: _WatchedRun) -> Seconds:
        if rule.name not in run.flagged:
            return rule.broken_at(run)
        return run.flagged[rule.name] + self._grace if rule.ends else inf


class _CheckTimes:
    """When which job is looked at next. A look that has become needless is still taken: it was asked for."""

    def __init__(self) -> None:
        self._heap: list[tuple[Seconds, str]] = []
        self._next_of: dict[str, Seconds] = {}

    def at(self, moment: Seconds, job_id: str) -> None:
        """Look at a job then, unless that will be done sooner."""
        if isfinite(moment) and moment < self._next_of.get(job_id, inf):
            self._next_of[job_id] = moment
            heappush(self._heap, (moment, job_id))

    def is_due(self, now: Seconds) -> bool:
        """Whether a moment has come that was asked for."""
        return bool(self._heap) and self._heap[0][0] <= now

    def due(self, now: Seconds) -> list[str]:
        """The jobs to look at now, each once."""
        jobs: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            moment, job_id = heappop(self._heap)
            if self._next_of.get(job_id) == moment:
                del self._next_of[job_id]
                jobs.append(job_id)
        return jobs

    def next(self) -> list[Seconds]:
        """The next moment, if there is one."""
        return [moment for moment, _ in self._heap[:1]]


class _Tails:
    """Within how long 99 of 100 jobs like one were expected to end when it first began."""

    def __init__(self) -> None:
        self._predictor = Predictor()
        self._tail_of: dict[str, Seconds] = {}
        self._jobs: dict[str, Job] = {}

    def note_arrivals(self, changes: Changes, now: Seconds) -> None:
        for job, lasted in changes.remembered:
            self._predictor.submitted(job, now)
            self._predictor.finished(job, lasted, now)
        for job in changes.submitted:
            self._come(job, now)
        for job_id in changes.gone:
            self.over(job_id, None, now)

    def _come(self, job: Job, now: Seconds) -> None:
        self._jobs[job.id] = job
        self._predictor.submitted(job, now)

    def of(self, job: Job, now: Seconds) -> Seconds:
        if job.id not in self._jobs:  # it was going on when the journal began
            self._come(job, now)
        if job.id not in self._tail_of:
            self._tail_of[job.id] = self._predictor.expect(job, now).quantile(TAIL)
        return self._tail_of[job.id]

    def over(self, job_id: str, lasted: Seconds | None, now: Seconds) -> None:
        """A job is over after so long; None: it did not come to an end of its own."""
        self._tail_of.pop(job_id, None)
        job = self._jobs.pop(job_id, None)
        if job is None or lasted is None:
            self._predictor.forget(job_id)
        else:
            self._predictor.finished(job, lasted, now)


class _Later(View):
    """A view for somebody who has not looked for a while: runs that began then have begun since."""

    def __init__(self, view: View, unseen: list[Run]) -> None:
        self.__dict__.update(view.__dict__)
        self._unseen = unseen

    @property
    def changes(self) -> Changes:
        """What has happened since the policy within last looked."""
        now, merged = self._state.changes, Changes()
        for kind in Changes.__slots__:
            setattr(merged, kind, getattr(now, kind))
        merged.started = [*self._unseen, *now.started]
        return merged


def _anything_new(changes: Changes) -> bool:
    """Whether something has happened since the last decision that is not of its own making, as its starts are."""
    arrivals = changes.submitted or changes.returned or changes.gone or changes.remembered
    return bool(arrivals or changes.progressed or changes.ended or changes.nodes)
