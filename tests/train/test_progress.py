"""Progress reports of jobs, and checkpoint requests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from refold.train import progress
from refold.train.progress import Reporter


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(progress, "monotonic", fake)
    return fake


def test_steps_are_written_at_most_once_per_second(tmp_path: Path, clock: FakeClock) -> None:
    reporter = Reporter(tmp_path / "progress")
    reporter.report(1)
    assert (tmp_path / "progress").read_text() == "1\n"
    reporter.report(2)
    reporter.report(3)
    assert (tmp_path / "progress").read_text() == "1\n"
    reporter.flush()
    assert (tmp_path / "progress").read_text() == "3\n"
    clock.now += 1
    reporter.report(4)
    assert (tmp_path / "progress").read_text() == "4\n"
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


class FakeTimer:
    """A timer that fires when the test says so."""

    started: ClassVar[list[FakeTimer]] = []

    def __init__(self, interval: float, function: Callable[[], None]) -> None:
        self.interval, self.fire = interval, function

    def start(self) -> None:
        self.started.append(self)

    def cancel(self) -> None:
        self.started.remove(self)


def test_a_forked_process_does_not_wait_for_the_timer_of_its_parent(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer is a thread, and threads do not survive a fork."""
    monkeypatch.setattr(threading, "Timer", FakeTimer)
    monkeypatch.setattr(FakeTimer, "started", [])
    reporter = Reporter(tmp_path / "progress")
    reporter.report(1)
    reporter.report(2)
    assert len(FakeTimer.started) == 1
    monkeypatch.setattr(os, "getpid", lambda: 0)
    reporter.report(3)
    reporter.report(4)
    (_, own) = FakeTimer.started
    own.fire()
    assert (tmp_path / "progress").read_text() == "4\n"


def test_loss_and_speed_are_written_with_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    Reporter(path).report(120, loss=2.3125, samples_per_second=88.125)
    assert path.read_text() == "120 loss=2.3125 samples_per_second=88.125\n"
    Reporter(path).report(121, more={"plan": '{"data":2}', "slow": '{"what":"so slow"}'})
    assert path.read_text() == '121 plan={"data":2} slow={"what":"so\\u0020slow"}\n'
    Reporter(path).report(121)
    assert path.read_text() == "121\n"


def test_the_last_step_is_written_without_further_reports(tmp_path: Path) -> None:
    program = """
import os, pathlib, time
from refold.train import progress
for step in range(1, 50):
    progress.report(step)
path = pathlib.Path(os.environ["REFOLD_PROGRESS"])
while path.read_text() != "49\\n":
    time.sleep(0.02)
"""
    run_job(program, tmp_path)


def test_pending_steps_are_written_at_exit(tmp_path: Path) -> None:
    run_job("from refold.train import progress\nfor step in range(8): progress.report(step)", tmp_path)
    assert (tmp_path / "progress").read_text() == "7\n"


def test_a_job_continues_if_its_progress_cannot_be_written(tmp_path: Path) -> None:
    Reporter(tmp_path / "no" / "such").report(1)
    assert list(tmp_path.iterdir()) == []


def test_the_stop_signal_requests_a_checkpoint(tmp_path: Path) -> None:
    program = """
import os, signal
from refold.train import progress
assert not progress.checkpoint_requested()
os.kill(os.getpid(), signal.SIGUSR1)
assert progress.checkpoint_requested()
"""
    run_job(program, tmp_path, REFOLD_STOP_SIGNAL="USR1")


def test_progress_does_nothing_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_PROGRESS", raising=False)
    monkeypatch.delenv("REFOLD_STOP_SIGNAL", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    progress.report(1)
    assert not progress.checkpoint_requested()
    assert signal.getsignal(signal.SIGTERM) == before


def run_job(program: str, folder: Path, **environment: str) -> None:
    """Run a job in a process without PyTorch."""
    without_torch = "import sys; sys.modules['torch'] = None\n"
    variables = {**os.environ, "REFOLD_PROGRESS": str(folder / "progress"), **environment}
    subprocess.run([sys.executable, "-c", without_torch + program], env=variables, check=True, timeout=30)
