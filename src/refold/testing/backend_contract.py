"""The contract suite for back ends. Subclass it, return your back end from `make_backend`, and run pytest:

    class TestMyBackend(BackendContract):
        def make_backend(self, report, folder, grace):
            return MyBackend(report, grace=grace)

Jobs are shell commands; `folder` must be visible to the jobs and to the tests. Some tests create a second back end with
the same folder, which must take over the runs that the first has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StopRun
from refold.model import NOT_REJOINED
from refold.server import Backend, Report
from refold.testing.backend_harness import LONG_GRACE, BackendHarness, is_running, on_backend

T = TypeVar("T")

TIMEOUT_SECONDS = 120.0
"""Time limit of a test. Most take less than a second, but a busy machine may hold them up for long."""

SHORT_GRACE = 0.3
"""Grace period of tests that wait for it to expire."""

MIN_SECRET_CHARS = 32


class BackendContract:
    """Tests that every back end must pass. Override `make_backend`, and `is_alive` if runs are on other machines."""

    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        """Return a back end that calls `report` with events and gives runs `grace` seconds to stop."""
        raise NotImplementedError

    def is_alive(self, pid: int) -> bool:
        """Return whether a process is running; zombies are not."""
        return is_running(pid)

    def run_test(
        self, folder: Path, check: Callable[[BackendHarness], Coroutine[Any, Any, T]], grace: float = LONG_GRACE
    ) -> T:
        """Run a test with a new back end, and close the back end."""

        async def bounded() -> T:
            harness = BackendHarness(lambda report: self.make_backend(report, folder, grace), folder)
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    return await check(harness)
            except TimeoutError:
                raise AssertionError(f"timed out after these reports: {harness.reports}") from None
            finally:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await harness.backend.close()
                self.check_at_most_one_end_per_run(harness)

        return asyncio.run(bounded())

    def check_at_most_one_end_per_run(self, harness: BackendHarness) -> None:
        """Check, after every test, that no run was reported to end twice."""
        for event in harness.reports:
            if isinstance(event, RunStarted):
                assert len(harness.endings(event.job, event.run)) <= 1, harness.reports

    @on_backend()
    async def test_a_run_starts_and_finishes(self, harness: BackendHarness) -> None:
        await harness.start("job", "true")
        await harness.ending("job")
        assert harness.reports == [RunStarted("job", 1), RunFinished("job", 1)]

    @on_backend()
    async def test_a_command_with_a_non_zero_exit_status_fails_the_run(self, harness: BackendHarness) -> None:
        await harness.start("job", "exit 3")
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert "3" in ending.why

    @on_backend()
    async def test_a_command_that_cannot_be_started_fails_the_run_with_a_reason(self, harness: BackendHarness) -> None:
        await harness.start_command("job", ["/there/is/no/such/command"])
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert ending.why

    @on_backend()
    async def test_a_run_that_is_ordered_to_stop_is_reported_as_stopped(self, harness: BackendHarness) -> None:
        await harness.start("job", "exec sleep 1000")
        await harness.started("job")
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)

    @on_backend()
    async def test_a_run_can_be_stopped_before_it_has_started(self, harness: BackendHarness) -> None:
        await harness.start("job", "exec sleep 1000")
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)

    @on_backend()
    async def test_a_run_can_save_a_checkpoint_during_the_grace_period(self, harness: BackendHarness) -> None:
        await harness.start(
            "job", "trap 'sleep 0.3; echo all >saved; exit 0' TERM; echo >up; while :; do sleep 0.05; done"
        )
        await harness.content("up")
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)
        assert await harness.content("saved") == "all"

    @on_backend()
    async def test_child_processes_have_the_grace_period_even_if_their_shell_exits_at_once(
        self, harness: BackendHarness
    ) -> None:
        child = "trap 'sleep 0.3; echo all >saved; exit 0' TERM; echo >up; while :; do sleep 0.05; done"
        await harness.start("job", f'sh -c "{child}"\ntrue')
        await harness.content("up")
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)
        assert await harness.content("saved") == "all"

    @on_backend(grace=SHORT_GRACE)
    async def test_a_process_that_ignores_the_stop_signal_is_killed(self, harness: BackendHarness) -> None:
        await harness.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done")
        pid = int(await harness.content("pid"))
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)
        assert not self.is_alive(pid)

    @on_backend()
    async def test_descendants_end_when_a_run_is_stopped(self, harness: BackendHarness) -> None:
        await harness.start("job", "(sleep 1000 & echo $! >pid; wait) & wait")
        pid = int(await harness.content("pid"))
        await harness.stop("job")
        await harness.ending("job")
        assert not self.is_alive(pid)

    @on_backend()
    async def test_background_processes_end_when_a_run_finishes(self, harness: BackendHarness) -> None:
        await harness.start("job", "nohup sleep 1000 & echo $! >pid")
        assert isinstance(await harness.ending("job"), RunFinished)
        assert not self.is_alive(int(await harness.content("pid")))

    @on_backend(grace=SHORT_GRACE)
    async def test_background_processes_end_when_a_run_fails(self, harness: BackendHarness) -> None:
        await harness.start(
            "job", "(trap '' TERM; echo >up; sleep 1000) & echo $! >pid; while [ ! -e up ]; do :; done; exit 1"
        )
        assert isinstance(await harness.ending("job"), RunFailed)
        assert not self.is_alive(int(await harness.content("pid")))

    @on_backend()
    async def test_stopping_an_unknown_or_ended_run_does_nothing(self, harness: BackendHarness) -> None:
        await harness.stop("unknown")
        await harness.start("job", "true")
        await harness.ending("job")
        before = list(harness.reports)
        await harness.stop("job")
        await harness.stop("job", run=7)
        await harness.start("next", "true")
        await harness.ending("next")
        assert harness.reports == [*before, RunStarted("next", 1), RunFinished("next", 1)]

    @on_backend()
    async def test_stopping_a_run_twice_reports_one_end(self, harness: BackendHarness) -> None:
        await harness.start("job", "exec sleep 1000")
        await harness.started("job")
        await harness.order(StopRun("job", 1), StopRun("job", 1))
        await harness.stop("job")
        await harness.ending("job")
        await harness.start("next", "true")
        await harness.ending("next")
        assert harness.endings("job") == [RunStopped("job", 1)]

    @on_backend()
    async def test_a_run_that_ends_while_it_is_being_stopped_reports_one_end(self, harness: BackendHarness) -> None:
        jobs = [f"job-{number}" for number in range(8)]
        for number, job in enumerate(jobs):
            await harness.start(job, f"sleep 0.0{number}")
        for job in jobs:
            await asyncio.sleep(0.01)
            await harness.stop(job)
        for job in jobs:
            await harness.ending(job)
        await harness.start("next", "true")
        await harness.ending("next")
        assert [len(harness.endings(job)) for job in jobs] == [1] * 8
        assert not any(isinstance(event, RunFailed) for event in harness.reports)

    @on_backend()
    async def test_a_gang_finishes_when_its_last_instance_finishes(self, harness: BackendHarness) -> None:
        await harness.start(
            "job",
            "echo >up-$REFOLD_INSTANCE; [ $REFOLD_INSTANCE = 0 ] || sleep 0.2; echo >ended-$REFOLD_INSTANCE",
            instances=3,
        )
        assert isinstance(await harness.ending("job"), RunFinished)
        assert sorted(path.name for path in harness.folder.glob("ended-*")) == ["ended-0", "ended-1", "ended-2"]

    @on_backend()
    async def test_a_gang_fails_if_one_instance_fails(self, harness: BackendHarness) -> None:
        await harness.start(
            "job",
            "[ $REFOLD_INSTANCE = 1 ] || { echo $$ >pid-$REFOLD_INSTANCE; exec sleep 1000; }\n"
            "while [ ! -s pid-0 ] || [ ! -s pid-2 ]; do sleep 0.02; done; exit 5",
            instances=3,
        )
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert "5" in ending.why
        assert not self.is_alive(int(await harness.content("pid-0")))
        assert not self.is_alive(int(await harness.content("pid-2")))

    @on_backend()
    async def test_a_gang_shares_a_secret_that_other_runs_do_not_know(self, harness: BackendHarness) -> None:
        for run in (1, 2):
            shell = f"echo $REFOLD_RUN_SECRET >secret-{run}-$REFOLD_INSTANCE"
            await harness.start("job", shell, run=run, instances=2)
            await harness.ending("job", run=run)
        first, same, second = [await harness.content(f"secret-{name}") for name in ("1-0", "1-1", "2-0")]
        assert first == same != second
        assert len(first) >= MIN_SECRET_CHARS

    @on_backend()
    async def test_agents_of_a_gang_go_on_without_an_instance_that_was_killed(self, harness: BackendHarness) -> None:
        """An agent that is started again may find that the others have finished meanwhile."""

        await harness.start(
            "job",
            '[ -n "$REFOLD_CHANGE" ] || { echo >no-agents; exit 0; }\n'
            "[ $REFOLD_INSTANCE = 1 ] || : >$REFOLD_CHANGE.agent\n"
            f"[ ! -e lost ] || exit {NOT_REJOINED}\n"
            "if [ $REFOLD_INSTANCE = 0 ]; then while [ ! -e lost ]; do sleep 0.02; done; exit 0; fi\n"
            "while [ ! -e $REFOLD_CHANGE.agent ]; do sleep 0.02; done; : >lost; kill -9 $$",
            instances=2,
        )
        assert await harness.ending("job") == RunFinished("job", 1)
        if (harness.folder / "no-agents").exists():
            pytest.skip("does not apply: the back end does not know of agents")

    @on_backend()
    async def test_a_gang_whose_agents_fail_one_after_the_other_fails(self, harness: BackendHarness) -> None:
        await harness.start("job", ": >${REFOLD_CHANGE:-unknown}.agent; sleep 0.$REFOLD_INSTANCE; exit 4", instances=2)
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert "4" in ending.why

    @on_backend()
    async def test_stopping_a_gang_stops_all_instances(self, harness: BackendHarness) -> None:
        await harness.start("job", "echo $$ >pid-$REFOLD_INSTANCE; exec sleep 1000", instances=2)
        pids = [int(await harness.content(f"pid-{instance}")) for instance in range(2)]
        await harness.stop("job")
        assert isinstance(await harness.ending("job"), RunStopped)
        assert not any(self.is_alive(pid) for pid in pids)

    @on_backend()
    async def test_reports_distinguish_two_runs_of_a_job(self, harness: BackendHarness) -> None:
        await harness.start("job", "exec sleep 1000", run=1)
        await harness.started("job")
        await harness.stop("job", run=1)
        await harness.ending("job", run=1)
        await harness.start("job", "echo $REFOLD_RUN >run; exec sleep 1000", run=2)
        assert await harness.content("run") == "2"
        await harness.stop("job", run=1)
        await harness.started("job", run=2)
        assert harness.endings("job", run=2) == []
        await harness.stop("job", run=2)
        await harness.ending("job", run=2)
        assert harness.reports == [
            RunStarted("job", 1),
            RunStopped("job", 1),
            RunStarted("job", 2),
            RunStopped("job", 2),
        ]

    def test_closing_the_back_end_ends_all_runs(self, tmp_path: Path) -> None:
        async def check(harness: BackendHarness) -> int:
            await harness.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done")
            return int(await harness.content("pid"))

        assert not self.is_alive(self.run_test(tmp_path, check))

    @on_backend()
    async def test_a_new_back_end_takes_over_a_run(self, harness: BackendHarness) -> None:
        shell = "echo >>starts; echo >up; while [ ! -e go ]; do sleep 0.02; done"
        await harness.start("job", shell)
        await harness.content("up")
        await harness.replace_backend()
        await harness.start("job", shell)
        await harness.started("job")
        (harness.folder / "go").touch()
        await harness.ending("job")
        assert harness.reports == [RunStarted("job", 1), RunFinished("job", 1)]
        assert (harness.folder / "starts").read_text() == "\n"

    @on_backend()
    async def test_runs_that_ended_without_a_back_end_are_reported_by_the_next(self, harness: BackendHarness) -> None:
        shells = {"good": "sleep 0.1; echo >>good", "bad": "sleep 0.1; echo >>bad; exit 3"}
        for job, shell in shells.items():
            await harness.start(job, shell)
            await harness.started(job)
        await harness.replace_backend()
        await harness.content("good")
        await harness.content("bad")
        await asyncio.sleep(0.1)
        for job, shell in shells.items():
            await harness.start(job, shell)
        assert await harness.ending("good") == RunFinished("good", 1)
        ending = await harness.ending("bad")
        assert isinstance(ending, RunFailed)
        assert "3" in ending.why
        assert [(harness.folder / job).read_text() for job in shells] == ["\n", "\n"]

    @on_backend()
    async def test_a_run_is_never_started_twice(self, harness: BackendHarness) -> None:
        shell = "echo >>starts-$REFOLD_INSTANCE; while [ ! -e go ]; do sleep 0.02; done"
        for _ in range(3):
            await harness.start("job", shell, instances=2)
            await harness.start("job", shell, instances=2)
            await asyncio.sleep(0)
            await harness.replace_backend()
        await harness.start("job", shell, instances=2)
        await harness.content("starts-0")
        await harness.content("starts-1")
        (harness.folder / "go").touch()
        assert await harness.ending("job") == RunFinished("job", 1)
        assert [(harness.folder / f"starts-{instance}").read_text() for instance in range(2)] == ["\n", "\n"]

    @on_backend(grace=SHORT_GRACE)
    async def test_a_run_that_was_taken_over_can_be_stopped(self, harness: BackendHarness) -> None:
        shell = "echo $$ >pid-$REFOLD_INSTANCE; (trap '' TERM; exec sleep 1000) & wait"
        await harness.start("job", shell, instances=2)
        pids = [int(await harness.content(f"pid-{instance}")) for instance in range(2)]
        await harness.replace_backend()
        await harness.start("job", shell, instances=2)
        await harness.stop("job")
        assert await harness.ending("job") == RunStopped("job", 1)
        assert not any(self.is_alive(pid) for pid in pids)

    @on_backend()
    async def test_a_gang_that_was_taken_over_fails_if_one_instance_fails(self, harness: BackendHarness) -> None:
        shell = (
            "echo $$ >pid-$REFOLD_INSTANCE; [ $REFOLD_INSTANCE = 1 ] || exec sleep 1000\n"
            "while [ ! -e go ]; do sleep 0.02; done; exit 5"
        )
        await harness.start("job", shell, instances=2)
        pids = [int(await harness.content(f"pid-{instance}")) for instance in range(2)]
        await harness.replace_backend()
        await harness.start("job", shell, instances=2)
        (harness.folder / "go").touch()
        ending = await harness.ending("job")
        assert isinstance(ending, RunFailed)
        assert "5" in ending.why
        assert not any(self.is_alive(pid) for pid in pids)

    @on_backend()
    async def test_a_run_that_was_being_stopped_is_reported_as_stopped_by_the_next_back_end(
        self, harness: BackendHarness
    ) -> None:
        shell = "trap 'echo >signalled; sleep 0.2; exit 1' TERM; echo >up; while :; do sleep 0.02; done"
        await harness.start("job", shell)
        await harness.content("up")
        await harness.stop("job")
        await harness.wait_for_file("signalled")
        await harness.replace_backend()
        await harness.start("job", shell)
        assert await harness.ending("job") == RunStopped("job", 1)

    @on_backend()
    async def test_a_detached_back_end_lets_runs_continue_and_reports_nothing(self, harness: BackendHarness) -> None:
        shell = "echo $$ >pid; while [ ! -e go ]; do sleep 0.02; done; echo >ended"
        await harness.start("job", shell)
        pid = int(await harness.content("pid"))
        await harness.replace_backend()
        assert self.is_alive(pid)
        (harness.folder / "go").touch()
        await harness.wait_for_file("ended")
        await asyncio.sleep(0.05)
        assert harness.reports == []

    @on_backend()
    async def test_stop_all_except_stops_all_other_runs(self, harness: BackendHarness) -> None:
        shell = "echo $$ >pid-$REFOLD_JOB-$REFOLD_RUN; exec sleep 1000"
        runs = [("kept", 1), ("kept", 2), ("other", 1)]
        for job, number in runs:
            await harness.start(job, shell, number)
        pids = [int(await harness.content(f"pid-{job}-{number}")) for job, number in runs]
        await harness.replace_backend()
        await harness.backend.stop_all_except({("kept", 2)})
        assert [self.is_alive(pid) for pid in pids] == [False, True, False]
        await harness.start("kept", shell, run=2)
        await harness.backend.stop_all_except([])
        assert harness.endings("kept", 2) == [RunStopped("kept", 2)]
        assert [self.is_alive(pid) for pid in pids] == [False, False, False]
