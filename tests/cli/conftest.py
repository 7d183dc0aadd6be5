"""Fixtures shared by the tests of commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from refold.cli import app as command_line, lazy_group

if TYPE_CHECKING:
    from fake_service import FakeServer, FakeService

OWN = '''
from refold.core import View
from refold.model import Job
from refold.placement import Placer
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
    """Six jobs for two nodes of four GPUs: two need a node or more, one is longer than all others."""
    rows = ["a,0,4,100,x", "b,0,8,50,x", "c,1,1,10,y", "d,2,1,10,y", "e,3,2,400,x", "f,4,1,5,y"]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,group", *rows, ""]))
    return path


@pytest.fixture
def own_policy(tmp_path: Path) -> Path:
    """A user's policy in a file."""
    path = tmp_path / "own" / "mine.py"
    path.parent.mkdir()
    path.write_text(OWN)
    return path


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run `refold WORDS` in this process and return the result."""
    return lambda *words: CliRunner().invoke(lazy_group.app, words)


@pytest.fixture
def stdout_of(invoke: Callable[..., Result]) -> Callable[..., str]:
    """Run a command that must succeed and return its stdout."""

    def stdout_of(*words: str) -> str:
        result = invoke(*words)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return stdout_of


@pytest.fixture
def json_of(stdout_of: Callable[..., str]) -> Callable[..., Any]:
    """Run a command with --json and return the decoded document."""
    return lambda *words: json.loads(stdout_of(*words, "--json"))


@pytest.fixture
def stderr_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail with exit status 2 and an empty stdout, and return its stderr."""

    def stderr_of(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["refold", *words])
        with pytest.raises(SystemExit) as exited:
            command_line.main()
        out, err = capsys.readouterr()
        assert (exited.value.code, out) == (2, ""), err
        return err

    return stderr_of


@pytest.fixture
def error_of(stderr_of: Callable[..., str]) -> Callable[..., str]:
    """Run a command that must fail with a one-line error message, and return the line."""

    def error_of(*words: str) -> str:
        err = stderr_of(*words)
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return error_of


@pytest.fixture
def completions_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], set[str]]:
    """Return what a shell would offer to complete the last word of a line, in an empty folder."""

    def completions_of(line: str) -> set[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["refold"])
        monkeypatch.setenv("_REFOLD_COMPLETE", "complete_bash")  # named after the program
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit) as exited:
            command_line.main()
        assert exited.value.code == 0
        return set(capsys.readouterr().out.split())

    return completions_of


@pytest.fixture
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon is configured, even if one runs on this machine."""
    for name in ("REFOLD_ADDRESS", "REFOLD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "nothing"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[type[FakeService]], FakeServer]]:
    """Return one server per class of service, shared by all tests: starting a server takes longer than a test."""
    from fake_service import serve

    running: dict[type[FakeService], FakeServer] = {}
    with ExitStack() as stack:

        def server_for(kind: type[FakeService]) -> FakeServer:
            if kind not in running:
                running[kind] = stack.enter_context(serve(kind()))
            return running[kind]

        yield server_for


@pytest.fixture
def start_server(
    no_daemon: None, servers: Callable[[type[FakeService]], FakeServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[FakeService]], FakeServer]:
    """Return a server with a fresh service of the given class, which commands access with the owner's token."""
    from fake_service import OWNER

    def start_server(kind: type[FakeService]) -> FakeServer:
        served = servers(kind)
        served.call(_reset, served.service)
        monkeypatch.setenv("REFOLD_ADDRESS", served.address)
        monkeypatch.setenv("REFOLD_TOKEN", OWNER)
        return served

    return start_server


def _reset(service: FakeService) -> None:
    """Reset a service in place: the server holds references to the service and to its tokens."""
    known, new = service.stored_tokens, type(service)()
    known.clear()
    known.update(new.stored_tokens)
    vars(service).update({**vars(new), "stored_tokens": known})


@pytest.fixture
def served(start_server: Callable[[type[FakeService]], FakeServer]) -> FakeServer:
    """A server whose jobs are controlled by the test."""
    from fake_service import FakeService

    return start_server(FakeService)
