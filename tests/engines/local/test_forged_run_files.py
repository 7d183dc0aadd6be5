"""Files that a user writes into the folder of a job, where the daemon finds its runs again: they harm no one else."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from other_users import ANN, BEN, as_user, needs_root, public_folder

from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.engines.local import shim
from refold.engines.local.backend import LocalBackend
from refold.engines.local.helper import Helper
from refold.engines.local.helper_processes import HelperProcesses
from refold.engines.local.process import ProcessInfo, boot_id
from refold.engines.local.process_host import OutputCopy
from refold.engines.local.process_tree import ProcessScanner, find_strays
from refold.model import Allocation, Job, Share
from refold.server.output import RunEnd, RunFiles, StartRecord
from refold.server.output.log_files import rotate_log
from refold.server.unix_users import JobAccount

DAEMON = JobAccount("60010", 60010, 60010, (), "/", "/bin/sh")
ENVIRONMENT = {"PATH": os.defpath}
UNREAL_MARK = StartRecord("", 0)
"""The mark of all processes that carry none."""


class HelpedDaemon:
    """A daemon with a helper in a process of its own. `out`: the folder of the jobs' folders."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._connection, theirs = socket.socketpair()
        self._helper = os.fork()
        if self._helper == 0:
            try:
                self._connection.close()
                Helper(theirs, out, DAEMON).serve()
            finally:
                os._exit(0)
        theirs.close()
        self._processes = HelperProcesses(self._connection)
        self._processes.prepare(str(ANN), out, "job")

    def forge(self, name: str, content: str) -> None:
        """Let Ann write a file in the folder of her job."""
        as_user(ANN, (self.out / "job" / name).write_text, content)

    def run(self, until: type[RunStarted | RunFailed]) -> list[RunEnd]:
        """Start a run of Ann's job, or adopt it; stop it after such a report. Return how it has ended."""
        return asyncio.run(self._run(until))

    async def _run(self, until: type[RunStarted | RunFailed]) -> list[RunEnd]:
        reports: list[Any] = []
        backend = LocalBackend(reports.append, self.out, 0.1, ENVIRONMENT, private_folders=True, host=self._processes)
        job = Job("job", command=("sleep", "1000"), user=str(ANN))
        await backend.carry_out([StartRun("job", 1, Allocation((Share(0, (0,)),)))], {"job": job})
        async with asyncio.timeout(30):
            while not any(isinstance(report, until) for report in reports):
                await asyncio.sleep(0.01)
            await backend.close()
        return [report for report in reports if isinstance(report, RunEnd)]

    def close(self) -> None:
        self._connection.close()
        os.waitpid(self._helper, 0)


@pytest.fixture
def helped() -> Iterator[HelpedDaemon]:
    with public_folder(DAEMON.uid) as folder:
        daemon = HelpedDaemon(folder)
        yield daemon
        daemon.close()


