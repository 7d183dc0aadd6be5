"""Real processes under real policies: decisions are on disk before they are carried out, and replay."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from live_setups import all_finished, drive, entries_of, shell_job, starts, stops

from refold.core import Entry, ListJournal, Scheduler
from refold.core.events import Event, RunFailed, RunFinished, RunStarted, RunStopped
from refold.core.orders import Order, StartRun
from refold.engines.local.backend import local_cluster
from refold.journal.files import check_replay, read_journal
from refold.model import Job
from refold.server.backend import Backend, Report
from refold.simulator import simulate
from refold.simulator.registry import make_policy

POLICIES = ["fifo", "fifo-skip", "sjf", "srtf", "las", "drf"]
FAST_LAS = {"threshold_gpu_seconds": 0.2}
UNTIL_STOPPED = 'if [ "$REFOLD_RUN" -ge 2 ]; then exit 0; fi; exec sleep 1000'
"""The first run continues until it is stopped; later runs exit at once."""


def mixed_jobs() -> list[Job]:
    return [
        shell_job("a", "sleep 0.1", work=0.1),
        shell_job("gang", "sleep 0.05", instances=2, work=0.05, tenant="other"),
        shell_job("wide", "sleep 0.05", gpus=3, work=0.05),
        shell_job("b", "exit 3", work=0.01, tenant="other"),
        shell_job("c", "true", at=0.1, work=0.01),
        shell_job("d", "sleep 0.05", at=0.2, gpus=2, work=0.05),
    ]


def replays(folder: Path) -> bool:
    """Whether a new instance of the policy gives the same orders for the same events."""
    header, entries = read_journal(folder / "journal.jsonl")
    return check_replay(header, entries, make_policy(header.policy, header.settings)) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_all_jobs_and_the_journal_replays(tmp_path: Path, policy: str) -> None:
    outcomes = drive(mixed_jobs(), tmp_path, slots=3, policy=policy)
    assert {job: outcome.state for job, outcome in outcomes.items()} == {
        "a": "finished",
        "gang": "finished",
        "wide": "finished",
        "b": "failed",
        "c": "finished",
        "d": "finished",
    }
    assert outcomes["b"].why == "exit 3"
    assert replays(tmp_path)


def test_no_slot_is_allocated_twice_at_the_same_time(tmp_path: Path) -> None:
    """Each process takes a lock named after its slot; a second holder would fail."""
    lock = "mkdir lock-$REFOLD_SLOTS || exit 9; sleep 0.05; rmdir lock-$REFOLD_SLOTS"
    jobs = [shell_job(f"job-{number}", f"cd '{tmp_path}' && {lock}") for number in range(8)]
    assert all_finished(drive(jobs, tmp_path, slots=2, policy="fifo-skip"))


class JournalCheckingBackend:
    """A backend that checks the journal on disk before it carries out orders."""

    def __init__(self, inner: Backend, journal: Path) -> None:
        self._inner = inner
        self._journal = journal
        self.seen = 0

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        last = list(read_journal(self._journal)[1])[-1]
        self.seen += sum(order in last.orders for order in orders)
        await self._inner.carry_out(orders, jobs)

    async def close(self) -> None:
        await self._inner.close()

    async def detach(self) -> None:
        await self._inner.detach()

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        await self._inner.stop_all_except(runs)


def test_decisions_are_on_disk_before_processes_start(tmp_path: Path) -> None:
    backends: list[JournalCheckingBackend] = []

    def watched(make: Callable[[Report], Backend], report: Report) -> Backend:
        backends.append(JournalCheckingBackend(make(report), tmp_path / "journal.jsonl"))
        return backends[0]

    assert not all_finished(drive(mixed_jobs(), tmp_path, slots=3, policy="fifo", wrap=watched))
    assert backends[0].seen == len(mixed_jobs())


def unreliable(seed: int) -> Callable[[Callable[[Report], Backend], Report], Backend]:
    """Return a wrapper that repeats reports up to twice, some of them after their run has ended."""

    def wrap(make: Callable[[Report], Backend], report: Report) -> Backend:
        rng = random.Random(seed)

        def repeat(event: Event) -> None:
            report(event)
            for _ in range(rng.randrange(3)):
                asyncio.get_running_loop().call_later(rng.choice([0.0, 0.02, 0.2]), report, event)

        return make(repeat)

    return wrap


def without_repeats(entries: Sequence[Entry]) -> list[tuple[float, list[Event]]]:
    seen: list[Event] = []
    steps: list[tuple[float, list[Event]]] = []
    for entry in entries:
        events: list[Event] = []
        for event in entry.events:
            if isinstance(event, RunStarted | RunStopped | RunFinished | RunFailed):
                if event in seen:
                    continue
                seen.append(event)
            events.append(event)
        steps.append((entry.now, events))
    return steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("policy", "settings"), [("fifo-skip", {}), ("las", FAST_LAS)])
def test_late_and_duplicate_reports_change_no_order(
    tmp_path: Path, policy: str, settings: dict[str, Any], seed: int
) -> None:
    jobs = [shell_job("again", UNTIL_STOPPED), shell_job("short", "sleep 0.1", at=0.4)] if settings else []
    jobs += mixed_jobs()
    drive(jobs, tmp_path, slots=3, policy=policy, settings=settings, wrap=unreliable(seed))
    entries = entries_of(tmp_path)
    deduplicated = without_repeats(entries)
    assert sum(len(events) for _, events in deduplicated) < sum(len(entry.events) for entry in entries)
    scheduler = Scheduler(local_cluster(3), make_policy(policy, settings))
    assert [scheduler.step(now, events).orders for now, events in deduplicated] == [entry.orders for entry in entries]
    assert scheduler.late_reports == 0


@pytest.mark.parametrize(
    ("policy", "settings", "short_work"), [("las", FAST_LAS, None), ("srtf", {}, 0.1)], ids=["las", "srtf"]
)
def test_a_preempted_job_continues_later(
    tmp_path: Path, policy: str, settings: dict[str, Any], short_work: float | None
) -> None:
    jobs = [
        shell_job("long", UNTIL_STOPPED, work=1000.0),
        shell_job("short", "true", at=0.5, work=short_work),
    ]
    outcomes = drive(jobs, tmp_path, policy=policy, settings=settings)
    entries = entries_of(tmp_path)
    assert starts(entries) == [("long", 1), ("short", 1), ("long", 2)]
    assert stops(entries) == [("long", 1)]
    assert all_finished(outcomes)
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
    assert [outcome.state for outcome in outcomes.values()] == ["failed", "finished", "finished"]
    assert outcomes["victim"].why == f"killed by {signal.SIGKILL.name}"
    failed = [event for entry in entries_of(tmp_path) for event in entry.events if isinstance(event, RunFailed)]
    assert failed == [RunFailed("victim", 1, "killed by SIGKILL", exit_code=137)]


@pytest.mark.parametrize("policy", ["fifo", "sjf", "drf"])
def test_simulated_and_real_jobs_start_in_the_same_order(tmp_path: Path, policy: str) -> None:
    """One slot, so that the order depends on the policy and not on timing."""
    jobs = [
        shell_job(f"job-{number}", f"sleep {work}", work=work, tenant=tenant)
        for number, (work, tenant) in enumerate([(0.05, "x"), (0.03, "x"), (0.01, "y"), (0.04, "y"), (0.02, "x")])
    ]
    simulated = ListJournal()
    simulate(jobs, local_cluster(1), make_policy(policy), journal=simulated)
    drive(jobs, tmp_path, policy=policy)
    assert starts(entries_of(tmp_path)) == starts(simulated.entries)
    assert allocations(entries_of(tmp_path)) == allocations(simulated.entries)


def test_simulated_and_real_gangs_start_in_the_same_order(tmp_path: Path) -> None:
    jobs = [job for job in mixed_jobs() if job.submitted == 0.0]
    simulated = ListJournal()
    simulate(jobs, local_cluster(3), make_policy("fifo"), journal=simulated)
    drive(jobs, tmp_path, slots=3)
    assert starts(entries_of(tmp_path)) == starts(simulated.entries)


def allocations(entries: Sequence[Entry]) -> list[Any]:
    return [order.allocation for entry in entries for order in entry.orders if isinstance(order, StartRun)]


def test_many_short_jobs_all_finish(tmp_path: Path) -> None:
    jobs = [shell_job(f"job-{number}", "true") for number in range(40)]
    outcomes = drive(jobs, tmp_path, slots=4, policy="fifo")
    assert all_finished(outcomes)
    assert starts(entries_of(tmp_path)) == [(job.id, 1) for job in jobs]
    assert len(list((tmp_path / "logs").glob("job-*"))) == 40
