"""The privileged helper: what it does as root for an unprivileged daemon, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest
from other_users import ANN, BEN, as_user, needs_root, public_folder

from refold.engines.local import helper, helper_processes
from refold.engines.local.helper import Helper, drop_privileges, start_daemon
from refold.engines.local.helper_messages import Signal, StartShim, receive_reply, send
from refold.engines.local.helper_processes import HelperLost, HelperProcesses
from refold.engines.local.process import Process, wait_for_exit
from refold.engines.local.process_host import OutputCopy
from refold.errors import BadInput
from refold.server.unix_users import JobAccount, find_account, find_job_account

pytestmark = needs_root

DAEMON = JobAccount("60010", 60010, 60010, (), "/", "/bin/sh")
ENVIRONMENT = {"PATH": os.defpath}


class HelpedDaemon:
    """A helper in a thread, and what the daemon has of it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.connection, theirs = socket.socketpair()
        self.processes = HelperProcesses(self.connection)
        self._thread = threading.Thread(target=Helper(theirs, out, DAEMON).serve)
        self._thread.start()

    def run(self, user: str, *command: str, folder: Path | None = None) -> str:
        """Run a command and return its output."""
        log = (folder or self.out) / "log"
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            pid = self.processes.start(user, ["/bin/sh", "-c", 'exec "$@"', "-", *command], ENVIRONMENT, descriptor)
        finally:
            os.close(descriptor)
        with suppress(ChildProcessError):  # the helper has reaped it already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return log.read_text()

    def close(self) -> None:
        self.connection.close()
        self._thread.join()


@pytest.fixture
def helped() -> Iterator[HelpedDaemon]:
    with public_folder(DAEMON.uid) as folder:
        daemon = HelpedDaemon(folder)
        yield daemon
        daemon.close()


def test_a_process_has_the_ids_of_its_user_and_nothing_of_root(helped: HelpedDaemon) -> None:
    script = "id -u; id -g; id -G; umask; grep -h CapEff /proc/self/status; ls /proc/self/fd | wc -l; pwd; echo $HOME"
    lines = helped.run(str(ANN), "sh", "-c", script).splitlines()
    assert lines == [str(ANN), str(ANN), str(ANN), "0002", "CapEff:\t0000000000000000", "4", "/", "/"]


def test_the_command_of_a_job_has_the_usual_umask(helped: HelpedDaemon) -> None:
    assert helped.run(str(ANN), *helped.processes.command(["sh", "-c", "umask"])) == "0022\n"


@pytest.mark.parametrize("user", ["root", "0", "daemon", "999", "60010", "nobody-here", "-1", "4294967295", "²", ""])
def test_nothing_is_started_as_root_a_system_account_or_the_daemon(user: str, helped: HelpedDaemon) -> None:
    with pytest.raises(OSError, match=r"cannot run jobs here|no account"):
        helped.run(user, "id")


def test_only_shims_are_started_and_only_with_an_output(helped: HelpedDaemon) -> None:
    with Path(os.devnull).open() as file:
        for words, descriptors in ((["/usr/bin/id"], [file.fileno()]), ([], [file.fileno()]), (["/bin/sh"], [])):
            send(helped.connection, StartShim(str(ANN), words, {}), *descriptors)
            assert receive_reply(helped.connection).error == "expected one descriptor, and a shim"


def test_the_folder_of_a_job_is_for_its_user_and_the_daemon(helped: HelpedDaemon) -> None:
    helped.processes.prepare(str(ANN), helped.out, "train-1")
    helped.processes.prepare(str(ANN), helped.out, "train-1")
    folder = helped.out / "train-1"
    assert (folder.stat().st_mode & 0o7777, folder.stat().st_uid, folder.stat().st_gid) == (0o2770, ANN, DAEMON.gid)
    checkpoint = folder / "checkpoint"
    assert (checkpoint.stat().st_mode & 0o777, checkpoint.stat().st_uid) == (0o700, ANN)
    as_user(ANN, (checkpoint / "step-1").touch)
    as_user(DAEMON.uid, (folder / "run-1.start").touch)
    for action in (lambda: list(folder.iterdir()), (folder / "x").touch):
        with pytest.raises(PermissionError):
            as_user(BEN, action)
    with pytest.raises(PermissionError):
        as_user(DAEMON.uid, lambda: list(checkpoint.iterdir()))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/x", "../x"])