@pytest.fixture
def outsiders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of Ben and Ann that no daemon has started."""
    processes = [
        subprocess.Popen(["sleep", "600"], start_new_session=True, user=uid, env=ENVIRONMENT) for uid in (BEN, ANN)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def are_alive(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    return all(process.poll() is None for process in processes)


@needs_root
def test_a_claim_that_names_a_process_of_another_user_has_no_effect(
    helped: HelpedDaemon, outsiders: list[subprocess.Popen[bytes]]
) -> None:
    helped.forge("run-1.0.claim", f"{Path(f'/proc/{outsiders[0].pid}/stat').read_text().strip()} {boot_id()}\n")
    ends = helped.run(until=RunFailed)
    claim = str(helped.out / "job" / "run-1.0.claim")
    assert are_alive(outsiders)
    assert ends == [RunFailed("job", 1, f"the claim file {claim!r} names a process that is not of this run")]


@needs_root
def test_a_start_record_that_a_user_has_written_is_not_that_of_the_run(
    helped: HelpedDaemon, outsiders: list[subprocess.Popen[bytes]]
) -> None:
    helped.forge("run-1.start", msgspec.json.encode(UNREAL_MARK).decode())
    ends = helped.run(until=RunStarted)
    assert are_alive(outsiders)
    assert ends == [RunStopped("job", 1)]


@needs_root
def test_records_of_the_daemon_that_a_user_has_written_are_not_read(helped: HelpedDaemon) -> None:
    helped.forge("run-1.start", msgspec.json.encode(UNREAL_MARK).decode())
    helped.forge("run-1.end", msgspec.json.encode(RunFinished("job", 1)).decode())
    files = RunFiles(helped.out, "job", 1)
    assert (files.read_start(), files.read_end()) == (None, None)


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_output_that_a_user_has_renamed_is_not_a_record(helped: HelpedDaemon, mode: int) -> None:
    """Logs, and what is copied of them, are files of the daemon with content of the job."""
    files = RunFiles(helped.out, "job", 1)
    records = {"run-1.start": UNREAL_MARK, "run-1.end": RunFinished("job", 1)}
    for name, record in records.items():
        log = files.log(0)
        log.write_bytes(msgspec.json.encode(record))
        os.chown(log, DAEMON.uid, DAEMON.gid)
        log.chmod(mode)
        as_user(ANN, log.rename, helped.out / "job" / name)
    assert as_user(DAEMON.uid, lambda: (files.read_start(), files.read_end())) == (None, None)


@needs_root
def test_a_user_can_neither_read_nor_replace_records_of_the_daemon(helped: HelpedDaemon) -> None:
    files = RunFiles(helped.out, "job", 1)
    as_user(DAEMON.uid, files.record_start, StartRecord("mark", 0))
    as_user(DAEMON.uid, files.record_end, RunStopped("job", 1))
    (helped.out / "job" / "forged").touch()
    for name in ("run-1.start", "run-1.end"):
        for act in (
            (files.records / name).read_bytes,
            (files.records / name).unlink,
            partial((helped.out / "job" / "forged").rename, files.records / name),
        ):
            with pytest.raises(PermissionError):
                as_user(ANN, act)
    assert (files.read_start(), files.read_end()) == (StartRecord("mark", 0), RunStopped("job", 1))


@pytest.mark.parametrize("swap", ["a link", "a file"])
def test_what_a_job_puts_in_place_of_a_new_pipe_is_not_opened_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    secret = tmp_path / "client.json"
    secret.touch(0o600)
    make = os.mkfifo

    def make_and_swap(path: Path, mode: int) -> None:
        make(path, mode)
        path.unlink()
        path.symlink_to(secret) if swap == "a link" else path.hardlink_to(secret)

    monkeypatch.setattr(os, "mkfifo", make_and_swap)
    files = RunFiles(tmp_path, "job", 1)
    files.folder.mkdir()
    with pytest.raises(OSError, match=r"Too many levels|not a pipe of this user"):
        shim.shim_command(files, 0, tmp_path, ["true"], [OutputCopy("output", tmp_path / "copy"), OutputCopy("error")])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_log_that_a_job_has_replaced_by_a_program_gives_its_rights_to_no_file_of_the_daemon(tmp_path: Path) -> None:
    log = tmp_path / "run-1.0.log"
    log.write_bytes(b"#" * 100)
    log.chmod(0o6755)
    rotate_log(log, 50)
    assert stat.S_IMODE(log.with_name("run-1.0.log.1").stat().st_mode) == 0o644


def test_strays_are_signalled_as_their_users_and_those_of_the_system_not_at_all() -> None:
    processes = [
        ProcessInfo(pid, pid, pid, 1, True, "here-1", uid) for pid, uid in ((11, ANN), (12, BEN), (13, 0), (14, 999))
    ]
    strays = find_strays(processes, "here-", set(), ProcessScanner())
    assert [tree.groups_among(processes) for tree in strays] == [{11}, {12}]
