"""A daemon, from Python: `refold.Client().submit(command=["python", "train.py"])`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from refold.api import (
    LARGEST_LOGS,
    MOST_JOBS,
    OVER,
    DaemonInfo,
    Event,
    GpuStatus,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    MadeToken,
    NewToken,
    NodeStatus,
    Preview,
    Role,
    Submission,
    TenantStatus,
    TokenStatus,
    Why,
)
from refold.client.address import find_address
from refold.client.connection import Connection
from refold.errors import BadFile, NoDaemon, Unavailable, WaitTimeout
from refold.jobspec import Submittable, asked_once, one_submission

PAUSE = 0.5
"""Seconds between two looks at what grows, or at a daemon that does not answer."""


Answer = TypeVar("Answer")


class Client:
    """Somebody who asks a daemon. What it refuses is raised, as one of the errors in `refold.errors`.

    Without an address and a token, those of REFOLD_ADDRESS and REFOLD_TOKEN, or of the daemon on this machine.
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
        """Where the daemon is."""
        return self._connection.address

    def close(self) -> None:
        """Let the connection go. It comes back with the next question."""
        self._connection.close()

    def about(self) -> DaemonInfo:
        """The daemon, and who you are to it."""
        return self._ask(DaemonInfo, "about")

    def submit(self, what: Submittable | None = None, **fields: Any) -> JobStatus:
        """Submit a job: a Submission, its fields as a mapping or by name, or a file that has one.

        Fields that are named come before those of the file. The answer means that the job is on disk.
        """
        return self._ask(JobStatus, "submit", body=asked_once(one_submission(what, fields)))

    def submit_all(self, submissions: Sequence[Submission]) -> list[JobStatus]:
        """Submit up to 1,000 jobs: all of them, or none."""
        return self._ask(Jobs, "submit_all", body=[asked_once(submission) for submission in submissions]).jobs

    def preview(self, what: Submittable | None = None, **fields: Any) -> Preview:
        """What would become of a job. Takes what `submit` takes, and does nothing."""
        return self._ask(Preview, "preview", body=one_submission(what, fields))

    def job(self, job: str | int) -> JobStatus:
        """One job, by its id ('train-17'), its number, or its name if only one has it."""
        return self._ask(JobStatus, "job", job)

    def jobs(
        self,
        *,
        state: Sequence[JobState] | None = None,
        tenant: str = "",
        user: str = "",
        name: str = "",
        limit: int = 100,
        after: int = 0,
        ended: bool | None = None,
    ) -> Jobs:
        """A page of jobs: those that are not over, as the queue has them; or with `ended` the others, latest first.

        Without a word on `ended`, `state` tells which are meant.
        """
        over = bool(state) and OVER.issuperset(state or ()) if ended is None else ended
        return self._ask(
            Jobs, "jobs", state=state, tenant=tenant, user=user, name=name, limit=limit, after=after, ended=over
        )

    def queue(self, **which: Any) -> Iterator[JobStatus]:
        """All jobs that are not over: those that run, then the others in their order. Takes what `jobs` takes."""
        return self._pages(ended=False, **which)

    def history(self, **which: Any) -> Iterator[JobStatus]:
        """All jobs that are over, the latest first. Takes what `jobs` takes."""
        return self._pages(ended=True, **which)

    def why(self, job: str | int) -> Why:
        """The story of a job: why it waits, what became of its runs."""
        return self._ask(Why, "why", job)

    def cancel(self, job: str | int) -> JobStatus:
        """Cancel a job. A run that it has is asked to stop, and told to after its grace."""
        return self._ask(JobStatus, "cancel", job)

    def hold(self, job: str | int) -> JobStatus:
        """Do not start a job until it is released."""
        return self._ask(JobStatus, "hold", job)

    def release(self, job: str | int) -> JobStatus:
        """Let a held job start."""
        return self._ask(JobStatus, "release", job)

    def wait(self, job: str | int, timeout: float | None = None) -> JobStatus:
        """Until a job is over; `WaitTimeout` after so many seconds.

        A daemon that ends and comes back meanwhile is waited for as well, as long as for any answer.
        """
        until = None if timeout is None else time.monotonic() + timeout
        status = self.job(job)
        job_id = status.id
        while status.state not in OVER:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout(f"{status.id} is {status.state} after {timeout:g} s")
            for status in self._at_each_sign(job_id, left):
                if status.state in OVER or (until is not None and time.monotonic() >= until):
                    break
        return status

    def piece_of_logs(
        self, job: str | int, *, run: int | None = None, instance: int = 0, offset: int = 0, limit: int = LARGEST_LOGS
    ) -> Logs:
        """A piece of a run's output, the last run's if none is named. Before offset 0: so many bytes from the end."""
        return self._ask(Logs, "logs", job, run=run, instance=instance, offset=offset, limit=limit)

    def logs(
        self, job: str | int, follow: bool = False, *, run: int | None = None, instance: int = 0, offset: int = 0
    ) -> Iterator[str]:
        """A run's output in pieces. `follow`: go on with what is to come, also of later runs, until the job is over."""
        one_run = run is not None
        while True:
            look = partial(self.piece_of_logs, job, run=run, instance=instance, offset=offset)
            piece = self._patiently(look) if follow else look()
            if piece.text:
                yield piece.text
            elif not follow or (piece.over and one_run):
                return
            elif piece.over or not piece.run:
                status = self.job(job)
                if status.runs > piece.run:
                    run, offset = piece.run + 1, 0
                    continue
                if status.state in OVER:
                    return
            run, offset = piece.run or run, piece.next
            if not piece.text:
                time.sleep(PAUSE)

    def nodes(self) -> list[NodeStatus]:
        """The nodes."""
        return self._ask(list[NodeStatus], "nodes")

    def drain(self, node: str, why: str = "", gpu: int | None = None, move: bool = False) -> NodeStatus:
        """Give a node, or one GPU of it, no more work. `move`: its runs wait again; those on a GPU always do."""
        return self._ask(NodeStatus, "drain", node, why=why, gpu=gpu, move=move)

    def resume(self, node: str, gpu: int | None = None) -> NodeStatus:
        """Give a node, or one GPU of it, work again."""
        return self._ask(NodeStatus, "resume", node, gpu=gpu)

    def gpus(self) -> list[GpuStatus]:
        """The GPUs: how busy, how hot, whose."""
        return self._ask(list[GpuStatus], "gpus")

    def tenants(self) -> list[TenantStatus]:
        """The tenants: what they may count on, and what they use."""
        return self._ask(list[TenantStatus], "tenants")

    def tokens(self) -> list[TokenStatus]:
        """The tokens, without their secrets."""
        return self._ask(list[TokenStatus], "tokens")

    def new_token(self, name: str, role: Role = "member", tenant: str = "default", user: str = "") -> MadeToken:
        """Make a token. Its text is told this once."""
        return self._ask(MadeToken, "new_token", body=NewToken(name, role, tenant, user))

    def revoke_token(self, name: str) -> TokenStatus:
        """Let a token open nothing more."""
        return self._ask(TokenStatus, "revoke_token", name)

    def snapshot(self, path: str | os.PathLike[str], *, whole: bool = False) -> Path:
        """The present as a journal, into a file that `refold replay` reads.

        `whole`: with commands, variables of the environment and addresses, which are not for everybody's eyes.
        """
        return self._save("snapshot", Path(path), whole=whole)

    def journal(self, path: str | os.PathLike[str]) -> Path:
        """The journal so far, into a file."""
        return self._save("journal", Path(path))

    def events(
        self, since: int | None = None, *, job: str = "", tenant: str = "", follow: bool = True
    ) -> Iterator[Event]:
        """What happens, as it does, for ever; after the event of number `since` if one is named.

        A daemon that ends and comes back is asked to go on from the last event seen. Events that were dropped because
        nobody took them in time come as one of the kind `lost`. Without `follow`, those that there are already.
        """
        seen = 0 if since is None and not follow else since
        while True:
            try:
                for sign in self._connection.events(since=seen, job=job, tenant=tenant, follow=follow):
                    seen = sign.number if isinstance(sign, Event) else sign
                    if isinstance(sign, Event):
                        yield sign
            except (NoDaemon, Unavailable):
                if not follow:
                    raise
                self._patiently(self.about)
            if not follow:
                return
            time.sleep(PAUSE)

    def _ask(self, gives: type[Answer], call: str, /, *parts: str | int, body: Any = None, **query: Any) -> Answer:
        return self._connection.ask(gives, call, *parts, body=body, **query)

    def _pages(self, **which: Any) -> Iterator[JobStatus]:
        after: int | None = 0
        while after is not None:
            page = self.jobs(limit=MOST_JOBS, after=after, **which)
            yield from page.jobs
            after = page.next

    def _save(self, name: str, path: Path, **query: Any) -> Path:
        """Into a file that is there only when it is whole."""
        unfinished = path.with_name(path.name + ".partial")
        try:
            with unfinished.open("wb") as file:
                for piece in self._connection.pieces(name, **query):
                    file.write(piece)
            return unfinished.replace(path)
        except OSError as error:
            raise BadFile(path, f"cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def _at_each_sign(self, job_id: str, pause: float | None) -> Iterator[JobStatus]:
        """A job's status whenever something may have happened to it, until the stream of its events breaks off.

        The first sign is that the stream is open: nothing that happens after that is missed.
        """
        try:
            for _ in self._connection.events(pause, job=job_id):
                yield self.job(job_id)
        except (NoDaemon, Unavailable):
            pass
        time.sleep(PAUSE if pause is None else min(PAUSE, pause))
        yield self._patiently(partial(self.job, job_id))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """An answer from a daemon that may have to be started again first."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                return ask()
            except (NoDaemon, Unavailable):
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE)
