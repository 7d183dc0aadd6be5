"""Old jobs, events and epochs are deleted, and backups are made, as configured."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import ManualDaemon
from real_daemon import RealDaemon, wait_until

from refold.core.events import RunFinished
from refold.server import store_upkeep
from refold.server.config import ServeConfig
from refold.server.store import FILE_NAME, Store, list_backups, store as store_module
from refold.server.store.checksums import find_damage
from refold.server.store_upkeep import StoreUpkeep

Test = Callable[[ManualDaemon], Coroutine[Any, Any, None]]


def run_with_daemon(folder: Path, test: Test) -> None:
    async def main() -> None:
        async with ManualDaemon(folder / "state", UnreliableBackend()) as daemon:
            await test(daemon)

    asyncio.run(main())


async def ended_jobs(daemon: ManualDaemon, count: int) -> list[str]:
    jobs = []
    for number in range(count):
        jobs.append(await daemon.submit(f"job{number}"))
        await daemon.end_run(jobs[-1], RunFinished)
    return jobs


def end_of(store: Store, job: str) -> float:
    row = store.reader.ended_job(job)
    assert row is not None
    assert row.ended is not None
    return row.ended


def remaining(store: Store, jobs: list[str]) -> list[str]:
    return [job for job in jobs if store.reader.ended_job(job) is not None]


def test_jobs_that_ended_too_long_ago_are_deleted_with_their_events(tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon) -> None:
        store, jobs = daemon.store, await ended_jobs(daemon, 5)
        numbers = store.reader.last_numbers()
        assert store.prune(end_of(store, jobs[2]), keep=100) == 2
        assert remaining(store, jobs) == jobs[2:]
        assert [bool(store.reader.job_events(job)) for job in jobs] == [False, False, True, True, True]
        assert store.reader.last_numbers() == numbers
        assert find_damage(store._connection) == ""

    run_with_daemon(tmp_path, test)


def test_no_more_jobs_are_kept_than_configured(tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon) -> None:
        store, jobs = daemon.store, await ended_jobs(daemon, 6)
        assert store.prune(0.0, keep=2) == 4
        assert store.prune(0.0, keep=2) == 0
        assert remaining(store, jobs) == jobs[4:]

    run_with_daemon(tmp_path, test)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (ServeConfig(keep_backups=0), 4),
        (ServeConfig(keep_backups=0, keep_jobs=2), 2),
        (ServeConfig(keep_backups=0, keep_jobs_for=1e-9), 1),
    ],
)
def test_upkeep_keeps_as_many_jobs_for_as_long_as_configured(config: ServeConfig, kept: int, tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon) -> None:
        async def begin_epoch() -> None:
            pass

        jobs = await ended_jobs(daemon, 4)
        await StoreUpkeep(daemon.state, daemon.writer, daemon.store, config, begin_epoch).run()
        assert remaining(daemon.store, jobs) == jobs[-kept:]

    run_with_daemon(tmp_path, test)


def test_the_last_job_is_kept_so_that_its_number_is_not_used_again(tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon) -> None:
        jobs = await ended_jobs(daemon, 3)
        assert daemon.store.prune(float("inf"), keep=1) == 2
        assert remaining(daemon.store, jobs) == jobs[2:]
        assert (await daemon.submit("next")).endswith("-4")

    run_with_daemon(tmp_path, test)


def test_active_jobs_and_ended_ones_of_the_same_name_are_kept(tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon) -> None:
        store = daemon.store
        first = await daemon.submit("array")
        await daemon.end_run(first, RunFinished)
        await daemon.submit("array")
        other = await daemon.submit("other")
        await daemon.end_run(other, RunFinished)
        await daemon.submit("last")
        assert store.prune(float("inf"), keep=1) == 1
        assert remaining(store, [first, other]) == [first]

    run_with_daemon(tmp_path, test)


def prune_journal(store: Store, before: float = -inf, keep_entries: int = 1_000_000) -> None:
    store.prune_epochs(before, keep_entries, 0.0)
    while store.prune_journal():
        pass


def entry_numbers(store: Store) -> list[int]:
    return [number for (number,) in store._connection.execute("SELECT number FROM journal ORDER BY number")]


def count_entries(state: Path) -> int:
    with closing(sqlite3.connect(f"file:{state / FILE_NAME}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM journal").fetchone()[0])


def test_epochs_that_ended_too_long_ago_are_deleted_and_the_rest_can_be_recovered(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for policy in ("fifo", "fifo-skip", "las"):
        with RealDaemon(state, slots=1, policy=policy) as daemon, daemon.client() as client:
            job = client.submit(name=policy, command=["true"], export="NONE").id
            client.wait(job, timeout=20)
    with Store(state) as store:
        epochs = store.reader.journal.epochs()
        assert len(epochs) == 3
        begin_of_last = next(store.reader.journal.entries(epochs[-1].first_entry)).now
        prune_journal(store, before=begin_of_last)
        assert [epoch.number for epoch in store.reader.journal.epochs()] == [2, 3]
        prune_journal(store, before=begin_of_last + 1.0)
        assert store.reader.journal.epochs() == epochs[-1:]
        entries = [entry for chunk in store.reader.journal.encoded_entries(0, 2**62) for entry in chunk]
        assert len(entries) == store.reader.journal.last_entry() - epochs[-1].first_entry + 1
    with RealDaemon(state, slots=1, policy="las") as daemon, daemon.client() as client:
        assert {job.name for job in client.history()} == {"fifo", "fifo-skip", "las"}
        last = client.submit(name="after", command=["true"], export="NONE").id
        assert client.wait(last, timeout=20).state == "finished"


def test_epochs_that_ended_too_many_entries_ago_are_deleted_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    for policy in ("fifo", "fifo-skip", "las"):
        with RealDaemon(state, slots=1, policy=policy) as daemon, daemon.client() as client:
            client.wait(client.submit(name=policy, command=["true"], export="NONE").id, timeout=20)
    monkeypatch.setattr(store_module, "PRUNED_ENTRIES_AT_ONCE", 2)
    with Store(state) as store:
        journal = store.reader.journal
        epochs, last = journal.epochs(), journal.last_entry()
        prune_journal(store, keep_entries=last - epochs[1].first_entry + 1)
        assert journal.epochs() == epochs
        store.prune_epochs(-inf, last - epochs[1].first_entry, 0.0)
        assert journal.epochs() == epochs[1:]
        assert store.prune_journal() == 2
        assert entry_numbers(store)[0] == 3
        prune_journal(store)
        assert entry_numbers(store) == list(range(epochs[1].first_entry, last + 1))


def test_a_daemon_that_runs_for_long_begins_new_epochs_and_deletes_the_first_ones(tmp_path: Path) -> None:
    state = tmp_path / "state"
    often = {"prepare": "fault_injection:set_upkeep", "arguments": {"every": 0.05, "entries": 100}}
    with RealDaemon(state, slots=2, **often) as daemon, daemon.client() as client:
        long = client.submit(name="long", command=["sleep", "600"], export="NONE").id
        held = client.submit(name="held", command=["true"], export="NONE", hold=True).id
        for number in range(60):
            job = client.submit(name=f"short{number}", command=["true"], export="NONE").id
            assert client.wait(job, timeout=20).state == "finished"
        assert (client.job(long).state, client.job(long).runs) == ("running", 1)
        wait_until(lambda: count_entries(state) <= 130)
        client.release(held)
        assert client.wait(held, timeout=20).state == "finished"
        assert sum(1 for _ in client.history()) == 61
    with Store(state) as store:
        epochs = store.reader.journal.epochs()
        assert epochs[0].number > 1
        assert entry_numbers(store)[0] == epochs[0].first_entry


@pytest.mark.parametrize(("few_jobs", "entries"), [(1_000, 4), (0, 8)])
def test_a_new_epoch_is_due_later_if_there_are_many_jobs(
    few_jobs: int, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_upkeep, "FEW_JOBS", few_jobs)
    monkeypatch.setattr(StoreUpkeep, "_kept_entries", 40)
    begun: list[int] = []

    async def test(daemon: ManualDaemon) -> None:
        async def begin_epoch() -> None:
            begun.append(daemon.state.entry)

        upkeep = StoreUpkeep(daemon.state, daemon.writer, daemon.store, ServeConfig(keep_backups=0), begin_epoch)
        first = daemon.state.entry
        while not begun:
            await daemon.submit("waits")
            await upkeep.run()
        assert begun == [first + entries]

    run_with_daemon(tmp_path, test)


def frequent_backups(keep: int) -> dict[str, Any]:
    return {"prepare": "fault_injection:set_upkeep", "arguments": {"every": 0.05, "keep_backups": keep}}


def test_the_daemon_makes_backups_and_keeps_the_newest(tmp_path: Path) -> None:
    state = tmp_path / "state"
    made: set[Path] = set()

    def keeps_the_newest() -> bool:
        kept = list_backups(state)
        made.update(kept)
        return len(made) > 3 and sorted(kept) == sorted(made)[-2:]

    with RealDaemon(state, slots=1, **frequent_backups(2)):
        wait_until(keeps_the_newest)


def test_no_backup_is_made_if_none_is_to_be_kept(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", slots=1, **frequent_backups(0)) as daemon, daemon.client() as client:
        job = client.submit(name="job", command=["sleep", "1"], export="NONE").id
        assert client.wait(job, timeout=20).state == "finished"
    assert list_backups(tmp_path / "state") == []
