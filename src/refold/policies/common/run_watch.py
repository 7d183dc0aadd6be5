"""Run watch: a wrapper around a policy that flags runs without progress, and ends them after a grace period.

The wrapped policy decides as if there were no watch: it does not see rounds that only the watch requested, and its
starts and stops are passed on unchanged. A run ended by the watch looks to it like one whose job was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf, isfinite
from typing import Any, Protocol

import msgspec

from refold.core import Changes, Policy, View
from refold.errors import BadInput, BadValue, UnknownName
from refold.model import (
    HOUR,
    MINUTE,
    NO_CHANGE,
    Allocation,
    Decision,
    End,
    Flag,
    FlagRule,
    Job,
    Run,
    Seconds,
    format_duration,
)
from refold.predict import Predictor

TAIL_QUANTILE = 0.99
"""Quantile of the predicted run time beyond which the tail of the distribution begins."""

ROUNDING_WORK: Seconds = 1e-6
"""Differences in work below this are rounding."""

FIRST_CHECK_DELAY: Seconds = 1.0
"""A run whose limit was already used up by earlier runs is checked this long after its start, when it exists."""


class WatchRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules for runs; each applies only if it is set."""

    no_progress: Seconds | None = None
    """A run that computes for this long without reporting more work done makes no progress."""
    silent_too: bool = False
    """Whether `no_progress` also applies to jobs that have never reported progress."""
    beyond_limit: bool = False
    """Whether the time limit that the user gave is enforced."""
    beyond_tail: float | None = None
    """A job is beyond the tail when its run time exceeds this many times the 99 % quantile of its prediction."""
    tail_at_least: Seconds = HOUR
    """No job is beyond the tail before it has run for this long."""
    end_beyond_tail: bool = False
    """Whether jobs beyond the tail are ended; by default they are only flagged, since a prediction is not a proof."""
    grace: Seconds = 5 * MINUTE
    """Time between flagging and ending a run."""
    per_job: bool = False
    """Whether the job's own time without progress applies, even if the job has never reported progress."""
    limit_grace: Seconds | None = None
    """Time between flagging and ending a run beyond its time limit; None: that of the other rules."""

    def __post_init__(self) -> None:
        if self.no_progress is None and not self.per_job and not self.beyond_limit and self.beyond_tail is None:
            raise BadValue("watch has no rule, expected no_progress, per_job, beyond_limit or beyond_tail")
        for name, value in (("no_progress", self.no_progress), ("beyond_tail", self.beyond_tail)):
            if value is not None and not 0 < value < inf:
                raise BadValue(f"{name} of watch is {value}, expected > 0")
        limit_grace = 0.0 if self.limit_grace is None else self.limit_grace
        durations = (("grace", self.grace), ("limit_grace", limit_grace), ("tail_at_least", self.tail_at_least))
        for name, value in durations:
            if not 0 <= value < inf:
                raise BadValue(f"{name} of watch is {value}, expected seconds ≥ 0")
        if self.silent_too and self.no_progress is None:
            raise BadValue("silent_too of watch needs no_progress")
        if self.end_beyond_tail and self.beyond_tail is None:
            raise BadValue("end_beyond_tail of watch needs beyond_tail")

    @staticmethod
    def from_settings(settings: WatchRules | Mapping[str, Any]) -> WatchRules:
        """Return rules from a mapping as in a journal's header, where durations are numbers of seconds."""
        if isinstance(settings, WatchRules):
            return settings
        if not isinstance(settings, Mapping):
            raise BadInput(f"watch is {settings!r}, expected rules: {', '.join(WatchRules.__struct_fields__)}")
        for name in settings:
            if name not in WatchRules.__struct_fields__:
                raise UnknownName("watch rule", str(name), WatchRules.__struct_fields__)
        try:
            return msgspec.convert(dict(settings), WatchRules)
        except msgspec.ValidationError as error:
            raise BadInput(f"watch is {dict(settings)}: {error}") from None


class _WatchedRun:
    """A run: when it began to compute or last made progress, the work done by then, and the rules it is flagged for."""

    __slots__ = ("done", "flagged", "has_requested_gpus", "job", "number", "reports", "since", "steps", "tail")

    def __init__(self, job: Job, number: int, allocation: Allocation, since: Seconds) -> None:
        self.job = job
        self.number = number
        self.has_requested_gpus = allocation.gpu_milli >= job.demand.total_gpu_milli
        self.since = since
        self.done: Seconds = 0.0
        self.steps = 0
        self.reports = False
        self.tail: Seconds = inf
        self.flagged: dict[str, Seconds] = {}

    def reaches_at(self, seconds: Seconds) -> Seconds:
        """Return when the job's total run time reaches `seconds`; infinity on fewer GPUs than requested, since the run
        time on those is not comparable."""
        return max(self.since, self.since + seconds - self.done) if self.has_requested_gpus else inf

    def format_run_time(self, now: Seconds) -> str:
        """Return the run time of the job over all its runs as text, without work that was lost."""
        return format_duration(self.done + now - self.since)