def test_folders_elsewhere_are_not_created(name: str, helped: HelpedDaemon) -> None:
    with pytest.raises(OSError, match="is not the name of a job's folder"):
        helped.processes.prepare(str(ANN), helped.out, name)


def test_a_folder_of_another_user_and_a_link_are_not_given_away(helped: HelpedDaemon, tmp_path: Path) -> None:
    helped.processes.prepare(str(ANN), helped.out, "train-1")
    with pytest.raises(OSError, match="the folder 'train-1' belongs to another user"):
        helped.processes.prepare(str(BEN), helped.out, "train-1")
    (helped.out / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        helped.processes.prepare(str(BEN), helped.out, "link")
    (helped.out / "of-root").mkdir()
    with pytest.raises(OSError, match="belongs to another user"):
        helped.processes.prepare(str(BEN), helped.out, "of-root")
    assert (tmp_path.stat().st_uid, (helped.out / "of-root").stat().st_uid) == (0, 0)


def test_a_link_that_a_job_has_put_in_place_of_its_checkpoint_folder_is_refused(
    helped: HelpedDaemon, tmp_path: Path
) -> None:
    helped.processes.prepare(str(ANN), helped.out, "train-1")
    checkpoint = helped.out / "train-1" / "checkpoint"
    as_user(ANN, checkpoint.rmdir)
    as_user(ANN, checkpoint.symlink_to, tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        helped.processes.prepare(str(ANN), helped.out, "train-1")
    assert tmp_path.stat().st_uid == 0


def test_a_command_is_looked_for_with_the_rights_of_the_user(helped: HelpedDaemon) -> None:
    with public_folder(ANN) as home:
        (home / "private").mkdir(mode=0o700)
        os.chown(home / "private", ANN, ANN)
        (home / "private" / "run.sh").write_text("#!/bin/sh\n")
        (home / "private" / "run.sh").chmod(0o755)

        def problem(user: int, *copies: Path) -> str:
            files = [OutputCopy("output", path) for path in copies]
            folder = home / "private"
            return asyncio.run(helped.processes.find_start_problem(str(user), "./run.sh", folder, ENVIRONMENT, files))

        assert problem(ANN) == ""
        assert problem(ANN, home / "missing" / "out.log").endswith("cannot be written: No such file or directory")
        assert "Permission denied" in problem(BEN) or "does not exist" in problem(BEN)


def test_a_check_that_its_user_stops_keeps_nobody_waiting_and_is_killed(
    helped: HelpedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(helper_processes, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(helper, "find_start_problem", stop_itself)

    async def check() -> tuple[str, set[str]]:
        checks = [
            asyncio.create_task(helped.processes.find_start_problem(str(ANN), "true", Path("/"), ENVIRONMENT, ()))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        meanwhile = await asyncio.to_thread(helped.run, str(BEN), "echo", "runs")
        return meanwhile, set(await asyncio.gather(*checks))

    problem = "cannot start 'true': whether user '60001' can was not answered within 0.1 s"
    assert asyncio.run(check()) == ("runs\n", {problem})
    while [one for one in helped.processes.list_processes() if one.uid == ANN and one.alive]:
        sleep(0.02)


def stop_itself(*_: object) -> str:
    os.kill(os.getpid(), signal.SIGSTOP)
    return ""


def test_a_start_that_its_user_stops_keeps_nobody_waiting(
    helped: HelpedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the change of its uid and the shell, the process can be stopped by its user."""
    monkeypatch.setattr(helper, "drop_privileges", drop_and_stop)
    log = os.open(helped.out / "stopped", os.O_WRONLY | os.O_CREAT, 0o600)
    pid = helped.processes.start(str(ANN), ["/bin/sh", "-c", "true"], ENVIRONMENT, log)
    os.close(log)
    assert helped.run(str(BEN), "echo", "runs") == "runs\n"
    while any(one.pid == pid and one.alive for one in helped.processes.list_processes()):
        helped.processes.signal(ANN, [pid], signal.SIGKILL)  # without effect before it belongs to the user
        sleep(0.02)


STOP_ALL = "while :; do kill -s STOP -- -1; done"
"""Stops all processes of its user, but itself."""


@pytest.mark.long
def test_starts_go_on_while_a_user_stops_all_of_its_processes(helped: HelpedDaemon) -> None:
    helped.connection.settimeout(120.0)
    log = os.open(helped.out / "stopped", os.O_WRONLY | os.O_CREAT, 0o600)
    attacker = subprocess.Popen(["/bin/sh", "-c", STOP_ALL], user=ANN)  # a second one would be stopped as it starts
    try:
        pids = [helped.processes.start(str(ANN), ["/bin/sh", "-c", "true"], ENVIRONMENT, log) for _ in range(200)]
    finally:
        os.close(log)
        attacker.kill()
        attacker.wait()
    helped.processes.signal(ANN, pids, signal.SIGKILL)
    assert helped.run(str(BEN), "echo", "runs") == "runs\n"


def drop_and_stop(account: JobAccount) -> None:
    drop_privileges(account)
    if account.uid == ANN:
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_command_that_the_kernel_would_not_take_is_refused(helped: HelpedDaemon) -> None:
    for words in (["x" * 2**17], ["x" * 1000] * 20_000):
        with pytest.raises(OSError, match="Argument list too long"):
            helped.run(str(ANN), *words)
    assert helped.run(str(ANN), "sh", "-c", "echo ${#1}", "-", "x" * (2**17 - 1)) == "131071\n"


def test_only_processes_of_the_jobs_user_are_signalled(helped: HelpedDaemon) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True, user=BEN) as of_ben:
        helped.processes.signal(ANN, [of_ben.pid], signal.SIGKILL)
        assert of_ben.poll() is None
        of_ben.kill()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as of_root:
        send(helped.connection, Signal(ANN, [of_root.pid, 0, 1, -1], signal.SIGKILL))
        assert receive_reply(helped.connection).error == ""
        assert of_root.poll() is None
        of_root.kill()
    with subprocess.Popen(["sleep", "600"], start_new_session=True, user=DAEMON.uid) as of_daemon:
        helped.processes.signal(ANN, [of_daemon.pid], signal.SIGKILL)
        assert of_daemon.poll() is None
        of_daemon.kill()
    with subprocess.Popen(["sleep", "600"], start_new_session=True, user=ANN) as of_ann:
        helped.processes.signal(ANN, [of_ann.pid], signal.SIGTERM)
        assert of_ann.wait() == -signal.SIGTERM
    for uid in (0, 999, DAEMON.uid):
        with pytest.raises(OSError, match="cannot run jobs here"):
            helped.processes.signal(uid, [os.getpgid(0)], signal.SIGTERM)


def test_processes_of_other_users_are_listed_with_their_marks(helped: HelpedDaemon) -> None:
    environment = {**ENVIRONMENT, "REFOLD_MARK": "abc-1"}
    with subprocess.Popen(["sleep", "600"], start_new_session=True, user=ANN, env=environment) as of_ann:
        found = {one.pid: one.mark for one in helped.processes.list_processes()}
        assert found[of_ann.pid] == "abc-1"
        of_ann.kill()


def test_a_helper_that_is_gone_is_an_error(helped: HelpedDaemon) -> None:
    helped.connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(HelperLost, match="helper has ended"):
        helped.processes.list_processes()


def test_a_message_that_is_none_ends_the_connection(helped: HelpedDaemon) -> None:
    helped.connection.sendall(b"\0\0\0\4junk")
    assert helped.connection.recv(1) == b""


def test_accounts_are_found_by_name_or_uid() -> None:
    assert (find_account("root").uid, find_account("0").name) == (0, "root")
    assert find_account("60001") == JobAccount("60001", 60001, 60001, (), "/", "/bin/sh")
    assert find_job_account("60001", DAEMON.uid).uid == 60001
    with pytest.raises(BadInput, match="user 'root' cannot run jobs here"):
        find_job_account("root", DAEMON.uid)
    with pytest.raises(BadInput, match="this machine has no account 'nobody-here'"):
        find_account("nobody-here")


def test_the_end_of_a_process_that_is_not_a_child_is_noticed() -> None:
    pid = int(subprocess.run(["sh", "-c", "sleep 0.01 & echo $!"], capture_output=True, check=True).stdout)
    assert asyncio.run(wait_for_exit(Process(pid))) is None


def test_the_helper_removes_the_folder_of_the_socket_when_the_daemon_has_ended(tmp_path: Path) -> None:
    folder, state = tmp_path / "run", tmp_path / "state"
    folder.mkdir()
    if (pid := os.fork()) == 0:
        start_daemon(DAEMON, state, state / "logs", socket_folder=folder)
        os._exit(7)  # the daemon, without a socket
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not folder.exists()
