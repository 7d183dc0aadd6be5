"""Previews: try a submission on a copy of the scheduler and report what would happen."""

from __future__ import annotations

import asyncio

from refold.client.api import (
    MAX_JOB_NUMBER,
    Caller,
    Preview,
    Submission,
    TimeEstimate,
    VariantOutcome,
    WhatIf,
    WhatIfOutcome,
)
from refold.model import Job
from refold.server.admission import Admission
from refold.server.auto_requests import describe_choices
from refold.server.job_table import HOLD_TEXTS
from refold.server.live_state import LiveState
from refold.server.start_forecasts import JobForecast, StartForecasts
from refold.server.status import wire_estimate


class Previewer:
    """Previews submissions, and compares variants. One of each is simulated at a time: previews take less time."""

    def __init__(self, state: LiveState, admission: Admission, forecasts: StartForecasts) -> None:
        self._state = state
        self._forecasts = forecasts
        self._admission = admission
        self._previews, self._comparisons = asyncio.Semaphore(1), asyncio.Semaphore(1)

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        """Return whether the job would fit, when it would start, and with which plan, as far as known."""
        state, view = self._state, self._state.view
        await self._admission.check_patterns([submission])
        job = self._admission.build_job(caller, submission, MAX_JOB_NUMBER)
        held = self._admission.hold_reason(submission, job)
        infeasibility = self._admission.infeasibility(job)
        fits, notes = not infeasibility, [infeasibility] * bool(infeasibility)
        if held:
            notes.append(f"it is held {HOLD_TEXTS[held]}")
        notes += describe_choices(job)
        plan, estimate = await self._try_policy(job) if fits and not held else ("", None)
        consent = submission.consent(self._admission.preemption(job.tenant, submission))
        notes += _notes_on_plan(submission, state.header.policy, plan)
        return Preview(
            fits=fits,
            demand=str(job.demand),
            gpus=job.demand.total_gpus,
            plan=plan,
            starts_now=estimate is not None and estimate.at <= state.wall_time(state.now()) + 1.0,
            jobs_ahead=len(view.waiting),
            start_estimate=estimate,
            notes=notes,
            exported=self._admission.exported_names(caller, submission),
            preemptible=consent.is_given,
            consent=consent.why,
        )

    async def compare(self, caller: Caller, question: WhatIf) -> WhatIfOutcome:
        """Return when each variant of a submission would start and end, and how it would delay the waiting jobs."""
        state = self._state
        await self._admission.check_patterns(question.variants)
        jobs = [self._admission.build_job(caller, variant, MAX_JOB_NUMBER) for variant in question.variants]
        async with self._comparisons:
            forecast = await self._forecasts.compare(jobs, question.seed)
        return WhatIfOutcome(
            now=state.wall_time(state.now()),
            futures=forecast.futures,
            variants=[self._outcome(job, each) for job, each in zip(jobs, forecast.jobs, strict=True)],
        )

    def _outcome(self, job: Job, forecast: JobForecast) -> VariantOutcome:
        wall_time, reason = self._state.wall_time, self._admission.infeasibility(job)
        start, end = (
            None if time is None else wire_estimate(time, wall_time) for time in (forecast.start, forecast.end)
        )
        fits = not reason
        if fits and start is None:
            reason = "not known yet: it waits for jobs whose run times are not known"
        return VariantOutcome(start, end, forecast.mean_delay_of_others, forecast.delayed_jobs, fits, reason)

    async def _try_policy(self, job: Job) -> tuple[str, TimeEstimate | None]:
        """Return the plan that the policy would give the job now, and when it would start."""
        wall_time = self._state.wall_time
        async with self._previews:
            trial = await self._forecasts.try_submission(job)
        if trial.starts_now:
            return "" if trial.plan is None else str(trial.plan), TimeEstimate(wall_time(self._state.now()))
        return "", None if trial.start is None else wire_estimate(trial.start, wall_time)


def _notes_on_plan(submission: Submission, policy: str, plan: str) -> list[str]:
    if submission.plan != "auto" or plan:
        return []
    if not submission.workload and submission.gpu_range is None:
        return ["plan: auto needs a workload; without one the speed of plans is unknown"]
    return [f"the plan is chosen when the job starts, if policy {policy} chooses plans"]