class _Rule(Protocol):
    """A rule: when a run violates it if nothing changes, and the message for that."""

    name: FlagRule
    ends: bool
    grace: Seconds

    def violated_at(self, run: _WatchedRun) -> Seconds: ...

    def message(self, run: _WatchedRun, now: Seconds) -> str: ...


class _NoProgress:
    name: FlagRule = "no progress"
    ends = True

    def __init__(self, rules: WatchRules) -> None:
        self._seconds = inf if rules.no_progress is None else rules.no_progress
        self._silent_too, self._per_job = rules.silent_too, rules.per_job
        self.grace = rules.grace

    def violated_at(self, run: _WatchedRun) -> Seconds:
        own = run.job.launch.no_progress if self._per_job else None
        if own is not None:
            return run.since + own
        return run.since + self._seconds if run.reports or self._silent_too else inf

    def message(self, run: _WatchedRun, now: Seconds) -> str:
        return f"no progress for {format_duration(now - run.since)}"


class _BeyondLimit:
    name: FlagRule = "time limit"
    ends = True

    def __init__(self, rules: WatchRules) -> None:
        self.grace = rules.grace if rules.limit_grace is None else rules.limit_grace

    def violated_at(self, run: _WatchedRun) -> Seconds:
        return run.reaches_at(run.job.time_limit or inf)

    def message(self, run: _WatchedRun, now: Seconds) -> str:
        limit = format_duration(run.job.time_limit or inf)
        return f"has run for {run.format_run_time(now)}, beyond its time limit of {limit}"


class _BeyondTail:
    name: FlagRule = "unusual run time"

    def __init__(self, rules: WatchRules, factor: float) -> None:
        self._factor, self._at_least, self.ends = factor, rules.tail_at_least, rules.end_beyond_tail
        self.grace = rules.grace

    def violated_at(self, run: _WatchedRun) -> Seconds:
        return run.reaches_at(max(self._at_least, self._factor * run.tail))

    def message(self, run: _WatchedRun, now: Seconds) -> str:
        tail = format_duration(run.tail)
        return f"has run for {run.format_run_time(now)}; 99 of 100 such jobs were expected to end within {tail}"


def _make_rules(rules: WatchRules) -> list[_Rule]:
    enabled: list[_Rule] = []
    if rules.no_progress is not None or rules.per_job:
        enabled.append(_NoProgress(rules))
    if rules.beyond_limit:
        enabled.append(_BeyondLimit(rules))
    if rules.beyond_tail is not None:
        enabled.append(_BeyondTail(rules, rules.beyond_tail))
    return enabled


