"""Performance guarantees: a guaranteed job within its tenant's quota runs at least as fast as what it requested.

The guarantee is on performance, not on amounts: fewer GPUs with a better plan are sufficient. A job counts towards
its tenant's quota with its minimum: the fewest GPUs, never more than requested, that reach that performance.
Best-effort jobs have no guarantee, nor have guaranteed jobs beyond the quota until other jobs of their tenant have
ended.
"""

from __future__ import annotations

from collections import defaultdict

from refold.core import View
from refold.errors import BadValue
from refold.model import Allocation, Job, Plan, Run, Seconds
from refold.planning.plans import GUARANTEE_TOLERANCE, Layout, Minimums, ModelledSpeedSource, Speeds, requested_layout
from refold.policies.common.options import Option, OptionCache, Options, requested_option, requested_options
from refold.policies.common.progress_estimator import ProgressEstimator

Shape = tuple[Layout, Plan | None]
"""GPUs on each node, and the plan."""

ROUNDING_GPUS = 1e-6
"""Tolerance for rounding in sums of GPU fractions."""


class QuotaAdmission:
    """The guaranteed jobs within their tenants' quotas, admitted in order of submission until they end.

    What a job counts with is modelled before any job has reported: it does not change, and everyone can compute it.
    Without quotas there are no guarantees: not all jobs can be guaranteed everything.
    """

    def __init__(self, speeds: Speeds) -> None:
        uncorrected = speeds.uncorrected()
        self._minimums = Minimums(uncorrected, ModelledSpeedSource(uncorrected))
        self._admitted: dict[str, tuple[str, float]] = {}
        """Job -> its tenant and the GPUs that it counts with in the quota."""

    def guaranteed_jobs(self, view: View) -> set[str]:
        """Return the jobs that are admitted now. A job that does not fit does not block later ones."""
        if not view.cluster.tenants:
            return set()
        used: dict[str, float] = defaultdict(float)
        for job_id, (tenant, gpus) in list(self._admitted.items()):
            if job_id in view.active or job_id in view.waiting:
                used[tenant] += gpus
            else:
                del self._admitted[job_id]
        candidates = [
            job
            for job in (*view.active.values(), *view.waiting.values())
            if job.job_class == "guaranteed" and job.id not in self._admitted
        ]
        for job in sorted(candidates, key=lambda job: (job.submitted, job.id)):
            quota = view.cluster.quota_gpus(job.tenant)
            gpus = self._minimums.for_job(job).total_gpus if quota else 0.0
            if quota and used[job.tenant] + gpus <= quota + ROUNDING_GPUS:
                used[job.tenant] += gpus
                self._admitted[job.id] = job.tenant, gpus
        return set(self._admitted)

    def is_admitted(self, job_id: str) -> bool:
        """Return whether a job was admitted when last asked."""
        return job_id in self._admitted


