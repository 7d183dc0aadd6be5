"""Optimus (EuroSys'18): everybody gets a first share, and each further GPU goes where it saves the most time.

How long a job still takes on n GPUs is what it has left, in steps, by its speed there. After the first shares, which go
to those who came first, the next size is given, again and again, to the job that it saves the most time per GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from refold.core import View
from refold.model import Decision, Job, Seconds
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Knowledge
from refold.policies.common import Budget, Option, Outlook, Rounds, Wishes, is_held, possible
from refold.policies.published.replicas import Replicas

ANY_NUMBER = 2**40
"""No job is kept from having as many GPUs as it can use."""


class Optimus:
    """Further GPUs go to the job that they save the most time, in rounds."""

    name = "optimus"

    def __init__(
        self,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
        placement: str = "best-fit",
        seed: int = 0,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 78.0,
        powers_of_two: bool = False,
    ) -> None:
        self._knowledge = Knowledge.of(knowledge)
        self._restart = restart_seconds
        self._powers_of_two = powers_of_two
        self._rounds = Rounds(round_seconds, Placer(placement, seed))
        self._outlook: Outlook | None = None
        self._replicas: Replicas | None = None

    def decide(self, view: View) -> Decision:
        """Share out once a round."""
        if self._outlook is None:
            self._outlook = Outlook(view, self._knowledge, self._restart)
            self._replicas = Replicas(self._outlook.speeds, self._knowledge, powers_of_two=self._powers_of_two)
        return self._rounds.decide(view, self, self._outlook)

    def options(self, job: Job) -> Sequence[Option]:
        """Every number of replicas that is possible."""
        assert self._replicas is not None
        return self._replicas.of(job, ANY_NUMBER)

    def share_out(self, view: View, jobs: Mapping[str, Job], budget: Budget) -> Wishes:
        """First shares in the order of arrival, then what saves most; whoever gains too little stays as it is."""
        assert self._outlook is not None
        purse = UnallocatedGpus(budget)
        options = {job.id: possible(view, job, self.options(job)) for job in jobs.values()}
        first = {}
        for job in sorted(jobs.values(), key=lambda job: (job.submitted, job.id)):
            option = purse.first_affordable(options[job.id])
            if option is not None:
                first[job.id] = option
        left = {job_id: self._outlook.left(view, jobs[job_id]) for job_id in first}
        given = grown(first, options, left, purse)
        return {
            job_id: self._wish(view, job_id, options[job_id], option, left[job_id]) for job_id, option in given.items()
        }

    def _wish(self, view: View, job_id: str, options: Sequence[Option], given: Option, left: float) -> Sequence[Option]:
        """What was given, then less; of a run that would not make good for its restart, what it has."""
        run = view.runs.get(job_id)
        held = next((one for one in options if run is not None and is_held(view, one, run.allocation)), None)
        if held is not None and held.gpus < given.gpus and left / held.speed - left / given.speed <= self._restart:
            return [held]
        return [given, *(option for option in reversed(options) if option.gpus < given.gpus)]


class UnallocatedGpus:
    """GPUs that have not been given yet."""

    def __init__(self, budget: Budget) -> None:
        self._of_type = dict(budget.by_type)

    def first_affordable(self, options: Sequence[Option]) -> Option | None:
        """Pay for the first of the smallest options that can be paid for."""
        for option in options:
            if option.gpus > options[0].gpus:
                return None
            if self.pay(option, option.demand.total_gpu_milli):
                return option
        return None

    def pay(self, option: Option, milli: int) -> bool:
        """Take so much of the types of an option, the scarcest last; False, and nothing, if there is not enough."""
        accepted = option.demand.gpu_types or tuple(self._of_type)
        if sum(self._of_type.get(name, 0) for name in accepted) < milli:
            return False
        for name in sorted(accepted, key=lambda name: -self._of_type.get(name, 0)):
            part = min(milli, max(0, self._of_type.get(name, 0)))
            if part:
                self._of_type[name] -= part
                milli -= part
        return True


def grown(
    first: Mapping[str, Option],
    options: Mapping[str, Sequence[Option]],
    left: Mapping[str, float],
    purse: UnallocatedGpus,
) -> dict[str, Option]:
    """Give the next size to whom it saves the most time per GPU, until nobody gains or nothing is left.

    Between equal gains the order of `first` decides. Who cannot be paid for gets no more.
    """
    given = dict(first)
    turn = {job_id: position for position, job_id in enumerate(first)}
    gains: list[tuple[float, int, str, Option]] = []

    def offer(job_id: str) -> None:
        now = given[job_id]
        larger = _next_size(now, options[job_id])
        if larger is not None:
            gain = left[job_id] * (1 / now.speed - 1 / larger.speed) / (larger.gpus - now.gpus)
            if 0 < gain < inf:
                heappush(gains, (-gain, turn[job_id], job_id, larger))

    for job_id in given:
        offer(job_id)
    while gains:
        _, _, job_id, larger = heappop(gains)
        more = larger.demand.total_gpu_milli - given[job_id].demand.total_gpu_milli
        if purse.pay(larger, more):
            given[job_id] = larger
            offer(job_id)
    return given


def _next_size(now: Option, options: Sequence[Option]) -> Option | None:
    """The next larger option on the same type of GPU."""
    return next((o for o in options if o.gpus > now.gpus and o.demand.gpu_types == now.demand.gpu_types), None)
