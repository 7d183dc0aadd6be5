"""The Python client: `refold.Client().submit(command=["python", "train.py"])`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from refold.client import api
from refold.client.address import find_address
from refold.client.api import MAX_PAGE_JOBS
from refold.client.connection import Connection
from refold.client.export import EXPORT_ALL, choose_exported
from refold.client.jobspec import Submittable, export_of, make_submission, with_request_id
from refold.errors import BadFile, NoDaemon, Unavailable, WaitTimeout
from refold.model import PreemptionOutlook

RETRY_SECONDS = 0.5
"""Seconds between two polls of a growing log, or of a daemon that does not answer."""

Answer = TypeVar("Answer")


def _default_export(source: Submittable | None, fields: Mapping[str, Any]) -> str:
    """Return what a job inherits if the caller does not say so; '' for a job that is described completely."""
    is_complete = isinstance(source, api.Submission | Mapping) or "exported" in fields
    return "" if is_complete else export_of(source) or EXPORT_ALL


class Client:
    """A client of the daemon. Errors that the daemon reports are raised as exceptions of `refold.errors`.

    Address and token default to REFOLD_ADDRESS and REFOLD_TOKEN, else to this user's daemon on this machine. `timeout`:
    seconds to wait for an answer, and for a restarting daemon in `wait`, `logs` and `events`.
    """

    def __init__(self, address: str | None = None, token: str | None = None, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._connection = Connection(find_address(address, token), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The daemon's URL."""
        return self._connection.address

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._connection.close()

    def info(self) -> api.DaemonInfo:
        """Return the daemon's status and the caller's identity."""
        return self._call(api.DaemonInfo, "info")

    def submit(self, source: Submittable | None = None, *, export: str = "", **fields: Any) -> api.JobStatus:
        """Submit a job, given as a Submission, as a mapping or keywords of its fields, or as a job file.

        Keywords override the file. `export`: the variables of this process that the job inherits, as in `refold submit
        --export`: 'ALL', 'A,B', 'ALL,A=1', or 'NONE': those of the daemon. Default: as the file says, else 'ALL'; a
        Submission or mapping is sent as it is. When this returns, the job is on disk.
        """
        submission = self._with_environment(make_submission(source, fields), export or _default_export(source, fields))
        return self._call(api.JobStatus, "submit", body=with_request_id(submission))

    def submit_all(self, submissions: Sequence[api.Submission], *, export: str = "") -> list[api.JobStatus]:
        """Submit up to 1,000 jobs, all or none; a submission with an array becomes several. `export` as in `submit`."""
        exporting = [self._with_environment(submission, export) for submission in submissions]
        return self._call(api.Jobs, "submit_all", body=[with_request_id(submission) for submission in exporting]).jobs

    def _with_environment(self, submission: api.Submission, export: str) -> api.Submission:
        exported = choose_exported(os.environ, export) if export else None
        if exported is None:
            return submission
        return msgspec.structs.replace(submission, exported=self.create_environment(exported.variables).id)

    def create_environment(self, variables: Mapping[str, str]) -> api.StoredEnvironment:
        """Store environment variables. A submission gives the id as `exported` to inherit them."""
        return self._call(api.StoredEnvironment, "create_environment", body=api.NewEnvironment(dict(variables)))

    def environment(self, job: str | int) -> api.JobEnvironment:
        """Return the variables that a job inherits from its submitter; values only for your own jobs."""
        return self._call(api.JobEnvironment, "environment", job)

    def preview(self, source: Submittable | None = None, **fields: Any) -> api.Preview:
        """Return the expected outcome of a submission, without submitting it. Same arguments as `submit`."""
        return self._call(api.Preview, "preview", body=make_submission(source, fields))

    def whatif(self, variants: Sequence[api.Submission], seed: int = 0) -> api.WhatIfOutcome:
        """Return when each variant of a job would start and end, without submitting any of them."""
        return self._call(api.WhatIfOutcome, "whatif", body=api.WhatIf(list(variants), seed))

    def compare_policies(self, policies: Sequence[str], futures: int = 10, seed: int = 0) -> api.PolicyComparison:
        """Return when the current jobs would start and end under other policies."""
        return self._call(
            api.PolicyComparison, "compare_policies", body=api.PolicyQuestion(list(policies), futures, seed)
        )

    def preemption_outlook(self) -> PreemptionOutlook:
        """Return how long the latest jobs would have waited if all, those that consent, or none could be preempted."""
        return self._call(PreemptionOutlook, "preemption_outlook")

    def catalogue(self) -> api.Catalogue:
        """Return the models, GPUs and frameworks that `plan` knows."""
        return self._call(api.Catalogue, "catalogue")

    def plan(self, question: api.PlanQuestion) -> api.PlanAnswer:
        """Return the best plans of a model on given GPUs."""
        return self._call(api.PlanAnswer, "plan", body=question)

    def job(self, job: str | int) -> api.JobStatus:
        """Return a job by its id ('train-17'), its number, or its name if that is unique."""
        return self._call(api.JobStatus, "job", job)

    def jobs(
        self,
        *,
        state: Sequence[api.JobState] | None = None,
        tenant: str = "",
        user: str = "",
        name: str = "",
        match: str = "",
        limit: int = 100,
        after: int = 0,
        ended: bool | None = None,
    ) -> api.Jobs:
        """Return a page of jobs: running jobs, then waiting ones in queue order; with `ended` ended jobs, latest first.

        `match` selects active jobs: 'train-*', the array '12', its tasks '12_[0-3]'. `ended` defaults to whether all of
        `state` are final states.
        """
        only_ended = bool(state) and api.ENDED_STATES.issuperset(state or ()) if ended is None else ended
        filters = {"state": state, "tenant": tenant, "user": user, "name": name, "match": match}
        return self._call(api.Jobs, "jobs", **filters, limit=limit, after=after, ended=only_ended)

    def queue(self, **filters: Any) -> Iterator[api.JobStatus]:
        """Yield all jobs that have not ended: running jobs, then waiting ones in queue order. Filters as in `jobs`."""
        return self._pages(ended=False, **filters)

    def history(self, **filters: Any) -> Iterator[api.JobStatus]:
        """Yield all ended jobs, latest first. Filters as in `jobs`."""
        return self._pages(ended=True, **filters)

    def why(self, job: str | int) -> api.JobExplanation:
        """Return a job with its history and the reason why it is waiting."""
        return self._call(api.JobExplanation, "why", job)

    def cancel(self, job: str | int, *, now: bool = False) -> api.JobStatus:
        """Cancel a job. Its run gets the stop signal, and SIGKILL after its grace period."""
        return self._call(api.JobStatus, "cancel", job, now=now)

    def hold(self, job: str | int) -> api.JobStatus:
        """Hold a job: do not start it until it is released."""
        return self._call(api.JobStatus, "hold", job)

    def release(self, job: str | int) -> api.JobStatus:
        """Release a held job."""
        return self._call(api.JobStatus, "release", job)

    def change_jobs(
        self,
        action: api.JobAction,
        jobs: Sequence[str | int] = (),
        *,
        match: str = "",
        tenant: str = "",
        user: str = "",
        now: bool = False,
    ) -> api.JobChanges:
        """Cancel, hold or release many jobs: up to 10,000 that are named, or all that pass a filter ('*' is all)."""
        change = api.JobChange(action, list(map(str, jobs)), match, tenant, user, now)
        return self._call(api.JobChanges, "change_jobs", body=change)

    def wait(self, job: str | int, timeout: float | None = None) -> api.JobStatus:
        """Wait for a job to end and return it; raise `WaitTimeout` after `timeout` seconds.

        Survives a restart of the daemon, if that takes less than the client's timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        status = self.job(job)
        job_id = status.id
        while status.state not in api.ENDED_STATES:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise WaitTimeout(f"{status.id} is {status.state} after {timeout:g} s")
            for status in self._watch(job_id, remaining):
                if status.state in api.ENDED_STATES or (deadline is not None and time.monotonic() >= deadline):
                    break
        return status

    def read_logs(
        self,
        job: str | int,
        *,
        run: int | None = None,
        instance: int = 0,
        offset: int = 0,
        limit: int = api.MAX_LOG_BYTES,
    ) -> api.Logs:
        """Return a chunk of a run's output (default: the latest run). A negative `offset` counts from the end."""
        return self._call(api.Logs, "logs", job, run=run, instance=instance, offset=offset, limit=limit)

    def logs(
        self, job: str | int, follow: bool = False, *, run: int | None = None, instance: int = 0, offset: int = 0
    ) -> Iterator[str]:
        """Yield a run's output in chunks. `follow`: continue with new output and later runs until the job ends."""
        one_run = run is not None
        while True:
            read = partial(self.read_logs, job, run=run, instance=instance, offset=offset)
            chunk = self._retry(read) if follow else read()
            if chunk.text:
                yield chunk.text
            elif not follow or (chunk.ended and one_run):
                return
            elif chunk.ended or not chunk.run:
                status = self.job(job)
                if status.runs > chunk.run:
                    run, offset = chunk.run + 1, 0
                    continue
                if status.state in api.ENDED_STATES:
                    return
            run, offset = chunk.run or run, chunk.next
            if not chunk.text:
                time.sleep(RETRY_SECONDS)

    def nodes(self) -> list[api.NodeStatus]:
        """Return all nodes."""
        return self._call(list[api.NodeStatus], "nodes")

    def drain(
        self, node: str, reason: str = "", gpu: int | None = None, move: bool = False, now: bool = False
    ) -> api.NodeStatus:
        """Drain a node or one of its GPUs. `move`: requeue the node's runs (those on a single GPU always are)."""
        return self._call(api.NodeStatus, "drain", node, reason=reason, gpu=gpu, move=move, now=now)

    def resume(self, node: str, gpu: int | None = None) -> api.NodeStatus:
        """Return a drained node or GPU to service."""
        return self._call(api.NodeStatus, "resume", node, gpu=gpu)

    def use(self, job: str | int) -> api.JobUse:
        """Return what a job has used over time: CPUs, memory, GPUs. At most 400 samples, while the daemon runs."""
        return self._call(api.JobUse, "use", job)

    def gpus(self) -> list[api.GpuStatus]:
        """Return all GPUs: jobs, memory, utilisation, temperature."""
        return self._call(list[api.GpuStatus], "gpus")

    def alerts(self) -> list[api.Alert]:
        """Return what needs attention: faults, suspected hangs, late starts."""
        return self._call(list[api.Alert], "alerts")

    def timeline(self, seconds: float = 6 * 3600.0) -> api.Timeline:
        """Return what ran where in the last seconds."""
        return self._call(api.Timeline, "timeline", seconds=seconds)

    def tenants(self) -> list[api.TenantStatus]:
        """Return all tenants with quota and usage."""
        return self._call(list[api.TenantStatus], "tenants")

    def users(self) -> list[api.UserStatus]:
        """Return all users with their jobs and the GPU time used."""
        return self._call(list[api.UserStatus], "users")

    def sign_in_link(self) -> api.SignInLink:
        """Return a link that signs in to the web UI once, as this caller, within five minutes."""
        return self._call(api.SignInLink, "sign_in_link")

    def tokens(self) -> list[api.TokenStatus]:
        """Return all access tokens, without their secrets."""
        return self._call(list[api.TokenStatus], "tokens")

    def create_token(
        self, name: str, role: api.Role = "member", tenant: str = "default", user: str = ""
    ) -> api.CreatedToken:
        """Create an access token. Its text is returned only once."""
        return self._call(api.CreatedToken, "create_token", body=api.NewToken(name, role, tenant, user))

    def revoke_token(self, name: str) -> api.TokenStatus:
        """Revoke an access token."""
        return self._call(api.TokenStatus, "revoke_token", name)

    def snapshot(self, path: str | os.PathLike[str], *, whole: bool = False) -> Path:
        """Write the daemon's current state to a file, as a journal that `refold replay` reads.

        `whole`: include confidential fields: commands, environment variables, notification addresses.
        """
        return self._save("snapshot", Path(path), whole=whole)

    def journal(self, path: str | os.PathLike[str]) -> Path:
        """Write the journal to a file."""
        return self._save("journal", Path(path))

    def events(
        self, since: int | None = None, *, job: str = "", tenant: str = "", follow: bool = True
    ) -> Iterator[api.Event]:
        """Yield events as they happen, after event number `since` if given.

        Resumes after a restart of the daemon. Events that were dropped because they were not read in time are replaced
        by one of kind `lost`. Without `follow`, yield only the buffered events.
        """
        position = 0 if since is None and not follow else since
        while True:
            try:
                for item in self._connection.events(since=position, job=job, tenant=tenant, follow=follow):
                    position = item.number if isinstance(item, api.Event) else item
                    if isinstance(item, api.Event):
                        yield item
            except (NoDaemon, Unavailable):
                if not follow:
                    raise
                self._retry(self.info)
            if not follow:
                return
            time.sleep(RETRY_SECONDS)

    def _call(
        self, response_type: type[Answer], name: str, /, *path_values: str | int, body: Any = None, **query: Any
    ) -> Answer:
        return self._connection.call(response_type, name, *path_values, body=body, **query)

    def _pages(self, **filters: Any) -> Iterator[api.JobStatus]:
        after: int | None = 0
        while after is not None:
            page = self.jobs(limit=MAX_PAGE_JOBS, after=after, **filters)
            yield from page.jobs
            after = page.next

    def _save(self, name: str, path: Path, **query: Any) -> Path:
        """Write an answer to a file, which appears only once it is complete."""
        partial_path = path.with_name(path.name + ".partial")
        try:
            with partial_path.open("wb") as file:
                for chunk in self._connection.chunks(name, **query):
                    file.write(chunk)
            return partial_path.replace(path)
        except OSError as error:
            raise BadFile(path, f"cannot be written: {error.strerror}") from None
        finally:
            partial_path.unlink(missing_ok=True)

    def _watch(self, job_id: str, timeout: float | None) -> Iterator[api.JobStatus]:
        """Yield a job's status whenever it may have changed, until its event stream ends.

        The first status is fetched after the stream is open, so no later change is missed.
        """
        try:
            for _ in self._connection.events(timeout, job=job_id):
                yield self.job(job_id)
        except (NoDaemon, Unavailable):
            pass
        time.sleep(RETRY_SECONDS if timeout is None else min(RETRY_SECONDS, timeout))
        yield self._retry(partial(self.job, job_id))

    def _retry(self, call: Callable[[], Answer]) -> Answer:
        """Repeat a call until the daemon answers, for at most the client's timeout."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return call()
            except (NoDaemon, Unavailable):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_SECONDS)
