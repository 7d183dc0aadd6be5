"""What the tests of commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from refold.cli import app as command_line

if TYPE_CHECKING:
    from fake_service import FakeService, Served

OWN = '''
from refold.core import View
from refold.model import Job
from refold.packing import Placer
from refold.policies.queueing import Queue


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
def typed() -> Callable[..., Result]:
    """What comes of `refold WORDS`, without a process for it."""
    return lambda *words: CliRunner().invoke(command_line.app, words)


@pytest.fixture
def said(typed: Callable[..., Result]) -> Callable[..., str]:
    """What the command prints, when all goes well."""

    def said(*words: str) -> str:
        result = typed(*words)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return said


@pytest.fixture
def told(said: Callable[..., str]) -> Callable[..., Any]:
    """The same with --json, read."""
    return lambda *words: json.loads(said(*words, "--json"))


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """All that is on stderr; exit status 2 and nothing on stdout go with it."""

    def fails(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["refold", *words])
        with pytest.raises(SystemExit) as left:
            command_line.main()
        out, err = capsys.readouterr()
        assert (left.value.code, out) == (2, ""), err
        return err

    return fails


@pytest.fixture
def refuses(fails: Callable[..., str]) -> Callable[..., str]:
    """The one line on stderr that says what is wrong; exit status 2 and nothing on stdout go with it."""

    def refuses(*words: str) -> str:
        err = fails(*words)
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return refuses


@pytest.fixture
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody serves here, whatever there is on this machine."""
    for name in ("REFOLD_ADDRESS", "REFOLD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "nothing"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[type[FakeService]], Served]]:
    """One server for each kind of service, since starting it is most of what a test would take."""
    from fake_service import serve

    kept: dict[type[FakeService], Served] = {}
    with ExitStack() as stack:

        def server_of(kind: type[FakeService]) -> Served:
            if kind not in kept:
                kept[kind] = stack.enter_context(serve(kind()))
            return kept[kind]

        yield server_of


@pytest.fixture
def serving(
    no_daemon: None, servers: Callable[[type[FakeService]], Served], monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[FakeService]], Served]:
    """A daemon with a service of that kind at which nothing has happened yet, and which commands ask as its owner."""
    from fake_service import OWNER

    def serving(kind: type[FakeService]) -> Served:
        served = servers(kind)
        served.do(_as_new, served.service)
        monkeypatch.setenv("REFOLD_ADDRESS", served.address)
        monkeypatch.setenv("REFOLD_TOKEN", OWNER)
        return served

    return serving


def _as_new(service: FakeService) -> None:
    """The server holds on to the service and to its tokens, so these stay the same objects."""
    known, new = service.known, type(service)()
    known.clear()
    known.update(new.known)
    vars(service).update({**vars(new), "known": known})


@pytest.fixture
def served(serving: Callable[[type[FakeService]], Served]) -> Served:
    """A daemon whose jobs do what a test says."""
    from fake_service import FakeService

    return serving(FakeService)
