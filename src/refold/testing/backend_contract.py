"""What every back end promises. Subclass it, say how yours is made, and you know when you are done.

    class TestMyBackend(BackendContract):
        def make_backend(self, report, folder, grace):
            return MyBackend(report, grace=grace)

Jobs are shell commands here, and `folder` is one that they and the tests both see. Some tests make a second back end
for the same folder, which has to take up what the first has started.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from refold.backends import Backend, Report
from refold.core import Event, Order, RunFailed, RunFinished, RunStarted, RunStopped, StartRun, StopRun
from refold.model import Allocation, Demand, Job, Share

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a test gives up waiting."""

LONG_GRACE = 60.0
"""More than PATIENCE: who waits for this to pass fails."""

SHORT_GRACE = 0.3

Ending = RunFinished | RunFailed | RunStopped


class World:
    """One back end under test, what it has reported, and orders in few words."""

    def __init__(self, make: Callable[[Report], Backend], folder: Path) -> None:
        self.reports: list[Event] = []
        self.folder = folder
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[str, Job] = {}
        self._make = make
        self.backend = make(self._report)

    def _report(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        self.reports.append(event)
        self._news.set()

    async def start(self, job: str, shell: str, run: int = 1, instances: int = 1) -> None:
        """Start a run of a shell command, each instance on one GPU."""
        await self.start_words(job, ("sh", "-c", f"cd '{self.folder}'\n{shell}"), run, instances)

    async def start_words(self, job: str, command: Sequence[str], run: int = 1, instances: int = 1) -> None:
        """Start a run of a command that is given word by word."""
        self._jobs[job] = Job(job, demand=Demand(instances), command=tuple(command))
        await self.order(StartRun(job, run, Allocation(tuple(Share(0, (gpu,)) for gpu in range(instances)))))

    async def another_backend(self) -> None:
        """The back end leaves, and another comes in its place that knows nothing but what is in the folder."""
        await self.backend.leave()
        await asyncio.sleep(0)
        self.reports.clear()
        self.backend = self._make(self._report)

    async def stop(self, job: str, run: int = 1) -> None:
        """Tell a run to stop."""
        await self.order(StopRun(job, run))

    async def order(self, *orders: Order) -> None:
        """Have orders carried out."""
        await self.backend.carry_out(orders, self._jobs)

    async def ending(self, job: str, run: int = 1) -> Ending:
        """Wait until a run's end is reported."""
        while not (endings := self.endings(job, run)):
            await self._more()
        return endings[0]

    async def started(self, job: str, run: int = 1) -> None:
        """Wait until a run is reported to have started."""
        while RunStarted(job, run) not in self.reports:
            await self._more()

    async def content(self, name: str) -> str:
        """Wait until a process has written a line to a file of the folder; what it wrote."""
        path = self.folder / name
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.02)
        return path.read_text().strip()

    def endings(self, job: str, run: int = 1) -> list[Ending]:
        """Every end that was reported of a run."""
        return [
            event
            for event in self.reports
            if isinstance(event, RunFinished | RunFailed | RunStopped) and (event.job, event.run) == (job, run)
        ]

    async def until(self, name: str) -> None:
        """Wait until a file is there."""
        while not (self.folder / name).exists():
            await asyncio.sleep(0.02)

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()


