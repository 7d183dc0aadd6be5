"""The service behind the API: check permissions, answer queries, commit changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from time import time

from msgspec.structs import replace

from refold import __version__
from refold.client import api
from refold.errors import BadInput
from refold.model import Job, PreemptionOutlook
from refold.server.admission import Admission, AdmissionRules
from refold.server.alerts import find_alerts
from refold.server.drain import DrainManager
from refold.server.environments import Environments
from refold.server.http import EventStream
from refold.server.inbox import Inbox
from refold.server.job_changes import JobChanger
from refold.server.job_queries import JobQueries
from refold.server.live_state import LiveState, journal_lines, snapshot_lines
from refold.server.monitor import GpuPoller
from refold.server.planner import CostlyQuestions, Planner
from refold.server.policy_comparison import PolicyComparer
from refold.server.preemption_question import PreemptionAdviser
from refold.server.preview import Previewer
from refold.server.run_log import RunLog, make_timeline
from refold.server.start_conditions import StartConditions
from refold.server.start_forecasts import StartForecasts
from refold.server.status import node_statuses, tenant_statuses, user_statuses
from refold.server.store import Store
from refold.server.tokens import TokenStore

WITH_GRACE = api.CancelQuery()


class SchedulerService:
    """The daemon as the API sees it."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        store: Store,
        jobs: JobQueries,
        *,
        environments: Environments,
        conditions: StartConditions,
        drains: DrainManager,
        gpus: GpuPoller,
        forecasts: StartForecasts,
        tokens: TokenStore,
        event_stream: EventStream,
        use_of: Callable[[str], list[api.UseSample]],
        kill: Callable[[str], None],
        rules: AdmissionRules,
        node_limits: str = "",
    ) -> None:
        """`kill`: kills the run of a job without a grace period. `use_of`: returns what a job has used over time.

        `node_limits`: whether CPUs and memory that jobs request are enforced or counted.
        """
        self._node_limits = node_limits
        self.event_stream = event_stream
        self._state = state
        self._inbox = inbox
        self._reader = store.reader
        self._jobs = jobs
        self.admission = Admission(state, inbox, store.reader, environments, jobs.find, rules)
        self._costly = CostlyQuestions()
        self._planner = Planner()
        self._policies = PolicyComparer(state, store.reader)
        self._preemption = PreemptionAdviser(state, store.reader)
        self._run_log = RunLog(store.reader)
        self._previewer = Previewer(state, self.admission, forecasts)
        self._environments = environments
        self._changes = JobChanger(state, inbox, jobs, conditions, kill)
        self._drains = drains
        self._gpus = gpus
        self._use_of = use_of
        self._forecasts = forecasts
        self._tokens = tokens
        self._kill = kill
        self._started = time()

    def info(self, caller: api.Caller) -> api.DaemonInfo:
        """Describe the daemon and the caller's rights."""
        view, header = self._state.view, self._state.header
        return api.DaemonInfo(
            version=__version__,
            cluster=header.cluster.name,
            policy=header.policy,
            nodes=len(header.cluster.nodes),
            gpus=header.cluster.gpus,
            free_gpus=view.free_gpus,
            drained_gpus=view.down_gpu_count,
            running=len(view.active),
            waiting=len(view.waiting),
            held=len(view.held),
            now=time(),
            started=self._started,
            storage=self._inbox.problem,
            role=caller.role,
            tenant=caller.tenant,
            user=caller.user,
            own_jobs_only=caller.own_jobs_only,
            forecasts_starts=True,
            start_accuracy=self._forecasts.accuracy,
            last_event=self.event_stream.last,
            slots=header.cluster.has_slots,
        )

    # Jobs.

    async def submit(self, caller: api.Caller, submission: api.Submission) -> api.JobStatus:
        """Submit a job; return when it is on disk."""
        if submission.array:
            raise BadInput("array: an array is several jobs; send it to POST submissions (Client.submit_all)")
        (job_id,) = await self.admission.accept(caller, [submission])
        return self._jobs.status(caller, job_id)

    async def submit_all(self, caller: api.Caller, submissions: list[api.Submission]) -> api.Jobs:
        """Submit jobs in one commit: all or none."""
        ids = await self.admission.accept(caller, submissions)
        return api.Jobs(self._jobs.statuses(caller, ids), len(ids))

    async def create_environment(self, caller: api.Caller, environment: api.NewEnvironment) -> api.StoredEnvironment:
        return await self._environments.create(caller, environment)

    async def environment(self, caller: api.Caller, job: str) -> api.JobEnvironment:
        """Return the variables that a job inherits from its submitter."""
        return self._environments.of_job(caller, self._jobs.readable(caller, job).id)

    async def preview(self, caller: api.Caller, submission: api.Submission) -> api.Preview:
        """Return the expected outcome of a submission, without submitting it."""
        with self._costly.admit(caller):
            return await self._previewer.preview(caller, submission)

    async def whatif(self, caller: api.Caller, question: api.WhatIf) -> api.WhatIfOutcome:
        """Return the expected outcome of several variants of a submission, without submitting any."""
        with self._costly.admit(caller):
            return await self._previewer.compare(caller, question)

    async def compare_policies(self, caller: api.Caller, question: api.PolicyQuestion) -> api.PolicyComparison:
        """Return when the current jobs would start and end under other policies."""
        with self._costly.admit(caller):
            return await self._policies.compare(question)

    async def preemption_outlook(self, caller: api.Caller) -> PreemptionOutlook:
        """Return what preemption would have cost and brought."""
        with self._costly.admit(caller):
            return await self._preemption.outlook()

    def catalogue(self, caller: api.Caller) -> api.Catalogue:
        """Return the names that a question about plans or policies may use."""
        return self._planner.catalogue()

    async def plan(self, caller: api.Caller, question: api.PlanQuestion) -> api.PlanAnswer:
        """Return the best plans of a model on given GPUs."""
        with self._costly.admit(caller):
            return await self._planner.plan(question)

    async def jobs(self, caller: api.Caller, query: api.JobsQuery) -> api.Jobs:
        """Return a page of active jobs in queue order, or of ended jobs, latest first."""
        return await self._jobs.ended_page(caller, query) if query.ended else self._jobs.active_page(caller, query)

    async def job(self, caller: api.Caller, job: str) -> api.JobStatus:
        return self._jobs.status(caller, self._jobs.find(job))

    async def why(self, caller: api.Caller, job: str) -> api.JobExplanation:
        """Return the status and the event history of a job."""
        return self._jobs.explain(caller, job)

    async def logs(self, caller: api.Caller, job: str, query: api.LogsQuery) -> api.Logs:
        """Return a part of a run's output."""
        return await self._jobs.read_logs(caller, job, query)

    def use(self, caller: api.Caller, job: str) -> api.JobUse:
        return api.JobUse(self._use_of(self._jobs.readable(caller, job).id))

    async def cancel(self, caller: api.Caller, job: str, query: api.CancelQuery = WITH_GRACE) -> api.JobStatus:
        """Cancel a job. Its run is stopped; it is killed at once if the job was cancelled before."""
        return self._jobs.status(caller, await self._changes.change(caller, job, "cancel", now=query.now))

    async def hold(self, caller: api.Caller, job: str) -> api.JobStatus:
        """Hold a job: it does not start until it is released."""
        return self._jobs.status(caller, await self._changes.change(caller, job, "hold"))

    async def release(self, caller: api.Caller, job: str) -> api.JobStatus:
        """Release a held job. It stays held for conditions that are not met, such as dependencies."""
        return self._jobs.status(caller, await self._changes.change(caller, job, "release"))

    async def change_jobs(self, caller: api.Caller, change: api.JobChange) -> api.JobChanges:
        """Cancel, hold or release many jobs."""
        return await self._changes.change_all(caller, change)

    # The cluster.

    def nodes(self, caller: api.Caller) -> list[api.NodeStatus]:
        return node_statuses(self._state.view, self._node_limits)

    async def drain(self, caller: api.Caller, node: str, query: api.DrainQuery) -> api.NodeStatus:
        index = await self._drains.drain(node, query.gpu, query.reason or f"by {caller.name}", query.move or query.now)
        if query.now:
            for job in self._drains.jobs_on(index, query.gpu):
                self._kill(job)
        return self.nodes(caller)[index]

    async def resume(self, caller: api.Caller, node: str, query: api.GpuQuery) -> api.NodeStatus:
        index = await self._drains.resume(node, query.gpu)
        self._gpus.mark_healthy(index, query.gpu)
        return self.nodes(caller)[index]

    async def gpus(self, caller: api.Caller) -> list[api.GpuStatus]:
        """Return all GPUs, with the owners of their jobs as far as the caller may know them."""
        active = self._state.view.active
        return [
            _with_owner(caller, gpu, active.get(gpu.jobs[0])) if gpu.jobs else gpu
            for gpu in await self._gpus.statuses()
        ]

    def alerts(self, caller: api.Caller) -> list[api.Alert]:
        return find_alerts(caller, self._state, self._inbox.problem, self._forecasts.late_jobs())

    async def timeline(self, caller: api.Caller, query: api.TimelineQuery) -> api.Timeline:
        """Return what ran where in the recent past."""
        return await make_timeline(caller, self._state, self._run_log, query.seconds, self._gpus.busy)

    def tenants(self, caller: api.Caller) -> list[api.TenantStatus]:
        return tenant_statuses(self._state.view)

    def users(self, caller: api.Caller) -> list[api.UserStatus]:
        return user_statuses(self._state.view, self._state.header)

    # Tokens.

    async def tokens(self, caller: api.Caller) -> list[api.TokenStatus]:
        return self._tokens.list()

    async def create_token(self, caller: api.Caller, token: api.NewToken) -> api.CreatedToken:
        """Create a token. Its secret is shown only once."""
        return await self._tokens.create(token)

    async def revoke_token(self, caller: api.Caller, name: str) -> api.TokenStatus:
        revoked = await self._tokens.revoke(name)
        self.event_stream.wake()
        return revoked

    # The journal.

    async def snapshot(self, caller: api.Caller, query: api.SnapshotQuery) -> bytes:
        """Return the current state as a journal."""
        return await snapshot_lines(self._state, self._reader, query.whole)

    def journal(self, caller: api.Caller) -> AsyncIterator[bytes]:
        return journal_lines(self._reader.journal)


def _with_owner(caller: api.Caller, gpu: api.GpuStatus, job: Job | None) -> api.GpuStatus:
    if job is None:
        return gpu
    return replace(gpu, tenant=job.tenant, user=job.user if caller.can_read(job.tenant, job.user) else "")
