"""Live changes: the processes of a run with an agent become the next run of its job, and are never lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from refold.core import Header, ListJournal, Scheduler, View
from refold.core.events import (
    ChangeMeasured,
    Event,
    JobCancelled,
    JobHeld,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.engines.local import gang, live_change
from refold.engines.local.backend import LocalBackend, local_cluster
from refold.engines.local.shim import read_claim
from refold.model import Allocation, Decision, Job, Plan, Reshape, Share, Start
from refold.server.backend import Backend, Report
from refold.server.batch import BatchRun
from refold.server.clock import WallClock
from refold.server.output import RunFiles, log_path
from refold.server.subscribers import LoopStep
from refold.testing.backend_contract import BackendContract
from refold.testing.backend_harness import BackendHarness

FAKE_AGENT = Path(__file__).parents[2] / "helpers" / "fake_agent.py"

ONE = Allocation((Share(0, (0,)),), Plan())
TWO = Allocation((Share(0, (0, 1)),), Plan(data=2))
ON_TWO_NODES = Allocation((Share(0, (0, 1)), Share(1, (0, 1))), Plan(data=4))
FEWER_ON_BOTH = Allocation((Share(0, (1,)), Share(1, (0,))), Plan(data=2))
OTHER_NODE = Allocation((Share(1, (0, 1)),), Plan(data=2))


class Local(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace)


local = Local()


def command(folder: Path, manner: str) -> tuple[str, ...]:
    return (sys.executable, str(FAKE_AGENT), str(folder), manner)


async def start(harness: BackendHarness, manner: str = "changes", run: int = 1, allocation: Allocation = ONE) -> None:
    """Start a run of the fake agent, and wait until it accepts requests."""
    harness.add_job(Job("job", command=command(harness.folder, manner)))
    await harness.order(StartRun("job", run, allocation))
    await harness.started("job", run)
    while not list(harness.folder.glob("logs/job/run-*.change.agent")):
        await asyncio.sleep(0.01)


async def change(harness: BackendHarness, run: int = 1, allocation: Allocation = TWO) -> Event:
    """Order a run to continue on another allocation; return how it ends."""
    await harness.order(StopRun("job", run, "", allocation))
    return await harness.ending("job", run)


async def continue_as(harness: BackendHarness, run: int, allocation: Allocation = TWO) -> None:
    """Start the next run of the job."""
    await harness.order(StartRun("job", run, allocation))
    await harness.started("job", run)


async def wait_for_agents(folder: Path, count: int) -> None:
    """Wait until so many agents have been started."""
    while len(lines(folder, "agents")) < count:
        await asyncio.sleep(0.01)


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def living_agents(folder: Path) -> list[str]:
    """Return the runs that started the agents which are alive."""
    agents = [line.split() for line in lines(folder, "agents")]
    return [run for run, pid in agents if local.is_alive(int(pid))]


def run_test(folder: Path, test: Callable[[BackendHarness], Coroutine[Any, Any, None]], grace: float = 20.0) -> None:
    local.run_test(folder, test, grace)
    assert living_agents(folder) == []


def test_the_processes_become_the_next_run(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        stopped = await change(harness)
        assert isinstance(stopped, RunStopped)
        assert stopped.steps
        await continue_as(harness, 2)
        assert living_agents(tmp_path) == ["1"]
        cost = next(event for event in harness.reports if isinstance(event, ChangeMeasured))
        assert (cost.job, cost.run, cost.way) == ("job", 2, "warm")
        assert cost.seconds == pytest.approx(0.3)
        (tmp_path / "finish").touch()
        assert await harness.ending("job", 2) == RunFinished("job", 2)
        assert lines(tmp_path, "plans") == ["2 2 0,1"]

    run_test(tmp_path, test)


def test_the_processes_of_several_instances_become_the_next_run(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness, allocation=ON_TWO_NODES)
        await wait_for_agents(tmp_path, 2)
        assert isinstance(await change(harness, 1, FEWER_ON_BOTH), RunStopped)
        await continue_as(harness, 2, FEWER_ON_BOTH)
        assert living_agents(tmp_path) == ["1", "1"]
        assert lines(tmp_path, "plans") == ["2 2 ['1', '0']"]
        await harness.replace_backend()
        await continue_as(harness, 2, FEWER_ON_BOTH)
        await harness.stop("job", 2)
        assert await harness.ending("job", 2) == RunStopped("job", 2)
        assert lines(tmp_path, "ends") == ["stopped", "stopped"]

    run_test(tmp_path, test)


def test_an_instance_that_was_started_again_can_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "RESTART_SECONDS", 0.1)

    def of_second_instance() -> list[int]:
        claims = [read_claim(path) for path in tmp_path.glob("logs/job/run-*.1.claim")]
        return [claim.process.pid for claim in claims if claim is not None and claim.is_alive()]

    async def test(harness: BackendHarness) -> None:
        await start(harness, allocation=ON_TWO_NODES)
        await wait_for_agents(tmp_path, 2)
        for run in (1, 2):
            for pid in of_second_instance():
                os.killpg(pid, signal.SIGKILL)
            await wait_for_agents(tmp_path, 2 + run)
            await change(harness, run, FEWER_ON_BOTH)
            await continue_as(harness, run + 1, FEWER_ON_BOTH)
            assert len(living_agents(tmp_path)) == 2
        await harness.stop("job", 3)
        assert await harness.ending("job", 3) == RunStopped("job", 3)
        assert len(lines(tmp_path, "agents")) == 4, "none was started for a change"

    run_test(tmp_path, test)


def test_a_run_whose_nodes_change_is_stopped(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness, allocation=ON_TWO_NODES)
        await wait_for_agents(tmp_path, 2)
        await change(harness, 1, TWO)
        assert living_agents(tmp_path) == []

    run_test(tmp_path, test)


def test_a_run_can_be_changed_again_and_again_and_then_stopped(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        for run, allocation in enumerate([TWO, ONE, TWO], start=2):
            await change(harness, run - 1, allocation)
            await continue_as(harness, run, allocation)
        await harness.stop("job", 4)
        assert await harness.ending("job", 4) == RunStopped("job", 4)
        assert lines(tmp_path, "ends") == ["stopped"]
        assert lines(tmp_path, "plans") == ["2 2 0,1", "3 1 0", "4 2 0,1"]

    run_test(tmp_path, test)


def test_each_run_has_its_part_of_the_log_and_all_have_the_progress_file(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        await change(harness)
        await continue_as(harness, 2)
        await change(harness, 2, ONE)
        logs = [log_path(tmp_path / "logs", "job", run, 0).read_text() for run in (1, 2)]
        assert logs == ["run 1\nrun 2\n", "run 3\n"]
        files = RunFiles(tmp_path / "logs", "job", 3)
        assert int(files.progress(0).read_text()) > 0

    run_test(tmp_path, test)


@pytest.mark.parametrize("manner", ["refuses", "crashes", "ignores"])
def test_an_agent_that_does_not_change_is_stopped_and_started_again(
    tmp_path: Path, manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_change, "ANSWER_TIMEOUT", 1.0)

    async def test(harness: BackendHarness) -> None:
        await start(harness, manner)
        assert await change(harness) == RunStopped("job", 1)
        assert living_agents(tmp_path) == []
        await continue_as(harness, 2)
        await wait_for_agents(tmp_path, 2)
        assert living_agents(tmp_path) == ["2"]

    run_test(tmp_path, test)


@pytest.mark.parametrize("next_allocation", [OTHER_NODE, Allocation(TWO.placement)], ids=["another node", "no plan"])
def test_other_changes_restart_the_run(tmp_path: Path, next_allocation: Allocation) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        assert await change(harness, allocation=next_allocation) == RunStopped("job", 1)
        assert lines(tmp_path, "ends") == ["stopped"]

    run_test(tmp_path, test)


def test_a_program_without_an_agent_is_restarted(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await harness.start("job", "exec sleep 1000")
        await harness.started("job")
        assert await change(harness) == RunStopped("job", 1)

    run_test(tmp_path, test)


def test_a_stop_during_a_change_stops_the_run(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness, "ignores")
        await harness.order(StopRun("job", 1, "", TWO))
        await asyncio.sleep(0.1)
        await harness.stop("job")
        assert await harness.ending("job") == RunStopped("job", 1)
        assert lines(tmp_path, "ends") == ["stopped"]

    run_test(tmp_path, test)


def test_a_run_that_finishes_during_a_change_has_finished(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness, "ignores")
        await harness.order(StopRun("job", 1, "", TWO))
        (tmp_path / "finish").touch()
        assert await harness.ending("job") == RunFinished("job", 1)

    run_test(tmp_path, test)


def test_prepared_processes_end_if_their_job_does_not_continue(tmp_path: Path) -> None:
    """Another run on the same GPUs waits for their end."""

    async def test(harness: BackendHarness) -> None:
        await start(harness)
        stopped = await change(harness)
        await harness.stop("job")
        await harness.start("other", "cp ends seen; echo >up")
        await harness.content("up")
        assert lines(tmp_path, "seen") == ["stopped"]
        assert RunFiles(tmp_path / "logs", "job", 1).read_end() == stopped

    run_test(tmp_path, test)


def test_a_job_that_continues_elsewhere_is_started_anew(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        await change(harness)
        await continue_as(harness, 2, OTHER_NODE)
        await wait_for_agents(tmp_path, 2)
        assert living_agents(tmp_path) == ["2"]

    run_test(tmp_path, test)


def test_closing_the_back_end_ends_prepared_processes(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        await change(harness)
        assert living_agents(tmp_path) == ["1"]

    run_test(tmp_path, test)


def test_processes_that_end_before_the_next_run_begins_are_started_anew(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        await change(harness)
        os.kill(int(lines(tmp_path, "agents")[0].split()[1]), signal.SIGKILL)
        while living_agents(tmp_path):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the shim records the exit status
        await continue_as(harness, 2)
        while not living_agents(tmp_path):
            await asyncio.sleep(0.01)
        assert living_agents(tmp_path) == ["2"]

    run_test(tmp_path, test)


def test_an_agent_that_fails_after_a_change_fails_the_next_run(tmp_path: Path) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness)
        await change(harness)
        await continue_as(harness, 2)
        os.kill(int(lines(tmp_path, "agents")[0].split()[1]), signal.SIGKILL)
        assert await harness.ending("job", 2) == RunFailed("job", 2, "killed by SIGKILL", exit_code=137)

    run_test(tmp_path, test)


@pytest.mark.parametrize("manner", ["changes", "slow", "ignores"])
@pytest.mark.parametrize("wait", [0.0, 0.1, 0.4])
def test_another_back_end_completes_the_change(tmp_path: Path, manner: str, wait: float) -> None:
    async def test(harness: BackendHarness) -> None:
        await start(harness, manner)
        await harness.order(StopRun("job", 1, "", TWO))
        await asyncio.sleep(wait)
        await harness.replace_backend()
        await harness.backend.stop_all_except({("job", 1)})
        await harness.order(StartRun("job", 1, ONE))
        await harness.order(StopRun("job", 1, "", None if manner == "ignores" else TWO))
        assert isinstance(await harness.ending("job"), RunStopped)
        assert living_agents(tmp_path) == ([] if manner == "ignores" else ["1"])

    run_test(tmp_path, test)


DRIVER = """
import asyncio, sys
from pathlib import Path
import live_change_driver
asyncio.run(live_change_driver.drive(Path(sys.argv[1]), sys.argv[2:]))
"""


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_a_back_end_that_is_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """Each back end repeats the orders of the last one, as a restarted daemon does, and changes the run further."""
    generator = random.Random(seed)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "helpers")}
    while len(lines(tmp_path, "plans")) < 6:
        arguments = [sys.executable, "-c", DRIVER, str(tmp_path), *command(tmp_path, "slow")]
        with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"ready\n"
            sleep(0.6 * generator.random())
            driver.kill()
    runs = [line.split()[0] for line in lines(tmp_path, "agents")]
    assert runs == ["1"], "the processes were started once"
    assert living_agents(tmp_path) == ["1"]
    changes = [int(line.split()[0]) for line in lines(tmp_path, "plans")]
    assert changes == list(range(2, len(changes) + 2)), "each run began once, in order"

    async def stop(harness: BackendHarness) -> None:
        state = int(lines(tmp_path, "state")[-1].split()[0])
        harness.add_job(Job("job", command=command(tmp_path, "slow")))
        await harness.order(StartRun("job", state, TWO if state % 2 == 0 else ONE))
        await harness.stop("job", state)
        assert isinstance(await harness.ending("job", state), RunStopped)

    run_test(tmp_path, stop)


class Reshaping:
    """A policy that starts the job on one slot, then changes it to two."""

    name = "reshaping"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def decide(self, view: View) -> Decision:
        run = view.runs.get("job")
        if "job" in view.waiting and not view.run_count("job"):
            return Decision((Start("job", ONE),))
        if run is not None and run.number == 1 and not run.stopping and self._has_agent():
            return Decision(reshapes=(Reshape("job", TWO),))
        return Decision(wake_at=view.now + 0.05)

    def _has_agent(self) -> bool:
        return bool(list(self._folder.glob("logs/job/run-*.change.agent")))


@pytest.mark.parametrize("manner", ["changes", "slow"])
@pytest.mark.parametrize("event", [None, JobCancelled("job"), JobHeld("job")], ids=["", "cancelled", "held"])
def test_the_loop_ends_prepared_processes_of_a_job_that_is_cancelled_or_held(
    tmp_path: Path, manner: str, event: Event | None
) -> None:
    async def test() -> None:
        job = Job("job", command=command(tmp_path, manner), reshapable=True)
        scheduler = Scheduler(local_cluster(2), Reshaping(tmp_path))

        def after_step(step: LoopStep) -> None:
            if event is not None and any(isinstance(order, StopRun) for order in step.entry.orders):
                batch.report(event)
            if event is None and RunStarted("job", 2) in step.entry.events:
                (tmp_path / "finish").touch()

        header = Header(local_cluster(2), "reshaping")
        batch = BatchRun([job], scheduler, header, ListJournal(), WallClock(), after_step)
        async with asyncio.timeout(30):
            running = asyncio.create_task(batch.run(LocalBackend(batch.report, tmp_path / "logs")))
            while not lines(tmp_path, "ends"):
                await asyncio.sleep(0.02)
            batch.cancel_all()
            await running

    asyncio.run(test())
    assert lines(tmp_path, "ends") == ["finished" if event is None else "stopped"]
    assert living_agents(tmp_path) == []
    assert len(lines(tmp_path, "agents")) == 1
