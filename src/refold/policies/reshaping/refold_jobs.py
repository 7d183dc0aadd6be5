"""What Refold knows about each job in a scheduling round: shapes, remaining work, weight, guarantee, starvation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

import msgspec

from refold.core import Account, View
from refold.errors import BadValue
from refold.model import Allocation, Job, Seconds
from refold.policies.common import (
    ExpectedService,
    FairShare,
    GuaranteeRules,
    Option,
    OptionCache,
    Options,
    ProgressEstimator,
)
from refold.policies.reshaping.arrivals import ArrivalSummary, is_wide

FREQUENT_WIDE_JOBS = 18.0
"""Wide jobs are frequent if at least one of so many jobs is wide: `wide_weight` is the weight of each of them."""


class RefoldSettings(msgspec.Struct, frozen=True):
    """The settings of the policy that a round uses."""

    restart_seconds: Seconds
    gpu_price: float
    weight_doubling_seconds: Seconds
    delay_doubling_seconds: Seconds
    starvation_seconds: Seconds
    wide_weight: float
    wide_share: float
    preemption_margin: float
    max_restarts: int
    max_preemptors: int

    def __post_init__(self) -> None:
        """Reject values that are out of range."""
        at_least_0 = ("restart_seconds", "gpu_price", "wide_weight", "max_restarts", "max_preemptors")
        for name, least in (*((name, 0) for name in at_least_0), ("preemption_margin", 1)):
            if not least <= getattr(self, name) < inf:
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number ≥ {least}")
        for name in ("weight_doubling_seconds", "delay_doubling_seconds", "starvation_seconds"):
            if not getattr(self, name) > 0:
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number > 0")
        if not 0 <= self.wide_share <= 1:
            raise BadValue(f"wide_share is {self.wide_share}, expected a number from 0 to 1")


class JobFacts(NamedTuple):
    """What a round knows of a job besides its age.

    `remaining`: work, in steps; `work`: in GPU-seconds at its most efficient size, which count more if its user has
    used more than others. `done`: seconds of work.
    `may_be_preferred`: it is wide, of unknown length, and can be stopped again for jobs that turn out shorter.
    `valid_until`: number of ended runs until which this holds while the job waits.
    """

    job: Job
    options: Options
    remaining: float
    work: float
    done: Seconds
    is_known: bool
    may_be_preferred: bool
    valid_until: float


class JobSources:
    """Estimates that outlive a round."""

    def __init__(
        self,
        estimator: ProgressEstimator,
        options: OptionCache,
        guarantees: GuaranteeRules,
        expected_service: ExpectedService,
        fair_share: FairShare,
    ) -> None:
        self.estimator, self.options, self.guarantees = estimator, options, guarantees
        self.expected_service, self.fair_share = expected_service, fair_share
        self._waiting: dict[str, JobFacts] = {}
        """Waiting jobs whose facts are known: there may be many, and little changes while they wait."""

    def learn(self, view: View) -> bool:
        """Correct the estimates by measured speeds; return whether any has changed."""
        if not self.estimator.learn(view):
            return False
        self.options.clear()
        self.guarantees.clear()
        self._waiting.clear()
        return True

    def forget(self, job_id: str) -> None:
        """Drop what is cached for a job that has ended."""
        self.options.forget(job_id)
        self.estimator.forget(job_id)
        self.expected_service.forget(job_id)
        self.forget_waiting(job_id)

    def forget_waiting(self, job_id: str) -> None:
        """Drop what holds for a job only while it waits."""
        self._waiting.pop(job_id, None)

    def facts(self, view: View, guaranteed: Collection[str]) -> dict[str, JobFacts]:
        """Return what is known of all jobs."""
        found: dict[str, JobFacts] = {}
        waiting, ended_runs = self._waiting, self.expected_service.ended_runs
        for job_id, job in view.waiting.items():
            known = waiting.get(job_id)
            if known is None or known.valid_until <= ended_runs:
                known = waiting[job_id] = self._facts_of(view, job, self.options.for_job(job))
            found[job_id] = known
        for job_id, job in view.active.items():
            found[job_id] = self._facts_of(view, job, self.options.for_job(job))
        for job_id in guaranteed:
            job = view.waiting.get(job_id) or view.active[job_id]
            found[job_id] = self._facts_of(view, job, self.guarantees.safe_options(job))
        return found

    def _facts_of(self, view: View, job: Job, options: Options) -> JobFacts:
        is_known, remaining = self.estimator.knows_work(job), self.estimator.remaining_work(view, job)
        return JobFacts(
            job,
            options,
            remaining,
            remaining * options.gpu_seconds_per_step,
            view.done(job.id),
            is_known,
            not is_known and job.preemptible and is_wide(job),
            inf if is_known else self.expected_service.valid_until(job.id),
        )


class RoundJobs:
    """All waiting and running jobs at the time of a view."""

    def __init__(
        self,
        view: View,
        sources: JobSources,
        settings: RefoldSettings,
        waiting_since: Mapping[str, Seconds],
        arrivals: ArrivalSummary,
    ) -> None:
        """`waiting_since`: when each waiting job was submitted or returned to the queue."""
        guarantees = sources.guarantees
        self.view, self._now, self.settings = view, view.now, settings
        self.arrivals = arrivals
        self._estimator, self._guarantees, self._waiting_since = sources.estimator, guarantees, waiting_since
        self._durations = sources.expected_service.durations
        self.by_id: dict[str, Job] = {**view.waiting, **view.active}
        self.guaranteed = guarantees.guaranteed_jobs(view)
        self._facts = sources.facts(view, self.guaranteed)
        self.options = {job_id: facts.options for job_id, facts in self._facts.items()}
        self.guarantee_options = {
            job_id: guarantees.sufficient_options(self.by_id[job_id]) for job_id in self.guaranteed
        }
        self._remaining_times: dict[str, tuple[Allocation, Seconds]] = {}
        self._fair_weights = sources.fair_share.weights(view, self.by_id.values())
        if self._fair_weights:
            facts_of = self._facts.items()
            self._facts = {id: facts._replace(work=facts.work / self._fair_weight(id)) for id, facts in facts_of}
        self._preferred_wide_jobs = self._choose_wide_jobs()
        self.weighted_work = {job_id: facts.work / self._delay_weight(facts) for job_id, facts in self._facts.items()}

    def _choose_wide_jobs(self) -> set[str]:
        """Return the wide jobs of unknown length that have the weight of many.

        These are running ones first, then those with the least work, until they use `wide_share` of the GPUs: under
        overload, all of them together would leave little for other jobs.
        """
        wide = [facts for facts in self._facts.values() if facts.may_be_preferred]
        wide.sort(key=lambda facts: (facts.job.id not in self.view.runs, facts.work, facts.job.id))
        chosen: set[str] = set()
        left = self.settings.wide_share * self.view.cluster.gpus
        for facts in wide:
            if left <= 0:
                break
            chosen.add(facts.job.id)
            left -= facts.job.demand.total_gpus
        return chosen

    def weight(self, job_id: str) -> float:
        """Return the weight of a second of delay of a job."""
        weight = self._delay_weight(self._facts[job_id])
        return weight * self._fair_weight(job_id) if self._fair_weights else weight

    def _delay_weight(self, facts: JobFacts) -> float:
        """Return the weight of a second of delay of a job, apart from its fair share.

        It grows with the time in the system until completion at full speed; if the remaining work is not known, with
        the delay so far. Wide jobs of unknown length that may be stopped have a weight that does not grow: that of
        many, or 1.
        """
        age = self._now - facts.job.submitted
        if facts.is_known:
            full_speed = facts.remaining / facts.options.top_speed
            return 1 + (age + full_speed) / self.settings.weight_doubling_seconds
        if facts.may_be_preferred and self.settings.wide_weight:
            return self._wide_weight() if facts.job.id in self._preferred_wide_jobs else 1.0
        delay = max(0.0, age - facts.done)
        return 1 + delay / self.settings.delay_doubling_seconds

    def _wide_weight(self) -> float:
        """Return the weight of a preferred wide job, which grows with the third power of how rare wide jobs are.

        Rare ones delay few others; frequent ones take GPUs from each other.
        """
        rarity = max(1.0, self.arrivals.jobs_per_wide_job / FREQUENT_WIDE_JOBS)
        return max(1.0, self.settings.wide_weight * rarity**3)

    def _fair_weight(self, job_id: str) -> float:
        job = self.by_id[job_id]
        return self._fair_weights.get(Account(job.tenant, job.user), 1.0)

    def knows_work(self, job_id: str) -> bool:
        """Return whether the remaining work of a job is known, not predicted."""
        return self._facts[job_id].is_known

    def is_wide_beyond_share(self, job_id: str) -> bool:
        """Return whether a wide job of unknown length does not have the weight of many."""
        return job_id not in self._preferred_wide_jobs and self._facts[job_id].may_be_preferred

    def is_shorter_wide_job(self, job_id: str, other: str) -> bool:
        """Return whether a wide job has so much less work than one with the weight of many that it may preempt it."""
        if other not in self._preferred_wide_jobs or self.by_id[other].priority > self.by_id[job_id].priority:
            return False
        return self._facts[other].work > self.settings.preemption_margin * self._facts[job_id].work

    def is_protected(self, job_id: str, preemptor: str) -> bool:
        """Return whether a run of unknown length must not be stopped for a job of the same priority.

        It was restarted too often, or too recently for a job that is not starving. With every restart it may run
        longer, so that restarts take only a part of its time.
        """
        if self.knows_work(job_id):
            return False
        starts, age = self.view.run_count(job_id), self.view.now - self.view.runs[job_id].since
        if starts > self.settings.max_restarts:
            return True
        return age < self.restart_cost(job_id) * starts and not self.is_starving(preemptor)

    @property
    def uses_fair_share(self) -> bool:
        """Whether weights depend on what users have used."""
        return bool(self._fair_weights)

    def is_ahead_by_fair_share(self, job_id: str, other: str) -> bool:
        """Return whether a job has less weighted work than another only because its user has used less."""
        if not self._fair_weights or self.weighted_work[job_id] >= self.weighted_work[other]:
            return False
        unfair = [self.weighted_work[one] * self._fair_weight(one) for one in (job_id, other)]
        return unfair[0] >= unfair[1]

    def has_other_shapes(self, job_id: str) -> bool:
        """Return whether a job has more than one possible shape."""
        return len(self.guarantee_options.get(job_id) or self.options[job_id]) > 1

    def run_time(self, job_id: str, option: Option) -> Seconds:
        """Return the seconds that a job takes in a shape for its remaining work."""
        return self._facts[job_id].remaining / option.speed

    def remaining_time(self, job_id: str, held: Allocation) -> Seconds:
        """Return the seconds until a job ends with an allocation, with the rest of its startup if it has it already."""
        last = self._remaining_times.get(job_id)
        if last is None or last[0] is not held:
            seconds = self._facts[job_id].remaining / self.speed(job_id, held)
            run = self.view.runs.get(job_id)
            is_unchanged = run is not None and run.allocation == held
            last = held, seconds + (self.startup_seconds(job_id) if is_unchanged else 0.0)
            self._remaining_times[job_id] = last
        return last[1]

    def remaining_time_quantile(self, job_id: str, quantile: float) -> Seconds:
        """Return the seconds after which a job will have ended with this probability, if it runs from now on."""
        run, job = self.view.runs.get(job_id), self.by_id[job_id]
        if self.knows_work(job_id):
            return self._facts[job_id].remaining / (
                self.speed(job_id, run.allocation) if run else self.options[job_id].top_speed
            )
        if run is None:
            return self._durations.remaining_time(self.view, job).quantile(quantile)
        return self._durations.remaining_run_time(self.view, run, quantile)

    def startup_seconds(self, job_id: str) -> Seconds:
        """Return how much longer the run of a job will be starting up; 0 if it is not running."""
        run = self.view.runs.get(job_id)
        return self._estimator.startup_seconds(self.view, run) if run is not None else 0.0

    def restart_cost(self, job_id: str, option: Option | None = None) -> Seconds:
        """Return the cost of reshaping a job, to an option if one is given; 0 if it is not running."""
        if job_id not in self.view.runs:
            return 0.0
        return self._estimator.restart_cost(self.view, self.by_id[job_id], option.demand if option else None)

    def delay_per_gpu_second(self, jobs: int) -> float:
        """Return the price of a GPU-second: the delay of so many waiting jobs, in seconds."""
        return self.settings.gpu_price * jobs / max(self.view.cluster.gpus, 1)

    def speed(self, job_id: str, held: Allocation) -> float:
        """Return the steps per second of a job with an allocation."""
        return self._estimator.speed(self.by_id[job_id], held)

    def requested_speed(self, job_id: str) -> float | None:
        """Return the steps per second of what a job requested; None if its speed is unknown."""
        speeds, job = self._estimator.speeds, self.by_id[job_id]
        return speeds.requested_speed(job).steps_per_second if speeds.can_model(job) else None

    def meets_guarantee(self, job_id: str, held: Allocation) -> bool:
        """Return whether a guaranteed job is as fast as guaranteed, as modelled and as measured."""
        job = self.by_id[job_id]
        if self._guarantees.is_too_slow(job, (held.gpus_on_node, held.plan)):
            return False
        return self._guarantees.is_fast_enough(job, self.speed(job_id, held))

    def next_starvation(self, waiting: Iterable[str]) -> Seconds:
        """Return when the next of these waiting jobs will be starving."""
        latest = self.view.now - self.settings.starvation_seconds  # those that wait since then are starving already
        since = (self._waiting_since.get(job_id, inf) for job_id in waiting)
        return min((moment for moment in since if moment > latest), default=inf) + self.settings.starvation_seconds

    def is_starving(self, job_id: str) -> bool:
        """Return whether a job has waited so long that it goes first."""
        return self._now - self._waiting_since.get(job_id, self._now) >= self.settings.starvation_seconds

    def starving(self) -> set[str]:
        """Return the waiting jobs that are starving."""
        now, since, least = self._now, self._waiting_since, self.settings.starvation_seconds
        return {job_id for job_id in self.view.waiting if now - since.get(job_id, now) >= least}
