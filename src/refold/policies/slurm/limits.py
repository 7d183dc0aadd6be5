"""Which jobs may start at all: licences, limits of QOS, accounts and arrays, dependencies and begin times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from refold.core import View
from refold.model import SINGLETON, Dependency, Job, Seconds, parse_dependency
from refold.policies.slurm.facts import SiteFacts

ASSUMED_END = "finished"


class SharedLimits:
    """What runs use of limited amounts. Jobs that have left the cluster are assumed to have finished."""

    def __init__(self, site: SiteFacts) -> None:
        self._site = site
        self._used: Counter[str] = Counter()
        self._conditional: set[str] = set()
        """Jobs with a begin time or dependencies."""
        self._present: Counter[str] = Counter()
        """How often each job, and each array as a whole, waits or runs."""

    def observe(self, view: View) -> None:
        """Note the runs that have started and ended, and the jobs that wait or run."""
        for run in view.changes.started:
            self._used.update(self._uses(run.job))
        for run in view.changes.ended:
            self._used.subtract(self._uses(run.job))
        for job in view.changes.submitted:
            if job.launch.after or job.launch.begin is not None:
                self._conditional.add(job.id)
        if self._conditional:
            self._present = Counter(name for job_id in (*view.waiting, *view.runs) for name in _names(job_id))

    def _uses(self, job_id: str) -> dict[str, int]:
        facts = self._site.jobs.get(job_id)
        return facts.uses if facts is not None else {}

    def start(self, job: Job) -> None:
        """Count a job that starts in this round, until its run is reported."""
        self._used.update(self._uses(job.id))

    def undo(self, jobs: list[Job]) -> None:
        """Stop counting jobs whose runs are about to be reported."""
        for job in jobs:
            self._used.subtract(self._uses(job.id))

    def allow(self, job: Job) -> bool:
        """Whether a job may start beside those that run."""
        limits = self._site.limits
        uses = self._uses(job.id)
        return not uses or all(self._used[name] + count <= limits.get(name, count) for name, count in uses.items())

    def is_eligible(self, view: View, job: Job) -> bool:
        """Whether the begin time of a job has come, and its dependencies are met."""
        if job.id not in self._conditional:
            return True
        if job.launch.begin is not None and job.launch.begin > view.now:
            return False
        return all(self._is_met(view, job, parse_dependency(text)) for text in job.launch.after)

    def _is_met(self, view: View, job: Job, dependency: Dependency) -> bool:
        if dependency.kind == SINGLETON:
            others = (each for each in (*view.waiting.values(), *view.active.values()) if each.id != job.id)
            return not any(
                each.group == job.group and each.user == job.user and each.submitted <= job.submitted for each in others
            )
        return dependency.is_met_by(ASSUMED_END) and not self._present[dependency.array or dependency.job]

    def next_begin(self, view: View) -> Seconds:
        """Return when the next begin time of a waiting job comes; infinity: never."""
        begins = (view.waiting[name].launch.begin for name in self._conditional if name in view.waiting)
        return min((begin for begin in begins if begin is not None and begin > view.now), default=inf)


def _names(job_id: str) -> Iterator[str]:
    yield job_id
    array, underscore, _ = job_id.partition("_")
    if underscore:
        yield array
