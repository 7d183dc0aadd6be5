"""A training on two instances under a back end: nothing has to be switched on for it to survive a lost instance."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from refold.core import ChangeMeasured, Event, RunStopped, StartRun, StopRun
from refold.engines.local import gang
from refold.engines.local.backend import LocalBackend
from refold.model import Allocation, Demand, Job, Launch, Plan, Share
from refold.server import Backend, Report
from refold.server.output.run_files import log_path
from refold.testing.backend_contract import BackendContract
from refold.testing.backend_harness import BackendHarness

TESTS = Path(__file__).parent
HELPERS = TESTS.parents[1] / "helpers"
STEPS = 10**6
TWO = (Share(0, (0,)), Share(1, (1,)))


class Local(BackendContract):
    def make_backend(self, report: Report, folder: Path, grace: float) -> Backend:
        return LocalBackend(report, folder / "logs", grace, gpus=False)


def output(folder: Path, run: int) -> str:
    paths = [log_path(folder / "logs", "job", run, instance) for instance in range(2)]
    return "\n".join(path.read_text() for path in paths if path.exists())


def steps(folder: Path) -> list[tuple[int, str]]:
    """Return number and plan of all steps."""
    path = folder / "losses"
    lines = [line.split(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), plan) for step, _, plan in lines]


def agent_of(instance: int) -> int:
    """Return the process of the agent of an instance."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        is_agent = b"refold.train" in words and f"REFOLD_INSTANCE={instance}".encode() in variables
        if is_agent and any(variable.startswith(b"NAME_OF_THIS_TEST=") for variable in variables):
            return int(path.name)
    raise AssertionError(f"there is no agent of instance {instance}")


async def reach(harness: BackendHarness, count: int, plan: str = "") -> None:
    """Wait until so many further steps are done."""
    before = len(steps(harness.folder))
    while len([step for step in steps(harness.folder)[before:] if plan in step[1]]) < count:
        await asyncio.sleep(0.05)


def test_a_lost_instance_comes_back_and_plans_change_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "RESTART_SECONDS", 1.0)
    script = (sys.executable, str(TESTS / "script_to_supervise.py"), str(tmp_path), str(STEPS), "3600")
    variables = (("PYTHONPATH", str(HELPERS)), ("NAME_OF_THIS_TEST", str(os.getpid())), ("SLOW_RANK", "0"))
    launch = Launch(environment=variables)
    job = Job("job", demand=Demand(2), command=script, launch=launch)

    async def check(harness: BackendHarness) -> list[Event]:
        harness.add_job(job)
        await harness.order(StartRun("job", 1, Allocation(TWO, Plan(data=2, zero=3))))
        await reach(harness, 20)
        os.kill(agent_of(1), signal.SIGKILL)
        await reach(harness, 2, "DP1")
        await reach(harness, 2, "DP2")
        await harness.order(StopRun("job", 1, "", Allocation(TWO, Plan(tensor=2))))
        ended = await harness.ending("job", 1)
        assert isinstance(ended, RunStopped), output(tmp_path, 1)
        await harness.order(StartRun("job", 2, Allocation(TWO, Plan(tensor=2))))
        await reach(harness, 5, "TP2")
        await harness.stop("job", 2)
        assert isinstance(await harness.ending("job", 2), RunStopped), output(tmp_path, 2)
        return harness.reports

    reports = Local().run_test(tmp_path, check)
    assert [event.way for event in reports if isinstance(event, ChangeMeasured)] == ["live"]
    done = [step for step, _ in steps(tmp_path)]
    assert set(done) == set(range(1, max(done) + 1))
