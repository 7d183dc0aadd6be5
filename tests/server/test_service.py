"""The service: tokens, snapshots, and lists of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import CancelQuery, DrainQuery, JobsQuery, SnapshotQuery
from refold.client.api.access import NewToken
from refold.client.api.queries import Caller
from refold.client.api.submissions import Role, Submission
from refold.client.api.wire import Jobs
from refold.core import Entry, Header
from refold.core.events import JobSubmitted, PastJob, RunFinished
from refold.errors import BadInput, BadValue, Conflict, NotFound, Unavailable, UnknownName
from refold.model import Launch, Plan, TopologyRequest
from refold.server.http.tokens import make_token
from refold.server.store import Commit


def run_with_daemon(folder: Path, work: Callable[[ManualDaemon], Awaitable[None]]) -> None:
    async def serve() -> None:
        async with ManualDaemon(folder, UnreliableBackend()) as daemon:
            await work(daemon)

    asyncio.run(serve())


def positions(page: Jobs) -> list[tuple[str, str, int]]:
    return [(job.id, job.state, job.position) for job in page.jobs]


def add_tokens(daemon: ManualDaemon, **roles: Role) -> None:
    for name, role in roles.items():
        _, known = make_token(NewToken(name, role), 0.0)
        daemon.store.add_token(known)
        daemon.tokens[known.hash] = known


def test_concurrent_revocation_keeps_one_owner_token(tmp_path: Path) -> None:
    async def revoke_both(daemon: ManualDaemon) -> None:
        add_tokens(daemon, ann="owner", bob="owner", eve="member")
        results = await asyncio.gather(
            *(daemon.service.revoke_token(OWNER, name) for name in ("ann", "bob")), return_exceptions=True
        )
        assert [type(one).__name__ for one in results] == ["TokenStatus", "Conflict"]
        assert isinstance(results[1], Conflict)
        remaining = {known.name for known in daemon.store.reader.tokens()}
        assert remaining == {"bob", "eve"} == {token.name for token in await daemon.service.tokens(OWNER)}

    run_with_daemon(tmp_path, revoke_both)


def test_revoking_a_token_twice_concurrently_fails_the_second_time(tmp_path: Path) -> None:
    async def revoke_twice(daemon: ManualDaemon) -> None:
        add_tokens(daemon, eve="member")
        results = await asyncio.gather(
            *(daemon.service.revoke_token(OWNER, "eve") for _ in range(2)), return_exceptions=True
        )
        assert isinstance(results[1], NotFound)
        assert daemon.store.reader.tokens() == []

    run_with_daemon(tmp_path, revoke_twice)


def test_a_token_stays_valid_if_revoking_it_failed(tmp_path: Path) -> None:
    async def revoke(daemon: ManualDaemon) -> None:
        add_tokens(daemon, eve="member")

        async def fails(work: Callable[[], None]) -> None:
            raise Unavailable("the disk is full")

        daemon.writer.write = fails  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await daemon.service.revoke_token(OWNER, "eve")
        assert [token.name for token in await daemon.service.tokens(OWNER)] == ["eve"]

    run_with_daemon(tmp_path, revoke)


WITH_SECRETS: dict[str, Any] = {
    "environment": {"PASSWORD": "swordfish"},
    "notify": ["json://ann:swordfish@example.org/"],
    "folder": "/data",
    "no_progress": 60.0,
}


def test_a_snapshot_has_no_secrets_unless_whole(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        first = await daemon.submit("first", **WITH_SECRETS)
        await daemon.end_run(first, RunFinished)
        await daemon.submit("second", **WITH_SECRETS)
        redacted, whole = [await daemon.service.snapshot(OWNER, SnapshotQuery(whole)) for whole in (False, True)]
        assert (b"swordfish" in redacted, b"swordfish" in whole) == (False, True)
        header, entry = redacted.splitlines()
        assert msgspec.json.decode(header, type=Header).snapshot
        events = msgspec.json.decode(entry, type=Entry).events
        jobs = {one.job.id: one.job for one in events if isinstance(one, JobSubmitted | PastJob)}
        assert {name: (job.command, job.launch) for name, job in jobs.items()} == {
            name: ((), Launch(folder="/data", no_progress=60.0)) for name in ("first-1", "second-2")
        }
        assert len(events) == len(msgspec.json.decode(whole.splitlines()[1], type=Entry).events)

    run_with_daemon(tmp_path, check)


def test_filtered_and_unfiltered_queues_agree(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        options: dict[str, dict[str, Any]] = {
            "a": {},
            "b": {},
            "c": {},
            "d": {"hold": True},
            "e": {"gpus": 99, "allow_impossible": True},
            "f": {},
        }
        for name, more in options.items():
            await daemon.submit(name, **more)
        await daemon.service.drain(OWNER, "a", DrainQuery(gpu=1))
        await daemon.settle()
        all_jobs = await daemon.service.jobs(OWNER, JobsQuery())
        own_jobs = await daemon.service.jobs(OWNER, JobsQuery(user=OWNER.user))
        assert [positions(all_jobs), all_jobs.total, all_jobs.next] == [
            positions(own_jobs),
            own_jobs.total,
            own_jobs.next,
        ]
        assert (sorted(job.name for job in all_jobs.jobs), all_jobs.total) == (list("abcdef"), 6)
        assert [place for _, state, place in positions(all_jobs) if state == "waiting"] == [1, 2]
        assert daemon.service.info(OWNER).held == 1
        found: list[str] = []
        after: int | None = 0
        while after is not None:
            page = await daemon.service.jobs(OWNER, JobsQuery(limit=4, after=after))
            found += [job.id for job in page.jobs]
            after = page.next
        assert found == [job.id for job in all_jobs.jobs]
        assert await daemon.service.jobs(OWNER, JobsQuery(after=6)) == Jobs([], 6)

    run_with_daemon(tmp_path, check)


def test_commands_are_stored_once_and_cut_in_lists(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        script = ["sh", "-c", "x" * 5000, "more"]
        job = (await daemon.service.submit(OWNER, Submission("a", script, folder="/work", hold=True))).id
        await daemon.settle()
        whole = await daemon.service.job(OWNER, job)
        assert (whole.command, whole.folder, whole.variables) == (script, "/work", [])
        [listed] = (await daemon.service.jobs(OWNER, JobsQuery())).jobs
        assert listed.command == ["sh", "-c", "x" * 996 + "…"]
        await daemon.service.cancel(OWNER, job)
        await daemon.settle()
        assert (await daemon.service.job(OWNER, job)).command == script
        [ended] = (await daemon.service.jobs(OWNER, JobsQuery(ended=True))).jobs
        assert ended.command == listed.command
        [(status,)] = daemon.store.reader._fast.execute("SELECT status FROM jobs").fetchall()
        assert b"xxx" not in status

    run_with_daemon(tmp_path, work)


def test_ended_jobs_come_in_pages_and_are_redacted_for_other_tenants(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        for _ in range(3):
            await daemon.end_run(await daemon.submit("a"), RunFinished)
        stranger = Caller("eve", "reader", "other", "eve")
        first = await daemon.service.jobs(stranger, JobsQuery(ended=True, limit=2))
        assert ([job.id for job in first.jobs], first.total, first.next) == (["a-3", "a-2"], 3, 2)
        assert {job.user for job in first.jobs} == {""}
        last = await daemon.service.jobs(OWNER, JobsQuery(ended=True, after=first.next or 0))
        assert ([(job.id, job.user) for job in last.jobs], last.next) == ([("a-1", "ann")], None)

    run_with_daemon(tmp_path, check)


def test_a_job_that_can_never_run_is_rejected_unless_that_is_allowed(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        fields: list[dict[str, Any]] = [{"gpus": 3}, {"instances": 3}]
        for one in fields:
            with pytest.raises(BadInput, match="the job can never run on this cluster: "):
                await daemon.submit("wide", **one)
        with pytest.raises(BadInput, match="never run"):  # all or none
            await daemon.service.submit_all(OWNER, [Submission("small", ["x"]), Submission("wide", ["x"], gpus=3)])
        assert (await daemon.service.jobs(OWNER, JobsQuery())).total == 0
        accepted = await daemon.service.job(OWNER, await daemon.submit("wide", gpus=3, allow_impossible=True))
        assert (accepted.state, accepted.message) == (
            "infeasible",
            "0 of 1 nodes fit: 1 has fewer than 3 GPUs in total",
        )

    run_with_daemon(tmp_path, submit)


def test_levels_that_the_cluster_does_not_have_are_rejected(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        with pytest.raises(UnknownName, match="unknown level 'rack'"):
            await daemon.submit("train", topology=TopologyRequest("rack"))
        with pytest.raises(BadInput, match="segments need a cluster with levels"):
            await daemon.submit("train", instances=2, topology=TopologyRequest(segment=2))
        accepted = await daemon.submit("a", instances=2, topology=TopologyRequest("rack"), allow_impossible=True)
        assert (await daemon.service.job(OWNER, accepted)).state == "infeasible"

    run_with_daemon(tmp_path, submit)


def test_a_job_may_wait_for_a_gpu_type_that_will_be_added(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        with pytest.raises(UnknownName, match="unknown GPU type 'h200'"):
            await daemon.submit("train", gpu_types=["h200"])
        accepted = await daemon.service.job(
            OWNER, await daemon.submit("train", gpu_types=["h200"], allow_impossible=True)
        )
        assert (accepted.state, accepted.demand) == ("infeasible", "1 GPU (H200)")

    run_with_daemon(tmp_path, submit)


def test_a_pinned_plan_that_the_framework_cannot_run_is_rejected(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        pinned = Submission("train", ["true"], plan=Plan(pipeline=2), engine="deepspeed", gpus=2)
        with pytest.raises(BadInput, match="engine deepspeed cannot run DP1 PP2: it has no setting for pipeline"):
            await daemon.service.submit(OWNER, pinned)

    run_with_daemon(tmp_path, submit)


def test_a_gang_whose_instances_would_not_find_each_other_is_rejected(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        gang = Submission("train", ["torchrun", "--standalone", "train.py"], gpus=1, instances=2)
        with pytest.raises(BadInput, match="each would wait for the others on its own machine"):
            await daemon.service.submit(OWNER, gang)

    run_with_daemon(tmp_path, submit)


def test_an_invalid_pattern_is_rejected_at_submission(tmp_path: Path) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        with pytest.raises(BadValue, match="progress is '\\(', expected a regular expression: missing \\)"):
            await daemon.service.submit(OWNER, Submission("a", ["x"], progress="("))
        assert (await daemon.service.jobs(OWNER, JobsQuery())).total == 0

    run_with_daemon(tmp_path, submit)


def test_a_second_cancel_or_one_that_asks_for_it_kills_the_run(tmp_path: Path) -> None:
    async def cancel(daemon: ManualDaemon) -> None:
        first, second = await daemon.submit("a"), await daemon.submit("b")
        await daemon.service.cancel(OWNER, first)
        assert daemon.killed == []
        await daemon.service.cancel(OWNER, first)
        assert daemon.killed == [first]
        await daemon.service.cancel(OWNER, second, CancelQuery(now=True))
        assert daemon.killed == [first, second]

    run_with_daemon(tmp_path, cancel)


def test_the_catalogue_names_models_gpus_engines_and_policies(tmp_path: Path) -> None:
    async def ask(daemon: ManualDaemon) -> None:
        found = daemon.service.catalogue(OWNER)
        assert "llama-3.1-8b" in found.models
        assert "H100-80GB" in found.gpus
        assert "fifo" in found.policies
        assert found.engines

    run_with_daemon(tmp_path, ask)


def test_while_a_commit_fails_only_what_is_on_disk_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.server.writer.RETRY_INTERVAL_SECONDS", 0.01)

    async def check(daemon: ManualDaemon) -> None:
        running = await daemon.submit("running", gpus=1)
        waiting = [await daemon.submit("waiting", gpus=2) for _ in range(2)]
        held = await daemon.submit("held", gpus=2, hold=True)

        async def states() -> list[tuple[str, str, list[Any]]]:
            page = await daemon.service.jobs(OWNER, JobsQuery())
            assert page.total == len(page.jobs)
            assert [job.state for job in page.jobs] == [
                (await daemon.service.job(OWNER, job.id)).state for job in page.jobs
            ]
            return sorted((job.id, job.state, job.placement) for job in page.jobs)

        before, commit = await states(), daemon.store.commit
        is_failing = asyncio.Event()

        def fail(_: Commit) -> None:
            is_failing.set()
            raise Unavailable("the disk is full")

        monkeypatch.setattr(daemon.store, "commit", fail)
        service = daemon.service
        submission = Submission("new", command=["true"], gpus=1)
        requests = [
            service.submit(OWNER, submission),
            service.cancel(OWNER, running),
            service.cancel(OWNER, waiting[0]),
        ]
        requests += [service.hold(OWNER, waiting[1]), service.release(OWNER, held)]
        tasks = [asyncio.ensure_future(request) for request in requests]
        while not daemon.writer.problem:
            await asyncio.sleep(0.001)
        assert await states() == before
        with pytest.raises(NotFound):
            await service.job(OWNER, "new-5")
        monkeypatch.setattr(daemon.store, "commit", commit)
        statuses = await asyncio.gather(*tasks)
        assert [status.state for status in statuses] == ["waiting", "stopping", "cancelled", "held", "waiting"]

    run_with_daemon(tmp_path, check)