class BackendContract:
    """The tests. `make_backend` is yours; so is `is_alive`, if processes run on other machines."""

    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        """A back end that reports there and grants so many seconds to stop."""
        raise NotImplementedError

    def is_alive(self, pid: int) -> bool:
        """Whether a process is running; one that has ended and was not collected is not."""
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            return stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def within(self, folder: Path, test: Callable[[World], Coroutine[Any, Any, T]], grace: float = LONG_GRACE) -> T:
        """Run a test in a world of its own, and end that world."""

        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE):
                world = World(lambda report: self.make_backend(report, folder, grace), folder)
                try:
                    return await test(world)
                finally:
                    await world.backend.close()
                    self.check_at_most_one_ending_each(world)

        return asyncio.run(bounded())

    def check_at_most_one_ending_each(self, world: World) -> None:
        """Holds after every test."""
        for event in world.reports:
            if isinstance(event, RunStarted):
                assert len(world.endings(event.job, event.run)) <= 1, world.reports

    def test_a_run_starts_and_finishes(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "true")
            await world.ending("job")
            assert world.reports == [RunStarted("job", 1), RunFinished("job", 1)]

        self.within(tmp_path, test)

    def test_a_command_that_fails_is_a_run_that_failed(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "exit 3")
            ending = await world.ending("job")
            assert isinstance(ending, RunFailed)
            assert "3" in ending.why

        self.within(tmp_path, test)

    def test_a_command_that_cannot_be_started_is_a_run_that_failed_and_says_why(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start_words("job", ["/there/is/no/such/command"])
            ending = await world.ending("job")
            assert isinstance(ending, RunFailed)
            assert ending.why

        self.within(tmp_path, test)

    def test_a_run_that_is_told_to_stop_reports_that_it_has(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "exec sleep 1000")
            await world.started("job")
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)

        self.within(tmp_path, test)

    def test_a_run_may_be_told_to_stop_before_it_has_started(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "exec sleep 1000")
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)

        self.within(tmp_path, test)

    def test_a_run_has_its_grace_to_save_what_it_has(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start(
                "job", "trap 'sleep 0.3; echo all >saved; exit 0' TERM; echo >up; while :; do sleep 0.05; done"
            )
            await world.content("up")
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)
            assert await world.content("saved") == "all"

        self.within(tmp_path, test)

    def test_a_child_has_that_grace_too_when_its_shell_is_gone_at_once(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            child = "trap 'sleep 0.3; echo all >saved; exit 0' TERM; echo >up; while :; do sleep 0.05; done"
            await world.start("job", f'sh -c "{child}"\ntrue')
            await world.content("up")
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)
            assert await world.content("saved") == "all"

        self.within(tmp_path, test)

    def test_a_process_that_will_not_stop_is_killed(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done")
            pid = int(await world.content("pid"))
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)
            assert not self.is_alive(pid)

        self.within(tmp_path, test, grace=SHORT_GRACE)

    def test_grandchildren_end_with_a_run_that_is_stopped(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "(sleep 1000 & echo $! >pid; wait) & wait")
            pid = int(await world.content("pid"))
            await world.stop("job")
            await world.ending("job")
            assert not self.is_alive(pid)

        self.within(tmp_path, test)

    def test_what_a_run_leaves_behind_ends_with_it(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "nohup sleep 1000 & echo $! >pid")
            assert isinstance(await world.ending("job"), RunFinished)
            assert not self.is_alive(int(await world.content("pid")))

        self.within(tmp_path, test)

    def test_what_a_failed_run_leaves_behind_ends_with_it(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start(
                "job", "(trap '' TERM; echo >up; sleep 1000) & echo $! >pid; while [ ! -e up ]; do :; done; exit 1"
            )
            assert isinstance(await world.ending("job"), RunFailed)
            assert not self.is_alive(int(await world.content("pid")))

        self.within(tmp_path, test, grace=SHORT_GRACE)

    def test_to_stop_a_run_that_never_was_or_has_ended_does_nothing(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.stop("stranger")
            await world.start("job", "true")
            await world.ending("job")
            before = list(world.reports)
            await world.stop("job")
            await world.stop("job", run=7)
            await world.start("next", "true")
            await world.ending("next")
            assert world.reports == [*before, RunStarted("next", 1), RunFinished("next", 1)]

        self.within(tmp_path, test)

    def test_to_tell_a_run_twice_is_to_tell_it_once(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "exec sleep 1000")
            await world.started("job")
            await world.order(StopRun("job", 1), StopRun("job", 1))
            await world.stop("job")
            await world.ending("job")
            await world.start("next", "true")
            await world.ending("next")
            assert world.endings("job") == [RunStopped("job", 1)]

        self.within(tmp_path, test)

    def test_a_run_that_ends_while_it_is_told_to_stop_ends_once(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            jobs = [f"job-{number}" for number in range(8)]
            for number, job in enumerate(jobs):
                await world.start(job, f"sleep 0.0{number}")
            for job in jobs:
                await asyncio.sleep(0.01)
                await world.stop(job)
            for job in jobs:
                await world.ending(job)
            await world.start("next", "true")
            await world.ending("next")
            assert [len(world.endings(job)) for job in jobs] == [1] * 8
            assert not any(isinstance(event, RunFailed) for event in world.reports)

        self.within(tmp_path, test)

    def test_a_gang_finishes_when_the_last_of_it_does(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start(
                "job",
                "echo >up-$REFOLD_INSTANCE; [ $REFOLD_INSTANCE = 0 ] || sleep 0.2; echo >over-$REFOLD_INSTANCE",
                instances=3,
            )
            assert isinstance(await world.ending("job"), RunFinished)
            assert sorted(path.name for path in world.folder.glob("over-*")) == ["over-0", "over-1", "over-2"]

        self.within(tmp_path, test)

    def test_a_gang_fails_as_a_whole(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start(
                "job",
                "[ $REFOLD_INSTANCE = 1 ] || { echo $$ >pid-$REFOLD_INSTANCE; exec sleep 1000; }\n"
                "while [ ! -s pid-0 ] || [ ! -s pid-2 ]; do sleep 0.02; done; exit 5",
                instances=3,
            )
            ending = await world.ending("job")
            assert isinstance(ending, RunFailed)
            assert "5" in ending.why
            assert not self.is_alive(int(await world.content("pid-0")))
            assert not self.is_alive(int(await world.content("pid-2")))

        self.within(tmp_path, test)

    def test_a_gang_stops_as_a_whole(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "echo $$ >pid-$REFOLD_INSTANCE; exec sleep 1000", instances=2)
            pids = [int(await world.content(f"pid-{instance}")) for instance in range(2)]
            await world.stop("job")
            assert isinstance(await world.ending("job"), RunStopped)
            assert not any(self.is_alive(pid) for pid in pids)

        self.within(tmp_path, test)

    def test_two_runs_of_a_job_are_told_apart(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            await world.start("job", "exec sleep 1000", run=1)
            await world.started("job")
            await world.stop("job", run=1)
            await world.ending("job", run=1)
            await world.start("job", "echo $REFOLD_RUN >run; exec sleep 1000", run=2)
            assert await world.content("run") == "2"
            await world.stop("job", run=1)
            await world.started("job", run=2)
            assert world.endings("job", run=2) == []
            await world.stop("job", run=2)
            await world.ending("job", run=2)
            assert world.reports == [
                RunStarted("job", 1),
                RunStopped("job", 1),
                RunStarted("job", 2),
                RunStopped("job", 2),
            ]

        self.within(tmp_path, test)

    def test_closing_ends_whatever_runs(self, tmp_path: Path) -> None:
        async def test(world: World) -> int:
            await world.start("job", "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done")
            return int(await world.content("pid"))

        assert not self.is_alive(self.within(tmp_path, test))

    def test_a_run_is_taken_up_by_another_back_end(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "echo >>starts; echo >up; while [ ! -e go ]; do sleep 0.02; done"
            await world.start("job", shell)
            await world.content("up")
            await world.another_backend()
            await world.start("job", shell)
            await world.started("job")
            (world.folder / "go").touch()
            await world.ending("job")
            assert world.reports == [RunStarted("job", 1), RunFinished("job", 1)]
            assert (world.folder / "starts").read_text() == "\n"

        self.within(tmp_path, test)

    def test_what_ended_while_nobody_watched_is_reported_as_it_ended(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shells = {"good": "sleep 0.1; echo >>good", "bad": "sleep 0.1; echo >>bad; exit 3"}
            for job, shell in shells.items():
                await world.start(job, shell)
                await world.started(job)
            await world.another_backend()
            await world.content("good")
            await world.content("bad")
            await asyncio.sleep(0.1)
            for job, shell in shells.items():
                await world.start(job, shell)
            assert await world.ending("good") == RunFinished("good", 1)
            ending = await world.ending("bad")
            assert isinstance(ending, RunFailed)
            assert "3" in ending.why
            assert [(world.folder / job).read_text() for job in shells] == ["\n", "\n"]

        self.within(tmp_path, test)

    def test_a_run_is_never_started_twice(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "echo >>starts-$REFOLD_INSTANCE; while [ ! -e go ]; do sleep 0.02; done"
            for _ in range(3):
                await world.start("job", shell, instances=2)
                await world.start("job", shell, instances=2)
                await asyncio.sleep(0)
                await world.another_backend()
            await world.start("job", shell, instances=2)
            await world.content("starts-0")
            await world.content("starts-1")
            (world.folder / "go").touch()
            assert await world.ending("job") == RunFinished("job", 1)
            assert [(world.folder / f"starts-{instance}").read_text() for instance in range(2)] == ["\n", "\n"]

        self.within(tmp_path, test)

    def test_a_run_that_was_taken_up_stops(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "echo $$ >pid-$REFOLD_INSTANCE; (trap '' TERM; exec sleep 1000) & wait"
            await world.start("job", shell, instances=2)
            pids = [int(await world.content(f"pid-{instance}")) for instance in range(2)]
            await world.another_backend()
            await world.start("job", shell, instances=2)
            await world.stop("job")
            assert await world.ending("job") == RunStopped("job", 1)
            assert not any(self.is_alive(pid) for pid in pids)

        self.within(tmp_path, test, grace=SHORT_GRACE)

    def test_a_gang_that_was_taken_up_fails_as_a_whole(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = (
                "echo $$ >pid-$REFOLD_INSTANCE; [ $REFOLD_INSTANCE = 1 ] || exec sleep 1000\n"
                "while [ ! -e go ]; do sleep 0.02; done; exit 5"
            )
            await world.start("job", shell, instances=2)
            pids = [int(await world.content(f"pid-{instance}")) for instance in range(2)]
            await world.another_backend()
            await world.start("job", shell, instances=2)
            (world.folder / "go").touch()
            ending = await world.ending("job")
            assert isinstance(ending, RunFailed)
            assert "5" in ending.why
            assert not any(self.is_alive(pid) for pid in pids)

        self.within(tmp_path, test)

    def test_a_run_that_was_being_stopped_has_stopped_also_for_the_next_back_end(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "trap 'echo >asked; sleep 0.2; exit 1' TERM; echo >up; while :; do sleep 0.02; done"
            await world.start("job", shell)
            await world.content("up")
            await world.stop("job")
            await world.until("asked")
            await world.another_backend()
            await world.start("job", shell)
            assert await world.ending("job") == RunStopped("job", 1)

        self.within(tmp_path, test)

    def test_who_leaves_lets_runs_go_on_and_says_no_more(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "echo $$ >pid; while [ ! -e go ]; do sleep 0.02; done; echo >over"
            await world.start("job", shell)
            pid = int(await world.content("pid"))
            await world.another_backend()
            assert self.is_alive(pid)
            (world.folder / "go").touch()
            await world.until("over")
            await asyncio.sleep(0.05)
            assert world.reports == []

        self.within(tmp_path, test)

    def test_only_what_is_to_be_kept_is_kept(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            shell = "echo $$ >pid-$REFOLD_JOB-$REFOLD_RUN; exec sleep 1000"
            runs = [("kept", 1), ("kept", 2), ("other", 1)]
            for job, number in runs:
                await world.start(job, shell, number)
            pids = [int(await world.content(f"pid-{job}-{number}")) for job, number in runs]
            await world.another_backend()
            await world.backend.keep_only({("kept", 2)})
            assert [self.is_alive(pid) for pid in pids] == [False, True, False]
            await world.start("kept", shell, run=2)
            await world.backend.keep_only([])
            assert world.endings("kept", 2) == [RunStopped("kept", 2)]
            assert [self.is_alive(pid) for pid in pids] == [False, False, False]

        self.within(tmp_path, test)
