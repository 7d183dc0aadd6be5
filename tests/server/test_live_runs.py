"""Real processes under real policies: what was decided is on disk before it is done, and replays on any machine."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from live_setups import drive, entries_of, shell_job, starts, stops

from refold.backends.backend import Backend, Report
from refold.backends.local.backend import local_cluster
from refold.core import Entry, ListJournal, Scheduler
from refold.core.events import Event, RunFailed, RunFinished, RunStarted, RunStopped
from refold.core.orders import Order, StartRun
from refold.journal.files import check_replay, read_journal
from refold.model import Job
from refold.registry import make_policy
from refold.simulator import simulate

POLICIES = ["fifo", "fifo-skip", "sjf", "srtf", "las", "drf"]
FAST_LAS = {"threshold_gpu_seconds": 0.2}
ONCE_STOPPED = 'if [ "$REFOLD_RUN" -ge 2 ]; then exit 0; fi; exec sleep 1000'
"""Goes on until it is stopped, and ends when it is started again."""


def a_mixed_list() -> list[Job]:
    return [
        shell_job("a", "sleep 0.1", work=0.1),
        shell_job("gang", "sleep 0.05", instances=2, work=0.05, tenant="other"),
        shell_job("wide", "sleep 0.05", gpus=3, work=0.05),
        shell_job("b", "exit 3", work=0.01, tenant="other"),
        shell_job("c", "true", at=0.1, work=0.01),
        shell_job("d", "sleep 0.05", at=0.2, gpus=2, work=0.05),
    ]


def replays(folder: Path) -> bool:
    """Whether a newly made policy gives the same orders to the same facts."""
    header, entries = read_journal(folder / "journal.jsonl")
    return check_replay(header, entries, make_policy(header.policy, header.settings)) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_a_list_to_its_end_and_the_journal_replays(tmp_path: Path, policy: str) -> None:
    outcomes = drive(a_mixed_list(), tmp_path, slots=3, policy=policy)
    assert {job: outcome.state for job, outcome in outcomes.of.items()} == {
        "a": "finished",
        "gang": "finished",
        "wide": "finished",
        "b": "failed",
        "c": "finished",
        "d": "finished",
    }
    assert outcomes.of["b"].why == "exit 3"
    assert replays(tmp_path)


def test_no_slot_is_given_twice_at_a_time(tmp_path: Path) -> None:
    """Each process takes a lock named after its slot; a second that wanted it would fail."""
    lock = "mkdir lock-$REFOLD_SLOTS || exit 9; sleep 0.05; rmdir lock-$REFOLD_SLOTS"
    jobs = [shell_job(f"job-{number}", f"cd '{tmp_path}' && {lock}") for number in range(8)]
    assert drive(jobs, tmp_path, slots=2, policy="fifo-skip").all_finished()


class Witness:
    """A back end that looks into the journal before it does as it is told."""

    def __init__(self, inner: Backend, journal: Path) -> None:
        self._inner = inner
        self._journal = journal
        self.seen = 0

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        last = list(read_journal(self._journal)[1])[-1]
        assert last.orders == tuple(orders)
        self.seen += len(orders)
        await self._inner.carry_out(orders, jobs)

    async def close(self) -> None:
        await self._inner.close()

    async def leave(self) -> None:
        await self._inner.leave()

    async def keep_only(self, runs: Collection[tuple[str, int]]) -> None:
        await self._inner.keep_only(runs)


def test_the_journal_is_on_disk_before_any_process_is_there(tmp_path: Path) -> None:
    witnesses: list[Witness] = []

    def watched(make: Callable[[Report], Backend], report: Report) -> Backend:
        witnesses.append(Witness(make(report), tmp_path / "journal.jsonl"))
        return witnesses[0]

    assert not drive(a_mixed_list(), tmp_path, slots=3, policy="fifo", wrap=watched).all_finished()
    assert witnesses[0].seen == len(a_mixed_list())


def unreliable(seed: int) -> Callable[[Callable[[Report], Backend], Report], Backend]:
    """Every report may come twice or three times, some of them much later, when its run is long over."""

    def wrap(make: Callable[[Report], Backend], report: Report) -> Backend:
        chance = random.Random(seed)

        def repeat(event: Event) -> None:
            report(event)
            for _ in range(chance.randrange(3)):
                asyncio.get_running_loop().call_later(chance.choice([0.0, 0.02, 0.2]), report, event)

        return make(repeat)

    return wrap


def without_repeats(entries: Sequence[Entry]) -> list[tuple[float, list[Event]]]:
    seen: list[Event] = []
    told: list[tuple[float, list[Event]]] = []
    for entry in entries:
        events: list[Event] = []
        for event in entry.events:
            if isinstance(event, RunStarted | RunStopped | RunFinished | RunFailed):
                if event in seen:
                    continue
                seen.append(event)
            events.append(event)
        told.append((entry.now, events))
    return told


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("policy", "settings"), [("fifo-skip", {}), ("las", FAST_LAS)])
def test_reports_that_come_late_and_twice_change_no_order(
    tmp_path: Path, policy: str, settings: dict[str, Any], seed: int
) -> None:
    jobs = [shell_job("again", ONCE_STOPPED), shell_job("short", "sleep 0.1", at=0.4)] if settings else []
    jobs += a_mixed_list()
    drive(jobs, tmp_path, slots=3, policy=policy, settings=settings, wrap=unreliable(seed))
    entries = entries_of(tmp_path)
    once = without_repeats(entries)
    assert sum(len(events) for _, events in once) < sum(len(entry.events) for entry in entries)
    scheduler = Scheduler(local_cluster(3), make_policy(policy, settings))
    assert [scheduler.step(now, events).orders for now, events in once] == [entry.orders for entry in entries]
    assert scheduler.late_reports == 0


@pytest.mark.parametrize(
    ("policy", "settings", "short_work"), [("las", FAST_LAS, None), ("srtf", {}, 0.1)], ids=["las", "srtf"]
)
def test_a_run_is_stopped_for_another_and_its_job_goes_on_later(
    tmp_path: Path, policy: str, settings: dict[str, Any], short_work: float | None
) -> None:
    jobs = [
        shell_job("long", ONCE_STOPPED, work=1000.0),
        shell_job("short", "true", at=0.5, work=short_work),
    ]
    outcomes = drive(jobs, tmp_path, policy=policy, settings=settings)
    entries = entries_of(tmp_path)
    assert starts(entries) == [("long", 1), ("short", 1), ("long", 2)]
    assert stops(entries) == [("long", 1)]
    assert outcomes.all_finished()
    assert replays(tmp_path)


def test_a_process_killed_from_outside_fails_its_job_and_frees_its_slot(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    killer = f"while [ ! -s '{pid}' ]; do sleep 0.02; done; kill -KILL $(cat '{pid}')"
    jobs = [
        shell_job("victim", f"echo $$ >'{pid}'; exec sleep 1000"),
        shell_job("killer", killer),
        shell_job("next", "true"),
    ]
    outcomes = drive(jobs, tmp_path, slots=2)
    assert [outcome.state for outcome in outcomes.of.values()] == ["failed", "finished", "finished"]
    assert outcomes.of["victim"].why == f"killed by {signal.SIGKILL.name}"
    failed = [event for entry in entries_of(tmp_path) for event in entry.events if isinstance(event, RunFailed)]
    assert failed == [RunFailed("victim", 1, "killed by SIGKILL", exit_code=137)]


@pytest.mark.parametrize("policy", ["fifo", "sjf", "drf"])
def test_the_simulator_and_the_real_world_start_jobs_in_the_same_order(tmp_path: Path, policy: str) -> None:
    """One slot, so the order is the policy's alone and not the machine's mood."""
    jobs = [
        shell_job(f"job-{number}", f"sleep {work}", work=work, tenant=tenant)
        for number, (work, tenant) in enumerate([(0.05, "x"), (0.03, "x"), (0.01, "y"), (0.04, "y"), (0.02, "x")])
    ]
    simulated = ListJournal()
    simulate(jobs, local_cluster(1), make_policy(policy), journal=simulated)
    drive(jobs, tmp_path, policy=policy)
    assert starts(entries_of(tmp_path)) == starts(simulated.entries)
    assert allocations(entries_of(tmp_path)) == allocations(simulated.entries)


def test_gangs_and_all_start_in_the_same_order_in_both_worlds(tmp_path: Path) -> None:
    jobs = [job for job in a_mixed_list() if job.submitted == 0.0]
    simulated = ListJournal()
    simulate(jobs, local_cluster(3), make_policy("fifo"), journal=simulated)
    drive(jobs, tmp_path, slots=3)
    assert starts(entries_of(tmp_path)) == starts(simulated.entries)


def allocations(entries: Sequence[Entry]) -> list[Any]:
    return [order.allocation for entry in entries for order in entry.orders if isinstance(order, StartRun)]


def test_a_list_of_many_short_jobs_loses_none(tmp_path: Path) -> None:
    jobs = [shell_job(f"job-{number}", "true") for number in range(40)]
    outcomes = drive(jobs, tmp_path, slots=4, policy="fifo")
    assert outcomes.all_finished()
    assert starts(entries_of(tmp_path)) == [(job.id, 1) for job in jobs]
    assert len(list((tmp_path / "logs").iterdir())) == 40
