"""Runs as jobs of Slurm, one for each run, or as steps in the allocations of a pool, on the nodes that were chosen.

Runs outlive the daemon. What is needed to adopt them is in Slurm's queue, and in files next to their output.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic, time

from refold.core import JobCancelled, Order, RunFailed, RunRecalled, RunStarted, RunStopped, StartRun, StopRun
from refold.engines.local import no_exported_environment, no_secrets
from refold.engines.slurm.job_owners import DaemonOwner, JobOwners, Uid
from refold.engines.slurm.nodes import SlurmCluster
from refold.engines.slurm.pool import HeldPool
from refold.engines.slurm.programs import Programs, SlurmError
from refold.engines.slurm.refusals import Refusals
from refold.engines.slurm.requests import DEFAULT_SETTINGS, SlurmSettings
from refold.engines.slurm.run_jobs import QueuedRuns, RunKey, RunSteps, SlurmId, read_runs
from refold.engines.slurm.run_state import (
    Abandon,
    Cancel,
    Ended,
    Ending,
    Facts,
    GiveUp,
    Postpone,
    ReportStarted,
    RunState,
    SignalRun,
    Step,
    Submit,
    waiting_reason,
)
from refold.engines.slurm.scripts import KILL_SIGNAL, STOP_SIGNAL, SlurmRunFiles
from refold.engines.slurm.step_submission import NotStarted, StepSubmitter
from refold.engines.slurm.submission import InstanceWriter, JobSubmitter, Submitter, SupervisedRun, describe_failure
from refold.errors import RefoldError
from refold.model import Allocation, Job, Seconds
from refold.server import ExportedOf, Report, SecretsOf
from refold.server.output import LogRotator

DEFAULT_POLL: Seconds = 1.0
"""How often Slurm is asked for the state of all runs. It is asked once for all of them."""

MAX_LOAD = 0.2
"""Part of the time that may be spent on asking: a controller that answers slowly is asked less often."""

DETACH_SECONDS: Seconds = 5.0
"""How long submissions that are under way are waited for when the daemon ends."""

MAX_REMEMBERED_ENDS = 10_000

log = logging.getLogger("refold")


class SlurmBackend:
    """Submits, follows and ends jobs of Slurm. Create it inside a running event loop.

    `out`: the folder of output and records, which all nodes must see under the same path. `daemon`: tells the runs of
    this daemon from those of others. `grace`: the grace period of runs. `pool`: where runs are started as steps, if it
    is used. `owners`: as whom jobs run; by default, as this user. `refusals`: where it is noted what Slurm refuses.
    """

    def __init__(
        self,
        report: Report,
        programs: Programs,
        nodes: SlurmCluster,
        out: Path,
        daemon: str,
        settings: SlurmSettings = DEFAULT_SETTINGS,
        *,
        pool: HeldPool | None = None,
        owners: JobOwners | None = None,
        refusals: Refusals | None = None,
        grace: Seconds = 10.0,
        exported: ExportedOf = no_exported_environment,
        secrets: SecretsOf = no_secrets,
        max_output_bytes: int = 64 * 2**20,
        poll: Seconds = DEFAULT_POLL,
    ) -> None:
        self._report = report
        self._programs = programs
        self._out = out.absolute()
        self._daemon = daemon
        self._grace = grace
        self._poll = poll
        self._pool = pool
        self._nodes = nodes
        self._refusals = refusals or Refusals()
        self._owners = owners or DaemonOwner(programs)
        self._instances = InstanceWriter(nodes, self._owners, exported, secrets)
        self._submitter: Submitter = (
            StepSubmitter(programs, nodes, daemon, pool, self._instances)
            if pool is not None and pool.is_used
            else JobSubmitter(self._owners, nodes, daemon, settings, self._instances, self._refusals)
        )
        self._rotator = LogRotator(max_output_bytes)
        self._runs: dict[RunKey, SupervisedRun] = {}
        self._ends: dict[RunKey, Ending] = {}
        """The ends of the last runs. The order to start one may be repeated until the loop knows its end."""
        self._submissions: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_reachable = True
        self._following = asyncio.create_task(self._follow())

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Submit or adopt jobs, or request their end; then return."""
        for order in orders:
            match order:
                case StartRun(job_id, number):
                    await self._start(jobs[job_id], order)
                case StopRun(job_id, number):
                    if run := self._runs.get((job_id, number)):
                        self._stop(run)

    async def close(self) -> None:
        """Kill all runs, and wait until they have ended."""
        await self._end_runs(list(self._runs.values()))
        await self.detach()

    def kill(self, job_id: str) -> None:
        """End the run of a job without a grace period, if there is one."""
        for run in self._runs.values():
            if run.job.id == job_id:
                self._stop(run, kill=True)

    async def detach(self) -> None:
        """Stop following; jobs continue until another back end adopts them."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=DETACH_SECONDS)
        for run in self._runs.values():
            await run.stack.aclose()

    async def stop_all_except(self, runs: Collection[RunKey]) -> None:
        """Kill the runs of this daemon in Slurm, except these, and wait until they have ended."""
        wanted = set(runs)
        found = await self._read_jobs_at_last()
        for key, owner in found.unended().items():
            if key not in wanted and key not in self._runs:
                self._runs[key] = self._stray(key, owner)
        await self._end_runs([run for key, run in self._runs.items() if key not in wanted])

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return ""

    # Orders.

    async def _start(self, job: Job, order: StartRun) -> None:
        key = (job.id, order.run)
        if key in self._runs:
            return
        if end := self._ends.get(key):
            self._report(end)
            return
        files, owner = SlurmRunFiles(self._out, *key), self._owners.uid_of(job.user)
        grace = self._grace if job.launch.grace is None else job.launch.grace
        has_step = self._instances.has_step(order.allocation)
        run = self._runs[key] = SupervisedRun(job, order.allocation, files, RunState(key, grace), owner, has_step)
        logs = [files.common.log(instance) for instance in range(len(order.allocation.placement))]
        await run.stack.enter_async_context(self._rotator.watch(logs))
        if recorded := files.common.read_end():
            run.state.stop = isinstance(recorded, RunStopped)
            run.state.given_up = recorded if isinstance(recorded, RunFailed) else None
        if recorded or files.was_prepared():
            self._wake.set()
        else:
            self._submit(run)

    def _stop(self, run: SupervisedRun, *, kill: bool = False) -> None:
        """Record the stop before it is signalled: a job that has not begun will not begin."""
        run.state.stop = True
        run.state.kill |= kill
        self._record_stop(run)
        self._wake.set()

    def _record_stop(self, run: SupervisedRun) -> None:
        if not run.is_stop_recorded:
            run.is_stop_recorded = self._record_end(run, run.state.given_up or RunStopped(*run.state.key))

    def _record_end(self, run: SupervisedRun, end: RunStopped | RunFailed) -> bool:
        """Record how a run ends; return whether that was possible. A job of another user is never ours."""
        try:
            if not run.is_stray:
                self._owners.prepare(run.owner, *run.files.common.place)
        except (OSError, RefoldError):
            return False
        return run.files.are_of(run.owner) and run.files.record_end(end)

    async def _end_runs(self, runs: Iterable[SupervisedRun]) -> None:
        ending = list(runs)
        for run in ending:
            self._stop(run, kill=True)
        for run in ending:
            await run.ended.wait()

    def _stray(self, key: RunKey, owner: Uid) -> SupervisedRun:
        """Return a run that the scheduler does not know. Its end is not reported."""
        files = SlurmRunFiles(self._out, *key)
        return SupervisedRun(Job(key[0]), Allocation(()), files, RunState(key, 0.0), owner, is_stray=True)

    # Following.

    async def _follow(self) -> None:
        """Ask Slurm for all runs, again and again, while there are runs."""
        while True:
            await self._wait_for_round()
            began = monotonic()
            try:
                await self._round(began)
            except Exception:
                log.exception("cannot follow the runs in Slurm; trying again")
            elapsed = monotonic() - began
            await asyncio.sleep(max(self._poll / 10, elapsed / MAX_LOAD - elapsed))

    async def _wait_for_round(self) -> None:
        timeout = self._poll if self._runs else None
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _round(self, began: Seconds) -> None:
        runs = dict(self._runs)
        claimed = {key for key, run in runs.items() if run.files.claim() is not None}
        found = await self._read_jobs()
        if found is None:
            return
        await asyncio.gather(
            *(
                self._advance(run, found, key in claimed)
                for key, run in runs.items()
                if run.submission is None and run.submitted_at < began
            ),
            *(self._cancel(owner, each) for each, owner in self._late_jobs(found)),
        )

    async def _advance(self, run: SupervisedRun, found: QueuedRuns, was_claimed: bool) -> None:
        key, claim, status = run.state.key, run.files.claim(), run.files.status()
        run.parts = tuple(found.steps.get(key, RunSteps([], [])).parts)
        self._evict_in_time(run, claim)
        facts = Facts(found.jobs_of(key, run.owner, claim, status), claim, status, monotonic(), was_claimed)
        self._refusals.note_waiting(key[0], waiting_reason(facts))
        for step in run.state.next_steps(facts):
            await self._take(run, step)

    def _evict_in_time(self, run: SupervisedRun, claim: SlurmId | None) -> None:
        """End a run before its allocation in the pool ends; it is started again elsewhere."""
        if self._pool is None or claim is None or "." not in claim:
            return
        why = self._pool.end_reason(claim, run.state.grace, time())
        if why and run.state.evict(why):
            self._record_stop(run)

    async def _take(self, run: SupervisedRun, step: Step) -> None:
        key = run.state.key
        match step:
            case Submit():
                self._submit(run)
            case SignalRun(number, kill):
                await self._signal(run, number, KILL_SIGNAL if kill else STOP_SIGNAL)
            case Cancel(number):
                await self._cancel(run.owner, number)
            case GiveUp(end, number):
                self._record_end(run, end)
                nodes = {index: self._nodes.groups[index].node.name for index in run.allocation.nodes}
                for event in self._refusals.refuse(nodes, f"run {key[1]} of {key[0]}: {end.why}", time()):
                    self._report(event)  # at once, since the job is placed again soon
                await self._cancel(run.owner, number)
            case Postpone(reason):
                self._refusals.note_limit(key[0], reason)
                self._report_of(run, RunRecalled(*key, f"Slurm: {reason}"))
            case Abandon(number):
                assert self._pool is not None, "only a pool has steps"
                self._pool.abandon(number)
            case ReportStarted():
                self._refusals.note_started(key[0])
                self._report_of(run, RunStarted(*key))
            case Ended(end, cancelled):
                if isinstance(end, RunFailed):
                    self._record_end(run, end)  # no job that is still unknown can start it
                if cancelled:
                    self._report_of(run, JobCancelled(key[0], cancelled))
                await self._finish(run, end)

    def _submit(self, run: SupervisedRun) -> None:
        if run.is_stray:
            return
        run.submission = asyncio.create_task(self._submit_now(run))
        self._submissions.add(run.submission)
        run.submission.add_done_callback(self._submissions.discard)

    async def _submit_now(self, run: SupervisedRun) -> None:
        failure = None
        try:
            await self._submitter.submit(run)
        except NotStarted as error:
            failure = None if run.state.stop else RunFailed(*run.state.key, str(error), retry=True)
        except SlurmError as error:
            if error.is_transient:  # whether it was submitted will be seen
                log.warning("run %d of %s: %s; trying again", run.state.key[1], run.job.id, error)
                await asyncio.sleep(self._poll)
            else:
                failure = RunFailed(*run.state.key, str(error))
        except (RefoldError, OSError) as error:
            failure = RunFailed(*run.state.key, str(error))
        run.submission, run.submitted_at = None, monotonic()
        if failure is not None:
            await self._finish(run, failure)
        self._wake.set()

    async def _finish(self, run: SupervisedRun, end: Ending) -> None:
        """Report the end of a run, once."""
        key = run.state.key
        if isinstance(end, RunFailed) and not end.why:
            end = await asyncio.to_thread(describe_failure, run, end)
        await run.stack.aclose()
        self._refusals.note_waiting(key[0], None)
        del self._runs[key]
        self._ends[key] = end
        if len(self._ends) > MAX_REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]
        self._report_of(run, end)
        run.ended.set()

    def _report_of(self, run: SupervisedRun, event: RunStarted | RunRecalled | JobCancelled | Ending) -> None:
        if not run.is_stray:
            self._report(event)

    def _late_jobs(self, found: QueuedRuns) -> list[tuple[SlurmId, Uid]]:
        """Return what belongs to runs that have ended, and its owners: its start was thought to have failed."""
        ended = self._ends.keys() - self._runs.keys()
        jobs = [job for key in found.jobs.keys() & ended for job in found.jobs[key]]
        steps = [each for key in found.steps.keys() & ended for kind in found.steps[key] for each in kind]
        pool = self._pool
        return [
            *((job.id, job.owner) for job in jobs if not job.has_ended and job.state != "COMPLETING"),
            *((step, os.getuid()) for step in steps if pool is None or not pool.is_abandoned(step)),
        ]

    # Calls.

    async def _read_jobs(self) -> QueuedRuns | None:
        """Return what Slurm has of this daemon; None if it does not answer."""
        with_steps = self._pool is not None and bool(self._pool.is_used or self._pool.jobs)
        try:
            found = await asyncio.to_thread(
                read_runs, self._programs.run, self._daemon, with_steps, self._owners.selection
            )
        except SlurmError as error:
            if self._is_reachable:
                log.warning("Slurm does not answer; runs continue: %s", error)
            self._is_reachable = False
            return None
        if not self._is_reachable:
            log.info("Slurm answers again")
        self._is_reachable = True
        return found

    async def _read_jobs_at_last(self) -> QueuedRuns:
        while (found := await self._read_jobs()) is None:
            await asyncio.sleep(self._poll)
        return found

    async def _signal(self, run: SupervisedRun, number: SlurmId, name: str) -> None:
        """Send a signal to the agents of a run: a batch script, the tasks of the step of a job, or its own steps."""
        self._record_stop(run)
        batch, steps = (f"--signal={name}", "--batch", number), (f"--signal={name}", number, *run.parts)
        is_job_of_stray = run.is_stray and "." not in number
        calls = [batch, steps] if is_job_of_stray else [steps if run.has_step or "." in number else batch]
        for arguments in calls:
            try:
                await asyncio.to_thread(self._owners.run, run.owner, "scancel", *arguments)
            except SlurmError as error:
                log.info("run %d of %s: %s", run.state.key[1], run.job.id, error)
                run.state.ask_again()

    async def _cancel(self, owner: Uid, number: SlurmId) -> None:
        try:
            await asyncio.to_thread(self._owners.run, owner, "scancel", "--quiet", number)
        except SlurmError as error:
            log.info("job %s of Slurm cannot be cancelled: %s", number, error)
