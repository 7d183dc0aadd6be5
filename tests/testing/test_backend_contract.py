"""The back-end contract fails broken back ends, in the cases that their defects concern.

The broken back ends wrap `LocalBackend`, which passes the whole contract in `tests/engines/local`.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest
from contract_outcomes import run_contract

from refold.core import Event, Order, RunFailed, RunFinished, RunStarted, RunStopped, StartRun, StopRun
from refold.engines.local import LocalBackend
from refold.model import Job
from refold.server import Backend, Report
from refold.testing import BackendContract

TIMED_OUT = "timed out after these reports: "

MakeBackend = Callable[[Report, Path, float], Backend]


class Wrapped:
    """A local back end whose reports pass through `alter`, which returns the events to report instead."""

    def __init__(self, report: Report, folder: Path, grace: float) -> None:
        self._report = report
        self._local = LocalBackend(self._report_altered, folder / "logs", grace)

    def _report_altered(self, event: Event) -> None:
        for altered in self.alter(event):
            self._report(altered)

    def alter(self, event: Event) -> list[Event]:
        return [event]

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        await self._local.carry_out(orders, jobs)

    async def close(self) -> None:
        await self._local.close()

    async def detach(self) -> None:
        await self._local.detach()

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        await self._local.stop_all_except(runs)


class ReportsEndsTwice(Wrapped):
    def alter(self, event: Event) -> list[Event]:
        return [event] if isinstance(event, RunStarted) else [event, event]


class ReportsNoStarts(Wrapped):
    def alter(self, event: Event) -> list[Event]:
        return [] if isinstance(event, RunStarted) else [event]


class HidesFailures(Wrapped):
    def alter(self, event: Event) -> list[Event]:
        return [RunFinished(event.job, event.run)] if isinstance(event, RunFailed) else [event]


class GivesNoReasons(Wrapped):
    def alter(self, event: Event) -> list[Event]:
        return [RunFailed(event.job, event.run)] if isinstance(event, RunFailed) else [event]


class ReportsStopsAsFailures(Wrapped):
    def alter(self, event: Event) -> list[Event]:
        return [RunFailed(event.job, event.run, "killed")] if isinstance(event, RunStopped) else [event]


class AnswersEveryStop(Wrapped):
    """Reports a run as stopped as soon as it is ordered to stop, whether or not it has ever existed."""

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        await super().carry_out(orders, jobs)
        for order in orders:
            if isinstance(order, StopRun):
                self._report(RunStopped(order.job, order.run))


class StartsOneInstance(Wrapped):
    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        await super().carry_out([_with_one_instance(order) for order in orders], jobs)


class StopsOnDetach(Wrapped):
    async def detach(self) -> None:
        await self._local.close()


class LeavesRunsOnClose(Wrapped):
    async def close(self) -> None:
        await self._local.detach()


class StopsNothingElse(Wrapped):
    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        pass


class StopsEverything(Wrapped):
    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        await super().stop_all_except([])


def with_grace(seconds: float) -> MakeBackend:
    return lambda report, folder, _: LocalBackend(report, folder / "logs", seconds)


def with_an_own_folder_each() -> MakeBackend:
    """Back ends that do not find the runs of their predecessors."""
    numbers = itertools.count()
    return lambda report, folder, grace: LocalBackend(report, folder / f"logs-{next(numbers)}", grace)


def contract_of(make: MakeBackend) -> BackendContract:
    class Contract(BackendContract):
        def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
            return make(report, folder, grace)

    return Contract()


def _with_one_instance(order: Order) -> Order:
    if isinstance(order, StopRun):
        return order
    placement = order.allocation.placement[:1]
    return StartRun(order.job, order.run, type(order.allocation)(placement))


@pytest.mark.parametrize(
    ("make", "failing", "message"),
    [
        (ReportsEndsTwice, "test_a_run_starts_and_finishes", "RunFinished(job='job', run=1, usage=None), RunFinished("),
        (ReportsNoStarts, "test_a_run_starts_and_finishes", "Right contains one more item"),
        (HidesFailures, "test_a_command_with_a_non_zero_exit_status_fails_the_run", "isinstance(RunFinished("),
        (HidesFailures, "test_a_gang_fails_if_one_instance_fails", "isinstance(RunFinished("),
        (GivesNoReasons, "test_a_command_with_a_non_zero_exit_status_fails_the_run", "assert '3' in ''"),
        (GivesNoReasons, "test_a_command_that_cannot_be_started_fails_the_run_with_a_reason", "assert ''"),
        (ReportsStopsAsFailures, "test_a_run_that_is_ordered_to_stop_is_reported_as_stopped", "isinstance(RunFailed("),
        (ReportsStopsAsFailures, "test_a_run_can_be_stopped_before_it_has_started", "isinstance(RunFailed("),
        (AnswersEveryStop, "test_stopping_an_unknown_or_ended_run_does_nothing", "RunStopped(job='unknown'"),
        (AnswersEveryStop, "test_stopping_a_run_twice_reports_one_end", "RunStopped("),
        (StartsOneInstance, "test_a_gang_finishes_when_its_last_instance_finishes", "['ended-0'] == ['ended-0'"),
        (StopsOnDetach, "test_a_detached_back_end_lets_runs_continue_and_reports_nothing", "is_alive"),
        (StopsNothingElse, "test_stop_all_except_stops_all_other_runs", "[True, True, True] == [False, True, False]"),
        (StopsEverything, "test_stop_all_except_stops_all_other_runs", "[False, False, False] == [False, True, False]"),
        (with_grace(0.0), "test_a_run_can_save_a_checkpoint_during_the_grace_period", TIMED_OUT),
        (
            with_grace(0.0),
            "test_child_processes_have_the_grace_period_even_if_their_shell_exits_at_once",
            TIMED_OUT,
        ),
        (with_grace(600.0), "test_a_process_that_ignores_the_stop_signal_is_killed", TIMED_OUT),
        (with_an_own_folder_each(), "test_a_new_back_end_takes_over_a_run", r"'\n\n' == '\n'"),
        (with_an_own_folder_each(), "test_a_run_is_never_started_twice", r"\n\n"),
        (
            with_an_own_folder_each(),
            "test_runs_that_ended_without_a_back_end_are_reported_by_the_next",
            r"\n\n",
        ),
    ],
)
def test_a_broken_back_end_fails_the_case_of_its_defect(
    make: MakeBackend, failing: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if message == TIMED_OUT:
        monkeypatch.setattr("refold.testing.backend_contract.TIMEOUT_SECONDS", 2.0)
    failed = run_contract(contract_of(make), tmp_path, only=failing).failed
    assert list(failed) == [failing]
    assert message in failed[failing]


def test_a_correct_back_end_passes_the_same_cases(tmp_path: Path) -> None:
    assert run_contract(contract_of(Wrapped), tmp_path, only="test_a_run_").failed == {}
    assert run_contract(contract_of(Wrapped), tmp_path, only="test_stop").failed == {}


def test_a_back_end_that_leaves_runs_behind_fails_the_case_of_closing(tmp_path: Path) -> None:
    case = "test_closing_the_back_end_ends_all_runs"
    failed = run_contract(contract_of(LeavesRunsOnClose), tmp_path, only=case).failed
    os.kill(int((tmp_path / case / "pid").read_text()), signal.SIGKILL)
    assert "assert not True" in failed[case]


def test_the_contract_needs_a_back_end(tmp_path: Path) -> None:
    failed = run_contract(BackendContract(), tmp_path, only="starts_and_finishes").failed
    assert failed == {"test_a_run_starts_and_finishes": "NotImplementedError: "}