class RunWatch:
    """A policy with a watch on its runs."""

    def __init__(self, policy: Policy, rules: WatchRules) -> None:
        self.name = policy.name
        self.oracle = bool(getattr(policy, "oracle", False))
        self._policy = _WatchedPolicy(policy)
        self._rules = _make_rules(rules)
        self._runs: dict[str, _WatchedRun] = {}
        self._reporting: set[str] = set()
        """Jobs that have reported progress."""
        self._tails = _Tails() if rules.beyond_tail is not None else None
        self._checks = _CheckTimes()
        self._disabled = False

    def disable(self) -> None:
        """Stop flagging and ending runs: for simulated futures, in which runs report nothing."""
        self._disabled = True

    def decide(self, view: View) -> Decision:
        """Return the decision of the wrapped policy, with the runs to flag and to end."""
        if self._disabled:
            return self._policy.decide(view, self._checks.is_due(view.now))
        self._update(view)
        decision = self._policy.decide(view, self._checks.is_due(view.now))
        changing = {stop.job for stop in decision.stops} | {reshape.job for reshape in decision.reshapes}
        flags: list[Flag] = []
        ends: list[End] = []
        for run in self._due(view):
            if run.job.id not in changing:
                self._check(run, view.now, flags, ends)
        for start in decision.starts:
            if (job := view.waiting.get(start.job)) is not None:  # otherwise the start will be rejected
                self._begin(view, job, view.run_count(job.id) + 1, start.allocation)
        return self._policy.merge(decision, flags, ends, self._checks.next())

    # State of the runs.

    def _update(self, view: View) -> None:
        changes = view.changes
        if self._tails is not None:
            self._tails.update(changes, view.now)
        self._reporting.difference_update(changes.removed)
        for run in changes.started:  # starts of the last decision are known; reshaped runs begin without one
            known, current = self._runs.get(run.job), view.runs.get(run.job)
            if current == run and (known is None or known.number != run.number):
                self._begin(view, view.active[run.job], run.number, run.allocation)
        for run in changes.progressed:
            self._note_progress(view, run)
        for run in changes.ended:
            self._note_end(view, run)

    def _begin(self, view: View, job: Job, number: int, allocation: Allocation) -> None:
        """Watch a run that begins now, or began since the last round."""
        since = view.computing_since(job.id)
        run = self._runs[job.id] = _WatchedRun(job, number, allocation, view.now if since is None else since)
        run.done = view.done(job.id) - (view.now - run.since)
        run.steps = view.steps_done(job.id)[0]
        run.reports = job.id in self._reporting
        if self._tails is not None:
            run.tail = self._tails.for_job(job, view.now)
        self._schedule_check(run, view.now + FIRST_CHECK_DELAY)

    def _note_progress(self, view: View, reported: Run) -> None:
        """Note that a run reported progress or began to compute; time without progress counts from then on."""
        run = self._current_run(view, reported.job)
        since = None if run is None else view.computing_since(reported.job)
        if run is None or since is None or run.number != reported.number:
            return
        done, steps = view.done(reported.job) - (view.now - since), view.steps_done(reported.job)[0]
        sooner = since - done < run.since - run.done - ROUNDING_WORK  # more than a second of work per second
        if not run.reports and (done > run.done + ROUNDING_WORK or steps > run.steps):
            run.reports = sooner = True
            self._reporting.add(reported.job)
        run.since, run.done, run.steps = since, done, steps
        if run.flagged:
            self._withdraw_flags(run, view.now)
        elif sooner:  # otherwise the check that is already scheduled is early enough
            self._schedule_check(run)

    def _withdraw_flags(self, run: _WatchedRun, now: Seconds) -> None:
        for rule in self._rules:
            if rule.name in run.flagged and rule.violated_at(run) > now:
                del run.flagged[rule.name]
        self._schedule_check(run)

    def _note_end(self, view: View, ended: Run) -> None:
        run = self._runs.get(ended.job)
        if run is not None and run.number == ended.number:
            del self._runs[ended.job]
        if ended.job in view.waiting or ended.job in view.runs:
            return
        self._reporting.discard(ended.job)
        if self._tails is not None:
            duration = None if run is None or ended.stopping else run.done + view.now - run.since
            self._tails.remove(ended.job, duration, view.now)

    def _current_run(self, view: View, job_id: str) -> _WatchedRun | None:
        """Return the watched run of a job if it is running; None if it is stopping or its start was rejected."""
        run, current = self._runs.get(job_id), view.runs.get(job_id)
        if run is None or current is None or current.number != run.number or current.stopping:
            return None
        return run

    # Checks.

    def _due(self, view: View) -> Iterator[_WatchedRun]:
        for job_id in self._checks.pop_due(view.now):
            run = self._current_run(view, job_id)
            if run is not None:
                yield run

    def _check(self, run: _WatchedRun, now: Seconds, flags: list[Flag], ends: list[End]) -> None:
        for rule in self._rules:
            if rule.violated_at(run) > now:
                continue
            if rule.name not in run.flagged:
                run.flagged[rule.name] = now
                flags.append(Flag(run.job.id, rule.message(run, now) + self._consequence(rule), rule.name))
            if rule.ends and run.flagged[rule.name] + rule.grace <= now:
                ends.append(End(run.job.id, rule.message(run, now), rule.name))
                self._checks.schedule(now + (rule.grace or MINUTE), run.job.id)  # in case the decision is rejected
                return
        self._schedule_check(run)

    def _consequence(self, rule: _Rule) -> str:
        if not rule.ends:
            return ""
        if not rule.grace:
            return "; ended now"
        condition = "" if rule.name == "time limit" else " unless this changes"
        return f"; will be ended in {format_duration(rule.grace)}{condition}"

    def _schedule_check(self, run: _WatchedRun, not_before: Seconds = -inf) -> None:
        self._checks.schedule(max(not_before, min(self._next_check(rule, run) for rule in self._rules)), run.job.id)

    def _next_check(self, rule: _Rule, run: _WatchedRun) -> Seconds:
        if rule.name not in run.flagged:
            return rule.violated_at(run)
        return run.flagged[rule.name] + rule.grace if rule.ends else inf


