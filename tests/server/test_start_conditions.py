"""Jobs are held until their begin time has come, their dependencies are met and their array admits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import Caller, JobsQuery, Submission
from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.errors import BadInput, Conflict, NotFound, TooManyRequests
from refold.server import admission

Work = Callable[[ManualDaemon], Awaitable[None]]


def run_with_daemon(folder: Path, *works: Work) -> None:
    """Run each piece of work with a daemon of its own on the same folder, so that each recovers what the last left."""

    async def serve() -> None:
        backend, time = UnreliableBackend(), 0.0
        for work in works:
            async with ManualDaemon(folder, backend, time=time) as daemon:
                await work(daemon)
                time = daemon.clock.time

    asyncio.run(serve())


async def state_of(daemon: ManualDaemon, job: str) -> tuple[str, str, str]:
    status = await daemon.service.job(OWNER, job)
    return status.state, status.reason, status.message


async def submit_array(daemon: ManualDaemon, array: str, **more: Any) -> list[str]:
    page = await daemon.service.submit_all(OWNER, [Submission("train", ["true"], array=array, **more)])
    await daemon.settle()
    return [job.id for job in page.jobs]


def running(daemon: ManualDaemon) -> list[str]:
    return sorted(daemon.state.view.runs)


# Dependencies

ENDS: dict[str, Any] = {"finished": RunFinished, "failed": RunFailed}


@pytest.mark.parametrize(
    ("dependency", "end", "starts"),
    [
        ("{}", "finished", True),
        ("{}", "failed", False),
        ("afterok:{}", "failed", False),
        ("afterany:{}", "finished", True),
        ("afterany:{}", "failed", True),
        ("afternotok:{}", "failed", True),
        ("afternotok:{}", "finished", False),
    ],
)
def test_a_job_starts_if_its_dependency_is_met_and_is_cancelled_otherwise(
    dependency: str, end: str, starts: bool, tmp_path: Path
) -> None:
    async def work(daemon: ManualDaemon) -> None:
        first = await daemon.submit("a")
        text = dependency.format(first)
        second = await daemon.submit("b", after=[text])
        assert await state_of(daemon, second) == ("held", "Dependency", text.removeprefix("afterok:"))
        await daemon.end_run(first, ENDS[end])
        expected = ("running", "", "") if starts else ("cancelled", "", f"dependency 'a-1' {end}")
        assert await state_of(daemon, second) == expected

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize(("dependency", "accepted"), [("a-1", False), ("afterany:a-1", True), ("afternotok:a-1", True)])
def test_a_dependency_on_a_cancelled_job_is_checked_at_submission(
    dependency: str, accepted: bool, tmp_path: Path
) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("a", hold=True)
        await daemon.service.cancel(OWNER, "a-1")
        if accepted:
            assert (await state_of(daemon, await daemon.submit("b", after=[dependency])))[0] == "running"
        else:
            with pytest.raises(Conflict, match="dependency 'a-1' was cancelled"):
                await daemon.submit("b", after=[dependency])

    run_with_daemon(tmp_path, work)


def test_dependencies_survive_a_restart_of_the_daemon(tmp_path: Path) -> None:
    async def before(daemon: ManualDaemon) -> None:
        await daemon.submit("a")
        await daemon.submit("b", after=["afterany:a-1"])
        await daemon.submit("a", after=["singleton"])

    async def after(daemon: ManualDaemon) -> None:
        assert running(daemon) == ["a-1"]
        await daemon.end_run("a-1", RunFailed)
        assert running(daemon) == ["a-3", "b-2"]

    run_with_daemon(tmp_path, before, after)


def test_jobs_with_a_singleton_dependency_run_one_after_the_other(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        for _ in range(2):
            await daemon.submit("train", after=["singleton"])
        await daemon.submit("other", after=["singleton"])
        assert running(daemon) == ["other-3", "train-1"]
        assert await state_of(daemon, "train-2") == ("held", "Dependency", "singleton")
        await daemon.end_run("train-1", RunFailed)
        assert running(daemon) == ["other-3", "train-2"]

    run_with_daemon(tmp_path, work)


def test_a_singleton_waits_for_all_earlier_jobs_of_its_name_and_user_only(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("train", hold=True)
        await daemon.submit("train", hold=True)
        bob = Caller("bob", "member", "default", "bob")
        await daemon.service.submit(bob, Submission("train", ["true"], after=["singleton"]))
        await daemon.submit("train", after=["singleton"])
        await daemon.submit("train")
        assert running(daemon) == ["train-3", "train-5"]
        for job in ("train-2", "train-1"):
            assert (await state_of(daemon, "train-4"))[0] == "held"
            await daemon.service.cancel(OWNER, job)
            await daemon.settle()
        assert (await state_of(daemon, "train-4"))[0] == "waiting"

    run_with_daemon(tmp_path, work)


def test_a_user_cannot_release_a_job_whose_dependencies_are_not_met(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("a", hold=True)
        await daemon.submit("b", after=["afterany:a-1"], hold=True)
        assert (await state_of(daemon, "b-2"))[1] == "Held"
        assert (await daemon.service.release(OWNER, "b-2")).reason == "Dependency"
        await daemon.service.cancel(OWNER, "a-1")
        await daemon.settle()
        assert running(daemon) == ["b-2"]

    run_with_daemon(tmp_path, work)


# Begin times


def test_a_job_does_not_start_before_its_begin_time(tmp_path: Path) -> None:
    async def before(daemon: ManualDaemon) -> None:
        await daemon.submit("later", begin=time() + 60)
        await daemon.submit("past", begin=time() - 60)
        state, reason, message = await state_of(daemon, "later-1")
        assert (state, reason, message[:6]) == ("held", "BeginTime", "until ")
        assert (await daemon.service.release(OWNER, "later-1")).reason == "BeginTime"
        await daemon.advance(50)
        assert running(daemon) == ["past-2"]

    async def after(daemon: ManualDaemon) -> None:
        assert running(daemon) == ["past-2"]
        await daemon.advance(11)
        assert running(daemon) == ["later-1", "past-2"]

    run_with_daemon(tmp_path, before, after)


def test_a_begin_time_does_not_override_a_hold_or_a_dependency(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("first", hold=True)
        await daemon.submit("held", begin=time() + 60, hold=True)
        await daemon.submit("dependent", begin=time() + 60, after=["afterany:first-1"])
        await daemon.advance(61)
        reasons = [(await state_of(daemon, job))[1] for job in ("held-2", "dependent-3")]
        assert reasons == ["Held", "Dependency"]
        await daemon.service.release(OWNER, "held-2")
        await daemon.service.cancel(OWNER, "first-1")
        await daemon.settle()
        assert running(daemon) == ["dependent-3", "held-2"]

    run_with_daemon(tmp_path, work)


# Arrays


def test_an_array_is_one_job_per_task_with_ids_of_the_array(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("first")
        assert await submit_array(daemon, "1,3,5-6") == ["train-2_1", "train-2_3", "train-2_5", "train-2_6"]
        assert await daemon.submit("last") == "last-6"
        found = [(await daemon.service.job(OWNER, name)).id for name in ("train-2_3", "2_3", "3")]
        assert found == ["train-2_3"] * 3
        place = daemon.state.job_table.records["train-2_3"].job.launch.array
        assert place is not None
        assert (place.number, place.task, place.count, place.minimum, place.maximum) == (3, 3, 4, 1, 6)

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize("name", ["1", "train-1"])
def test_an_array_is_not_a_job(name: str, tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-1")
        with pytest.raises(Conflict, match="is an array of 2 jobs; name one of them, such as 'train-1_0'"):
            await daemon.service.cancel(OWNER, name)
        for unknown in ("1_7", "train-1_7", "7_0"):
            with pytest.raises(NotFound):
                await daemon.service.job(OWNER, unknown)
        with pytest.raises(BadInput, match="an array is several jobs"):
            await daemon.submit("train", array="0-1")

    run_with_daemon(tmp_path, work)


def test_a_limited_array_runs_that_many_tasks_at_once_in_order(tmp_path: Path) -> None:
    async def before(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-3%1")
        assert running(daemon) == ["train-1_0"]
        assert await state_of(daemon, "train-1_1") == ("held", "ArrayLimit", "at most 1 of its tasks at once")
        await daemon.end_run("train-1_0", RunFinished)
        assert running(daemon) == ["train-1_1"]

    async def after(daemon: ManualDaemon) -> None:
        assert running(daemon) == ["train-1_1"]
        await daemon.end_run("train-1_1", RunFailed)
        assert running(daemon) == ["train-1_2"]
        await daemon.end_run("train-1_2", RunFinished)
        await daemon.end_run("train-1_3", RunFinished)

    run_with_daemon(tmp_path, before, after)


def test_a_held_task_makes_room_for_another_and_returns_to_the_queue_of_the_array(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("wide", gpus=2)
        await submit_array(daemon, "0-2%1")
        assert list(daemon.state.view.waiting) == ["train-2_0"]
        await daemon.service.hold(OWNER, "train-2_0")
        await daemon.settle()
        assert list(daemon.state.view.waiting) == ["train-2_1"]
        assert (await daemon.service.release(OWNER, "train-2_0")).reason == "ArrayLimit"
        await daemon.service.hold(OWNER, "train-2_2")
        await daemon.service.cancel(OWNER, "train-2_1")
        await daemon.settle()
        assert list(daemon.state.view.waiting) == ["train-2_0"]
        await daemon.service.cancel(OWNER, "train-2_0")
        await daemon.settle()
        assert list(daemon.state.view.waiting) == []  # the last task is held by a user

    run_with_daemon(tmp_path, work)


def test_a_failed_task_that_is_retried_keeps_its_place(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-1%1", retries=1)
        await daemon.end_run("train-1_0", RunFailed)
        assert (await state_of(daemon, "train-1_0"))[:2] == ("held", "Backoff")
        assert await state_of(daemon, "train-1_1") == ("held", "ArrayLimit", "at most 1 of its tasks at once")
        await daemon.advance(3)
        assert running(daemon) == ["train-1_0"]

    run_with_daemon(tmp_path, work)


def test_a_limited_array_with_dependencies_and_a_dependency_on_an_array(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await daemon.submit("prepare")
        await submit_array(daemon, "0-1%1", after=["prepare-1"])
        await daemon.submit("collect", after=["train-2"])
        await daemon.submit("report", after=["afterany:2"])
        assert running(daemon) == ["prepare-1"]
        assert await state_of(daemon, "collect-4") == ("held", "Dependency", "train-2_*")
        await daemon.end_run("prepare-1", RunFinished)
        await daemon.end_run("train-2_0", RunFinished)
        assert running(daemon) == ["train-2_1"]
        await daemon.service.cancel(OWNER, "train-2_1")
        await daemon.end_run("train-2_1", RunStopped)
        assert running(daemon) == ["report-5"]
        assert await state_of(daemon, "collect-4") == ("cancelled", "", "dependency 'train-2_1' was cancelled")

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize(
    ("kind", "ends", "starts"),
    [
        ("afterok", [RunFinished, RunFinished], True),
        ("afterok", [RunFailed], False),
        ("afterok", [RunFinished, RunFailed], False),
        ("afterany", [RunFinished, RunFailed], True),
        ("afternotok", [RunFailed, RunFailed], True),
        ("afternotok", [RunFailed, RunFinished], False),
    ],
)
def test_a_dependency_on_an_array_applies_to_all_its_tasks_and_survives_restarts(
    kind: str, ends: list[Any], starts: bool, tmp_path: Path
) -> None:
    async def submit(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-1")
        await daemon.submit("collect", after=[f"{kind}:1"])

    def end_of(task: int) -> Work:
        async def end(daemon: ManualDaemon) -> None:
            assert (await state_of(daemon, "collect-3"))[0] == "held"
            await daemon.end_run(f"train-1_{task}", ends[task])

        return end

    async def check(daemon: ManualDaemon) -> None:
        last = f"train-1_{len(ends) - 1}"
        state = "failed" if ends[-1] is RunFailed else "finished"
        expected = ("running", "", "") if starts else ("cancelled", "", f"dependency {last!r} {state}")
        assert await state_of(daemon, "collect-3") == expected

    run_with_daemon(tmp_path, submit, *map(end_of, range(len(ends))), check)


def test_a_dependency_on_an_array_that_has_ended_is_checked_at_submission(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-1")
        await daemon.end_run("train-1_0", RunFinished)
        await daemon.end_run("train-1_1", RunFailed)
        with pytest.raises(Conflict, match=r"dependency 'train-1_\*' failed"):
            await daemon.submit("collect", after=["1"])
        assert (await state_of(daemon, await daemon.submit("collect", after=["afterany:train-1_*"])))[0] == "running"
        for unknown in ("collect-3_*", "77", "77_*", "train-77_*", "77_0"):
            with pytest.raises(NotFound):
                await daemon.submit("collect", after=[unknown])

    run_with_daemon(tmp_path, work)


def test_an_array_that_depends_on_an_array_is_small_in_the_journal(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0-99", hold=True)
        await submit_array(daemon, "0-99", after=["afterany:train-1"])
        after = {record.job.launch.after for record in daemon.state.job_table.records.values()}
        assert after == {(), ("afterany:train-1_*",)}

    run_with_daemon(tmp_path, work)


def test_an_array_of_long_commands_is_rejected(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        with pytest.raises(
            BadInput, match=r"array: 10,000 jobs of 100,\d+ bytes are too many, expected 6\d\d or fewer"
        ):
            await daemon.service.submit_all(OWNER, [Submission("train", ["true", "x" * 100_000], array="0-9999")])

    run_with_daemon(tmp_path, work)


def test_a_repeated_request_returns_all_jobs_of_its_array(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        for _ in range(2):
            assert await submit_array(daemon, "0-2", request="once") == ["train-1_0", "train-1_1", "train-1_2"]
        assert (await daemon.service.jobs(OWNER, JobsQuery())).total == 3

    run_with_daemon(tmp_path, work)


def test_all_tasks_of_an_array_count_as_active_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_ACTIVE_JOBS", 3)

    async def work(daemon: ManualDaemon) -> None:
        with pytest.raises(TooManyRequests):
            await submit_array(daemon, "0-3")
        assert len(await submit_array(daemon, "0-2")) == 3

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("train-*", ["train-1_0", "train-1_1", "train-1_11", "train-5"]),
        ("*1", ["train-1_1", "train-1_11"]),
        ("*_1", ["train-1_1"]),
        ("train-*_[0,7]", ["train-1_0"]),
        ("train-1_[10-12]", ["train-1_11"]),
        ("t[a-e]*", ["test-4"]),
        ("test_[ab]", []),
        ("train-?", ["train-5"]),
        ("1", ["train-1_0", "train-1_1", "train-1_11"]),
        ("train-1", ["train-1_0", "train-1_1", "train-1_11"]),
        ("1_[0-1]", ["train-1_0", "train-1_1"]),
        ("train-1_[1,11]", ["train-1_1", "train-1_11"]),
        ("1_11", ["train-1_11"]),
        ("test-4", ["test-4"]),
        ("4", []),
        ("test-4_0", []),
        ("nothing*", []),
    ],
)
def test_jobs_are_selected_by_pattern_array_and_task(match: str, expected: list[str], tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit_array(daemon, "0,1,11")
        await daemon.submit("test")
        await daemon.submit("train")
        page = await daemon.service.jobs(OWNER, JobsQuery(match=match))
        assert (sorted(job.id for job in page.jobs), page.total) == (expected, len(expected))

    run_with_daemon(tmp_path, work)


def test_ended_jobs_cannot_be_selected(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        with pytest.raises(BadInput, match="match selects active jobs, not ended ones"):
            await daemon.service.jobs(OWNER, JobsQuery(match="a*", ended=True))

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize("match", ["1_[]", "1_[3-1]", "1_[0-99999]"])
def test_an_invalid_selection_is_rejected(match: str, tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        with pytest.raises(ValueError, match="expected task numbers"):
            await daemon.service.jobs(OWNER, JobsQuery(match=match))

    run_with_daemon(tmp_path, work)
