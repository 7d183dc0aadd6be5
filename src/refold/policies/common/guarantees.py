"""Who is promised what: a guaranteed job within its tenant's quota gets at least the performance of what it asked for.

Performance, not amounts: fewer GPUs with a better plan will do. A job counts in its tenant's quota with its minimum:
the fewest GPUs, never more than it asked for, that reach that performance. Best-effort jobs are promised nothing, and
so are guaranteed jobs beyond the quota, until others of their tenant have ended.
"""

from __future__ import annotations

from collections import defaultdict

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Allocation, Job, Plan, Run, Seconds
from refold.plans import Layout, asked_layout
from refold.policies.common.options import Option, OptionCache, as_asked, as_asked_on
from refold.policies.common.outlook import Outlook

Shape = tuple[Layout, Plan | None]
"""GPUs on each node, and the plan."""

DUST = 1e-6
"""GPUs, as sums of fractions leave it."""

TOLERANCE = 0.01
"""Nobody notices to be slower by so much."""


class GuaranteeRules:
    """Floors, minima and quotas."""

    def __init__(self, outlook: Outlook, options: OptionCache, safety: float = 1.0) -> None:
        """`safety`: how many times as fast another shape must be believed to be than the one asked for, to be safe."""
        if not safety >= 1:
            raise BadValue(f"safety is a factor ≥ 1, not {safety}")
        self._outlook, self._options, self._safety = outlook, options, safety
        self._keeping: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._admitted: dict[str, tuple[str, float]] = {}
        self._first_report: dict[str, tuple[int, int, Seconds]] = {}
        self._refuted: dict[str, set[Shape]] = {}

    def floor(self, job: Job) -> float:
        """The speed of what a job asked for; of a job that is not known, that of its only option."""
        return self._outlook.speeds.asked(job).steps_per_second if self._outlook.speeds.knows(job) else 1.0

    def keeping(self, job: Job) -> tuple[Option, ...]:
        """The options that keep a promise, from the fewest GPUs on: those that are fast enough, and what was asked."""
        return self._at_least(job, 1.0)

    def safe(self, job: Job) -> tuple[Option, ...]:
        """Of these, the ones that keep it even if the model errs a little."""
        return self._at_least(job, self._safety)

    def minimum(self, job: Job) -> Option:
        """The fewest GPUs that keep a promise; never more than were asked for."""
        return self.keeping(job)[0]

    def watch(self, view: View) -> bool:
        """See from reports whether promised runs are as fast as promised; a shape that is not is never theirs again.

        Whether any was found to be too slow now.
        """
        found = False
        for run in view.changes.progressed:
            now = view.runs.get(run.job)
            if run.job not in self._admitted or now is None or now.number != run.number:
                continue
            steps, at = view.steps_done(run.job)
            if at != view.now:
                continue
            number, first, since = self._first_report.get(run.job, (0, 0, at))
            if number != run.number:
                self._first_report[run.job] = run.number, steps, at
            elif at > since:
                rate = (steps - first + 1) / (at - since)  # steps are whole: there may be most of one more
                found |= self._refute_if_slow(view.active[run.job], run, rate)
        return found

    def _refute_if_slow(self, job: Job, run: Run, steps_per_second: float) -> bool:
        if steps_per_second >= self.floor(job) * (1 - TOLERANCE) or _is_asked(job, run.allocation):
            return False
        shape = (run.allocation.gpus_on_node, run.allocation.plan)
        refuted = self._refuted.setdefault(job.id, set())
        if shape in refuted:
            return False
        refuted.add(shape)
        return True

    def is_refuted(self, job: Job, shape: Shape) -> bool:
        """Whether a job was seen to be too slow in a shape."""
        return shape in self._refuted.get(job.id, ())

    def _at_least(self, job: Job, factor: float) -> tuple[Option, ...]:
        """A job that was seen to be too slow in any other shape gets no other than the one it asked for."""
        return self._asked(job) if job.id in self._refuted else self._believed(job, factor)

    def _asked(self, job: Job) -> tuple[Option, ...]:
        speeds = self._outlook.speeds
        return as_asked_on(speeds, job) if speeds.knows(job) else (as_asked(job),)

    def _believed(self, job: Job, factor: float) -> tuple[Option, ...]:
        options = self._options.of(job)
        key = (id(options), job.demand, job.plan, factor)
        if key not in self._keeping:
            floor, asked = self.floor(job), self._asked(job)
            known = {(one.demand, one.plan) for one in asked}
            fast = [one for one in options if one.speed >= factor * floor and (one.demand, one.plan) not in known]
            # Of as many GPUs, what was asked for comes first: it keeps the promise for certain.
            by_gpus = sorted([*asked, *fast], key=lambda one: (one.gpus, one not in asked, -one.speed))
            self._keeping[key] = tuple(by_gpus)
        return self._keeping[key]

    def promised(self, view: View) -> set[str]:
        """Guaranteed jobs within their tenants' quotas: in the order of submission, each until it ends.

        Where there are no quotas nothing is promised: everybody cannot be guaranteed everything.
        """
        if not view.cluster.tenants:
            return set()
        used: dict[str, float] = defaultdict(float)
        for job_id, (tenant, gpus) in list(self._admitted.items()):
            if job_id in view.active or job_id in view.waiting:
                used[tenant] += gpus
            else:
                del self._admitted[job_id]
                self._first_report.pop(job_id, None)
                self._refuted.pop(job_id, None)
        asking = [
            job
            for job in (*view.active.values(), *view.waiting.values())
            if job.job_class == "guaranteed" and job.id not in self._admitted
        ]
        for job in sorted(asking, key=lambda job: (job.submitted, job.id)):
            gpus = self.minimum(job).gpus * job.demand.gpu_milli / WHOLE
            quota = view.cluster.quota_gpus(job.tenant)
            if quota and used[job.tenant] + gpus <= quota + DUST:
                used[job.tenant] += gpus
                self._admitted[job.id] = job.tenant, gpus
        return set(self._admitted)


def _is_asked(job: Job, allocation: Allocation) -> bool:
    """Whether a job runs as it asked to, or with more of its instances on one node."""
    layout = allocation.gpus_on_node
    return allocation.plan == job.plan and sum(layout) == sum(asked_layout(job)) and len(layout) <= job.demand.instances