class _WatchedPolicy:
    """The wrapped policy, which does not see rounds that only the watch requested, and its wake-up times."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._wakes: list[Seconds] = []
        """Heap of the wake-up times that the policy has set."""
        self._requested_wake: Seconds | None = None
        self._unseen: list[Run] = []
        """Runs that started in rounds that the policy did not see."""

    def decide(self, view: View, is_check: bool) -> Decision:
        """Return the decision of the policy. `is_check`: whether the watch requested this round."""
        wakes = self._wakes
        is_policy_wake = bool(wakes) and wakes[0] <= view.now
        while wakes and wakes[0] <= view.now:
            heappop(wakes)
        if is_check and not is_policy_wake and not _has_events(view.changes):
            self._unseen += view.changes.started
            return NO_CHANGE
        decision = self._policy.decide(_with_started(view, self._unseen) if self._unseen else view)
        self._unseen = []
        if decision.wake_at is not None:
            heappush(wakes, decision.wake_at)
        return decision

    def merge(self, decision: Decision, flags: list[Flag], ends: list[End], next_check: list[Seconds]) -> Decision:
        """Add flags, ends and the next wake-up time to a decision.

        A wake-up time is requested once, and again after a decision with changes, which may have been rejected.
        """
        wake_at = min([*self._wakes[:1], *next_check], default=None)
        has_additions = bool(flags or ends)
        if wake_at == self._requested_wake and not has_additions and decision.wake_at is None:
            return decision
        changes = decision.starts or decision.stops or decision.reshapes
        self._requested_wake = None if changes or has_additions else wake_at
        if wake_at == decision.wake_at and not has_additions:
            return decision
        return msgspec.structs.replace(
            decision, flags=(*decision.flags, *flags), ends=(*decision.ends, *ends), wake_at=wake_at
        )


class _CheckTimes:
    """When each job is checked next. A wake-up that has become unnecessary still happens, since it was requested."""

    def __init__(self) -> None:
        self._heap: list[tuple[Seconds, str]] = []
        self._next_of: dict[str, Seconds] = {}

    def schedule(self, time: Seconds, job_id: str) -> None:
        """Check a job at this time, unless it is due earlier anyway."""
        if isfinite(time) and time < self._next_of.get(job_id, inf):
            self._next_of[job_id] = time
            heappush(self._heap, (time, job_id))

    def is_due(self, now: Seconds) -> bool:
        """Return whether a requested time has come."""
        return bool(self._heap) and self._heap[0][0] <= now

    def pop_due(self, now: Seconds) -> list[str]:
        """Remove and return the jobs to check now, each once."""
        jobs: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            time, job_id = heappop(self._heap)
            if self._next_of.get(job_id) == time:
                del self._next_of[job_id]
                jobs.append(job_id)
        return jobs

    def next(self) -> list[Seconds]:
        """Return the next time as a list of one; an empty list if there is none."""
        return [time for time, _ in self._heap[:1]]


class _Tails:
    """The 99 % quantile of each job's run time, as predicted when the job first began to run."""

    def __init__(self) -> None:
        self._predictor = Predictor()
        self._tail_of: dict[str, Seconds] = {}
        self._jobs: dict[str, Job] = {}

    def update(self, changes: Changes, now: Seconds) -> None:
        for job, duration in changes.past_jobs:
            self._predictor.submitted(job, now)
            self._predictor.finished(job, duration, now)
        for job_id in changes.removed:
            self.remove(job_id, None, now)
        for job in changes.submitted:
            self._add(job, now)

    def _add(self, job: Job, now: Seconds) -> None:
        self._jobs[job.id] = job
        self._predictor.submitted(job, now)

    def for_job(self, job: Job, now: Seconds) -> Seconds:
        if job.id not in self._jobs:  # it was running when the journal began
            self._add(job, now)
        if job.id not in self._tail_of:
            self._tail_of[job.id] = self._predictor.expect(job, now).quantile(TAIL_QUANTILE)
        return self._tail_of[job.id]

    def remove(self, job_id: str, duration: Seconds | None, now: Seconds) -> None:
        """Remove a job and learn its run time; None: it did not end by itself, so there is nothing to learn."""
        self._tail_of.pop(job_id, None)
        job = self._jobs.pop(job_id, None)
        if job is None or duration is None:
            self._predictor.forget(job_id)
        else:
            self._predictor.finished(job, duration, now)


def _with_started(view: View, unseen: list[Run]) -> View:
    """Return a view whose changes include runs that started in rounds that the wrapped policy did not see."""
    merged = Changes()
    for kind in Changes.__slots__:
        setattr(merged, kind, getattr(view.changes, kind))
    merged.started = [*unseen, *view.changes.started]
    return view.with_changes(merged)


def _has_events(changes: Changes) -> bool:
    """Return whether anything happened since the last decision other than the starts that it ordered."""
    arrivals = changes.submitted or changes.requeued or changes.removed or changes.past_jobs
    return bool(arrivals or changes.progressed or changes.ended or changes.nodes)
