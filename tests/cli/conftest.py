"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed import CommandLine

OWN = '''
from refold.core import View
from refold.model import Job
from refold.packing import Placer
from refold.policies.queue import Queue


class Mine:
    """Narrow jobs first."""

    name = "mine"

    def __init__(self, placement: str = "best-fit", patience: float = 2.5) -> None:
        self._queue = Queue(Placer(placement), key=lambda job: job.demand.total_gpus, strict=False)

    def decide(self, view):
        return self._queue.decide(view)
'''


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Six jobs for two nodes of four GPUs, two of them wide and one of them longer than all others."""
    rows = ["a,0,4,100,x", "b,0,8,50,x", "c,1,1,10,y", "d,2,1,10,y", "e,3,2,400,x", "f,4,1,5,y"]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,group", *rows, ""]))
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A policy of one's own."""
    path = tmp_path / "own" / "mine.py"
    path.parent.mkdir()
    path.write_text(OWN)
    return path


@pytest.fixture
def refold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The whole command."""
    return CommandLine(monkeypatch, capsys)
