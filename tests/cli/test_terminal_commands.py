"""`refold attach`, `refold shell` and `refold logs` on a terminal, with a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_daemon import RealDaemon, live_processes, wait_until
from terminal import Terminal

from refold.client.client import Client

Open = Callable[..., Terminal]

SHELL = ("--", "sh", "-i")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path_factory.mktemp("terminal") / "state", slots=2) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log(), daemon.log()


@pytest.fixture
def client(daemon: RealDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client
        for job in list(client.queue()):
            client.cancel(job.id, now=True)
            client.wait(job.id, 30)
    wait_until(lambda: not live_processes(daemon.folder))


@pytest.fixture
def environment(daemon: RealDaemon) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return {**others, "REFOLD_HOME": str(daemon.folder), "PS1": "ready> ", "TERM": "xterm", "ENV": ""}


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_terminal(*words: str) -> Terminal:
        opened.append(Terminal([sys.executable, "-m", "refold", *words], environment))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        terminal.__exit__(None, None, None)


def submit(client: Client, script: str, gpus: int = 1) -> str:
    return client.submit(command=["sh", "-c", script], name="job", gpus=gpus).id


# attach


def test_attach_follows_a_job_to_its_end_and_exits_with_its_status(
    client: Client, open_terminal: Open, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    job = submit(client, f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; printf '\\033[2Jafter\\n'; exit 7")
    terminal = open_terminal("attach", job)
    terminal.expect("before")
    go.touch()
    assert terminal.wait() == 7
    assert terminal.output.replace("\x1b[0m", "").replace("\r\n", "\n") == (
        f"{job}: run 1 is running on localhost (slot 0)\nbefore\nafter\n{job}: failed: exit 7\n"
    )


def test_attach_shows_that_a_job_waits_and_starts(client: Client, open_terminal: Open) -> None:
    ahead = submit(client, "sleep 60", gpus=2)
    job = submit(client, "echo done")
    terminal = open_terminal("attach", job)
    terminal.expect(f"{job}: waiting (Resources: ")
    client.cancel(ahead, now=True)
    terminal.expect("done")
    terminal.expect(f"{job}: finished")
    assert terminal.wait() == 0


def test_interrupting_attach_leaves_the_job_running(client: Client, open_terminal: Open) -> None:
    job = submit(client, "echo working; sleep 60")
    terminal = open_terminal("attach", job)
    terminal.expect("working")
    terminal.type("\x03")
    terminal.expect(f"detached; {job} continues")
    assert terminal.wait() == 130
    assert client.job(job).state == "running"


def test_attaching_to_a_cancelled_job_exits_with_1(client: Client, open_terminal: Open) -> None:
    job = submit(client, "sleep 60", gpus=2)
    terminal = open_terminal("attach", job)
    terminal.expect("running on")
    client.cancel(job)
    terminal.expect(f"{job}: cancelled")
    assert terminal.wait() == 1


def test_attaching_to_an_ended_job_shows_its_output_and_how_it_ended(client: Client, open_terminal: Open) -> None:
    job = submit(client, "echo last words; exit 5")
    client.wait(job, 30)
    terminal = open_terminal("attach", job)
    terminal.expect("last words")
    terminal.expect(f"{job}: failed: exit 5")
    assert terminal.wait() == 5


def test_attach_to_an_unknown_job_is_an_error(client: Client, open_terminal: Open) -> None:
    terminal = open_terminal("attach", "no-such-job")
    assert terminal.wait() == 2
    assert "no-such-job" in terminal.output


# logs


def test_logs_on_a_terminal_keep_colours_only_unless_raw(client: Client, open_terminal: Open) -> None:
    job = submit(client, "printf '\\033[31mred\\033[0m \\033]0;title\\007\\033[2Jend\\n'")
    client.wait(job, 30)
    clean, raw = open_terminal("logs", job), open_terminal("logs", "--raw", job)
    assert (clean.wait(), raw.wait()) == (0, 0)
    assert clean.output.startswith("\x1b[31mred\x1b[0m end\r\n")
    assert raw.output == "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jend\r\n"


# shell


def running_shell(client: Client) -> str:
    wait_until(lambda: any(job.name == "shell" for job in client.queue()))
    return next(job.id for job in client.queue() if job.name == "shell")


def test_a_shell_is_a_job_with_gpus_a_terminal_and_an_exit_status(client: Client, open_terminal: Open) -> None:
    terminal = open_terminal("shell", "--gpus", "2", *SHELL)
    terminal.expect("ready> ")
    job = running_shell(client)
    assert [(gpus.node, gpus.gpus) for gpus in client.job(job).placement] == [("localhost", [0, 1])]
    terminal.type("echo $REFOLD_JOB slots $REFOLD_SLOTS; stty size; test -t 0 && echo a terminal\n")
    terminal.expect(f"\n{job} slots 0,1")
    terminal.expect("24 80")
    terminal.expect("a terminal")
    terminal.type("exit 3\n")
    assert terminal.wait() == 3
    assert (client.job(job).state, client.job(job).exit_code) == ("failed", 3)


def test_the_window_size_and_ctrl_c_reach_the_programs_in_the_shell(client: Client, open_terminal: Open) -> None:
    terminal = open_terminal("shell", *SHELL)
    terminal.expect("ready> ")
    terminal.resize(40, 132)
    terminal.type("sh -c 'echo start\"\"ed; exec sleep 60'\n")
    terminal.expect("started")  # not in the echo of what was typed
    terminal.type("\x03")
    terminal.expect("ready> ")
    terminal.type("stty size\n")
    terminal.expect("40 132")
    terminal.type("exit\n")
    terminal.wait()


def test_a_waiting_shell_is_cancelled_by_ctrl_c(client: Client, open_terminal: Open) -> None:
    submit(client, "sleep 60", gpus=2)
    terminal = open_terminal("shell")
    terminal.expect("is waiting (Resources")
    job = running_shell(client)
    terminal.type("\x03")
    assert terminal.wait() == 130
    assert client.wait(job, 30).state == "cancelled"
    assert client.job(job).runs == 0


@pytest.mark.parametrize("how", ["killed", "terminated", "window closed"])
def test_a_shell_whose_client_has_gone_ends(client: Client, open_terminal: Open, daemon: RealDaemon, how: str) -> None:
    terminal = open_terminal("shell", *SHELL)
    terminal.expect("ready> ")
    job = running_shell(client)
    terminal.type("(trap '' HUP TERM; sleep 60) & \n")
    terminal.expect("ready> ")
    if how == "window closed":
        terminal.close_window()
    else:
        terminal.signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
    assert client.wait(job, 30).state in ("failed", "cancelled")
    wait_until(lambda: not live_processes(daemon.folder))


def test_a_cancelled_shell_returns_the_terminal(client: Client, open_terminal: Open) -> None:
    terminal = open_terminal("shell", *SHELL)
    terminal.expect("ready> ")
    job = running_shell(client)
    client.cancel(job)
    terminal.expect(f"{job} cancelled")
    assert terminal.wait() == 1


def test_a_shell_that_is_drained_is_not_started_again(client: Client, open_terminal: Open) -> None:
    terminal = open_terminal("shell", *SHELL)
    terminal.expect("ready> ")
    job = running_shell(client)
    client.drain("localhost", move=True)
    try:
        terminal.expect(f"{job} was stopped by the scheduler")
        terminal.expect(f"{job} cancelled")
        assert terminal.wait() == 1
    finally:
        client.resume("localhost")
    assert client.job(job).state == "cancelled"


def test_a_shell_needs_a_terminal_and_a_fixed_number_of_gpus(
    client: Client, open_terminal: Open, environment: dict[str, str]
) -> None:
    piped = subprocess.run(
        [sys.executable, "-m", "refold", "shell"],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        input="",
    )
    assert (piped.returncode, piped.stderr) == (
        2,
        "error: refold shell needs a terminal; use `refold submit` in scripts\n",
    )
    terminal = open_terminal("shell", "--gpus", "1..2")
    assert terminal.wait() == 2
    assert "a shell cannot change its size" in terminal.output
    assert list(client.queue()) == []
