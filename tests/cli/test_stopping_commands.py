"""Commands with worker processes end with them: on Ctrl-C, on SIGTERM, and if the command itself is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from real_daemon import wait_until

END_SECONDS = 300.0

GATED = '''
import os
from pathlib import Path
from threading import Event

from refold.placement import Placer
from refold.policies.queueing import Queue

FOLDER = Path(__file__).parent


class Gated:
    """Order of arrival. While the gate is closed, one simulation runs, and all others stand still."""

    name = "gated"

    def __init__(self, patience: float = 2.5) -> None:
        self._queue = Queue(Placer("best-fit"), key=lambda job: job.submitted, strict=True)
        self._may_run = False

    def decide(self, view):
        if not self._may_run and (FOLDER / "closed").exists() and not self._is_first():
            (FOLDER / f"waits-{os.getpid()}").touch()
            Event().wait()
        self._may_run = True
        return self._queue.decide(view)

    def _is_first(self) -> bool:
        try:
            (FOLDER / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
'''


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    path = tmp_path / "gated.py"
    path.write_text(GATED)
    (tmp_path / "closed").touch()
    return path


@pytest.fixture
def history(tmp_path: Path) -> Path:
    rows = [f"j{number},{100 * number},{number % 4 + 1},{50 + number}" for number in range(150)]
    path = tmp_path / "history.csv"
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s", *rows, ""]))
    return path


class Started:
    """A command as a process, in a group of its own, as a shell starts it."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refold", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_ended(self) -> tuple[int, str]:
        """Return the exit status and stderr. All of its processes have ended then: each of them holds the pipes."""
        _, err = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[type[Started]]:
    started: list[Started] = []

    class Kept(Started):
        def __init__(self, *words: str) -> None:
            super().__init__(*words)
            started.append(self)

    yield Kept
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)  # also the workers, if their parent has left them behind
        one.process.communicate()


def wait_at_gate(folder: Path, workers: int) -> None:
    """Wait until the policy stands still in all workers."""
    wait_until(lambda: len(list(folder.glob("waits-*"))) == workers, END_SECONDS, "all workers stand still")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_tune_ends_with_its_workers_and_keeps_its_results(
    start: type[Started], gated: Path, history: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    study = tmp_path / "out" / "study.jsonl"
    words = ("tune", str(history), "--cluster", "1x4", "--policy", str(gated), "--trials", "2", "--baselines", "fifo")
    command = start(*words, "--workers", "2", "--out", str(tmp_path / "out"))
    wait_until(lambda: len(lines_of(study)) == 2, END_SECONDS, "a result is kept")
    wait_at_gate(tmp_path, 2)
    command.process.send_signal(number)
    found, err = command.wait_until_ended()
    printed = "" if number == signal.SIGKILL else f"stopped; the same command continues with what is in {study}\n"
    assert (found, "" if number == signal.SIGKILL else err) == (status, printed)
    assert len(lines_of(study)) == 2


def test_compare_ends_with_its_processes(start: type[Started], gated: Path, history: Path, tmp_path: Path) -> None:
    (tmp_path / "first").touch()
    other = tmp_path / "other.py"
    other.write_text(GATED)
    words = ("compare", str(history), "--cluster", "1x4", "--policies", f"{gated},{other}", "--processes", "2")
    command = start(*words, "--out", str(tmp_path / "out"))
    wait_at_gate(tmp_path, 2)
    command.process.terminate()
    assert command.wait_until_ended() == (143, "stopped; no report is written\n")
    assert not (tmp_path / "out").exists()