class GuaranteeRules:
    """Guaranteed speeds, minimum options and quotas."""

    def __init__(self, estimator: ProgressEstimator, options: OptionCache, safety_factor: float = 1.0) -> None:
        """`safety_factor`: how many times as fast as the request another shape must be modelled to be safe."""
        if not safety_factor >= 1:
            raise BadValue(f"safety_factor is {safety_factor}, expected a factor ≥ 1")
        self._estimator, self._options, self._safety = estimator, options, safety_factor
        self._sufficient: dict[tuple[object, ...], Options] = {}
        self._quotas = QuotaAdmission(estimator.speeds)
        self._first_report: dict[str, tuple[int, int, Seconds]] = {}
        """Job -> number of the run, steps and time of its first report."""
        self._too_slow: dict[str, set[Shape]] = {}

    def clear(self) -> None:
        """Drop all cached options: estimated speeds have changed."""
        self._sufficient.clear()

    def guaranteed_speed(self, job: Job) -> float:
        """Return the speed of what a job requested in steps per second; 1 for a job with unknown speed."""
        speeds = self._estimator.speeds
        return speeds.requested_speed(job).steps_per_second if speeds.can_model(job) else 1.0

    def is_fast_enough(self, job: Job, speed: float) -> bool:
        """Return whether a modelled speed meets the guarantee."""
        return speed * (1 + GUARANTEE_TOLERANCE) >= self.guaranteed_speed(job)

    def sufficient_options(self, job: Job) -> Options:
        """Return the options that satisfy the guarantee, by increasing GPUs: the fast ones and the requested ones."""
        return self._options_above(job, 1.0)

    def safe_options(self, job: Job) -> Options:
        """Return the options that satisfy the guarantee even if the performance model errs by the safety factor."""
        return self._options_above(job, self._safety)

    def minimum_option(self, job: Job) -> Option:
        """Return the option with the fewest GPUs that satisfies the guarantee; never more than were requested."""
        return self.sufficient_options(job)[0]

    def observe_progress(self, view: View) -> bool:
        """Compare reported progress of guaranteed jobs with their guarantee; exclude shapes that are too slow.

        Return whether a shape was newly found to be too slow.
        """
        newly_excluded = False
        for run in view.changes.progressed:
            current = view.runs.get(run.job)
            if not self._quotas.is_admitted(run.job) or current is None or current.number != run.number:
                continue
            steps, at = view.steps_done(run.job)
            if at != view.now:
                continue
            number, first, since = self._first_report.get(run.job, (0, 0, at))
            if number != run.number:
                self._first_report[run.job] = run.number, steps, at
            elif at > since:
                rate = (steps - first + 1) / (at - since)  # + 1: most of another step may be done, reports are whole
                newly_excluded |= self._exclude_if_slow(view.active[run.job], run, rate)
        return newly_excluded

    def _exclude_if_slow(self, job: Job, run: Run, steps_per_second: float) -> bool:
        if steps_per_second >= self.guaranteed_speed(job) * (1 - GUARANTEE_TOLERANCE) or _is_requested(
            job, run.allocation
        ):
            return False
        shape = (run.allocation.gpus_on_node, run.allocation.plan)
        too_slow = self._too_slow.setdefault(job.id, set())
        if shape in too_slow:
            return False
        too_slow.add(shape)
        return True

    def is_too_slow(self, job: Job, shape: Shape) -> bool:
        """Return whether a job was measured to be too slow in a shape."""
        return shape in self._too_slow.get(job.id, ())

    def _options_above(self, job: Job, factor: float) -> Options:
        """Return only the requested options once any other shape was measured to be too slow for the job."""
        return self._requested(job) if job.id in self._too_slow else self._modelled_options(job, factor)

    def _requested(self, job: Job) -> Options:
        speeds = self._estimator.speeds
        return Options(requested_options(speeds, job) if speeds.can_model(job) else (requested_option(job),))

    def _modelled_options(self, job: Job, factor: float) -> Options:
        options = self._options.for_job(job)
        key = (id(options), job.demand, job.plan, factor)
        if key not in self._sufficient:
            speed, requested = self.guaranteed_speed(job), self._requested(job)
            requested_shapes = {(option.demand, option.plan) for option in requested}
            fast = [
                option
                for option in options
                if option.speed >= factor * speed and (option.demand, option.plan) not in requested_shapes
            ]
            # With equal GPUs the requested option comes first: it satisfies the guarantee with certainty.
            by_gpus = sorted(
                [*requested, *fast], key=lambda option: (option.gpus, option not in requested, -option.speed)
            )
            self._sufficient[key] = Options(by_gpus)
        return self._sufficient[key]

    def guaranteed_jobs(self, view: View) -> set[str]:
        """Return the guaranteed jobs within their tenants' quotas."""
        found = self._quotas.guaranteed_jobs(view)
        for job_id in [*self._first_report, *self._too_slow]:
            if job_id not in found:
                self._first_report.pop(job_id, None)
                self._too_slow.pop(job_id, None)
        return found


def _is_requested(job: Job, allocation: Allocation) -> bool:
    """Return whether an allocation is what the job requested, or has more of its instances on one node."""
    layout = allocation.gpus_on_node
    return (
        allocation.plan == job.plan
        and sum(layout) == sum(requested_layout(job))
        and len(layout) <= job.demand.instances
    )
