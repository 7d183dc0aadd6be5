"""A daemon that root has started for all users: each job has the uid of its user, and cannot reach what is others'."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cgroup_tests import require
from other_users import ANN, BEN, as_user, needs_root, public_folder, with_readable_interpreter
from real_daemon import kill_runs, wait_until
from shared_daemon import SharedDaemon
from terminal import Terminal

import refold
from refold.client import Client
from refold.engines.local.process import read_process
from refold.errors import BadInput, Conflict, Forbidden

pytestmark = needs_root

DAEMON = 60_010
CONFIG = "cluster: {slots: 4}\npolicy: fifo\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[SharedDaemon]:
    if not as_user(DAEMON, os.access, refold.__file__, os.R_OK):
        pytest.skip("needs a checkout that other users can read")
    with public_folder(DAEMON) as public:
        served = SharedDaemon(public, tmp_path, DAEMON, CONFIG)
        served.start()
        yield served
        served.kill(signal.SIGTERM)
        kill_runs(served.folder)


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def test_jobs_have_the_rights_of_their_users_and_no_others(daemon: SharedDaemon) -> None:
    assert "Jobs run as the users who submit them." in daemon.log()
    assert daemon.owner.info().role == "owner"

    # Identity.
    ids = daemon.run(
        ANN, 'id -u; id -g; umask; grep CapEff /proc/self/status; echo x > "$REFOLD_CHECKPOINT/x"; echo ok'
    )
    assert ids == [str(ANN), str(ANN), "0022", "CapEff:\t0000000000000000", "ok"]

    # A job with secrets of Ann runs while Ben looks around.
    victim = daemon.submit(ANN, "echo $$ secret; exec sleep 600")
    wait_until(lambda: "secret" in daemon.output(ANN, victim))
    pid = int(daemon.output(ANN, victim).split()[0])
    assert uid_of(pid) == ANN
    state = daemon.folder
    log = state / "logs" / victim / "run-1.0.log"
    others = {"another user's environment": f"cat /proc/{pid}/environ", "the helper": f"kill -0 {daemon.pids()[0]}"}
    assert daemon.intrude(BEN, victim, pid, others) == []
    assert daemon.run(ANN, f"cat {log} >/dev/null && kill -0 {pid} && echo own") == ["own"]
    assert as_user(ANN, log.read_text) == f"{pid} secret\n"

    # A job that replaces its log, and its other files, by links to the owner's token does not get it from the daemon.
    links = "for name in run-1.0.log run-1.0.log.1 run-1.0.progress run-1.end; do ln -sf {} $name; done; echo linked"
    job = daemon.submit(BEN, f"cd {state}/logs/$REFOLD_JOB && {links.format(state / 'client.json')}")
    wait_until(lambda: daemon.owner.job(job).state in ("finished", "failed"))
    assert (state / "logs" / job / "run-1.0.log").is_symlink()
    assert daemon.output(BEN, job) == ""

    # Root and system accounts run nothing.
    with pytest.raises(BadInput, match="user 'root' cannot run jobs here: jobs run as their users, but not as root"):
        daemon.owner.submit(name="a", command=["true"])

    # The whole tree of a run is killed, also what has left its session.
    escaped = daemon.submit(ANN, "setsid sh -c 'echo $$; exec sleep 600' & wait")
    wait_until(lambda: daemon.output(ANN, escaped).strip().isdecimal())
    process = int(daemon.output(ANN, escaped))
    as_user(ANN, lambda: Client(f"unix:{daemon.socket}").cancel(escaped))
    wait_until(lambda: daemon.owner.job(escaped).state == "cancelled")
    found = read_process(process)
    assert found is None or not found.alive


FORGE = """\
if [ "$REFOLD_RUN" = 2 ]; then exec sleep 600; fi
read -r stat </proc/{pid}/stat
read -r boot </proc/sys/kernel/random/boot_id
echo "$stat $boot" >{folder}/$REFOLD_JOB/run-2.0.claim
exit 1
"""


def test_a_job_that_claims_a_process_of_another_user_for_its_next_run_cannot_end_it(daemon: SharedDaemon) -> None:
    outsider = subprocess.Popen(["sleep", "600"], start_new_session=True, user=BEN)
    try:
        job = daemon.submit(ANN, FORGE.format(pid=outsider.pid, folder=daemon.folder / "logs"), retries=1)
        wait_until(lambda: daemon.owner.job(job).runs == 2)
        with suppress(Conflict):  # the second run has failed already
            as_user(ANN, lambda: Client(f"unix:{daemon.socket}").cancel(job))
        wait_until(lambda: daemon.owner.job(job).state in ("cancelled", "failed"))
        assert outsider.poll() is None
    finally:
        outsider.kill()
        outsider.wait()


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def test_a_shell_has_the_rights_of_its_user_whose_terminal_nobody_else_reaches(
    daemon: SharedDaemon, tmp_path: Path
) -> None:
    shell = [sys.executable, "-m", "refold", "shell", "--", "sh", "-i"]
    of_ann = ["setpriv", f"--reuid={ANN}", f"--regid={ANN}", "--clear-groups", *shell]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(refold.__file__).parent.parent),
        "REFOLD_ADDRESS": f"unix:{daemon.socket}",
        "HOME": "/",
        "PS1": "ready> ",
        "TERM": "xterm",
    }
    with Terminal(with_readable_interpreter(of_ann, tmp_path / "of-ann"), environment) as terminal:
        terminal.expect("ready> ")
        terminal.type("id -u; cat /proc/self/status | grep CapEff\n")
        terminal.expect(f"{ANN}\r\n")
        terminal.expect("CapEff:\t0000000000000000")
        (job,) = daemon.owner.queue()
        assert (job.user, job.name) == (str(ANN), "shell")
        listener = next(word for word in daemon.owner.job(job.id).command if word.endswith("/terminal"))
        with pytest.raises(PermissionError):
            as_user(BEN, connect, listener)
        for action in (lambda client: list(client.logs(job.id)), lambda client: client.cancel(job.id)):
            with pytest.raises(Forbidden):
                as_user(BEN, lambda action=action: action(Client(f"unix:{daemon.socket}")))
        terminal.type("exit 3\n")
        assert terminal.wait() == 3
    assert not Path(listener).exists()


def test_runs_continue_without_daemon_and_helper_and_are_adopted(daemon: SharedDaemon) -> None:
    job = daemon.submit(ANN, "echo started; while ! test -e $REFOLD_CHECKPOINT/go; do sleep 0.05; done; exit 3")
    wait_until(lambda: daemon.output(ANN, job) == "started\n")
    helper, served = daemon.pids()
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{served}").exists())  # the daemon ends with its helper
    daemon.kill()
    daemon.start()
    assert daemon.owner.job(job).state == "running"
    checkpoint = daemon.folder / "logs" / job / "checkpoint"
    as_user(ANN, (checkpoint / "go").touch)
    wait_until(lambda: daemon.owner.job(job).state == "failed")
    assert daemon.owner.job(job).exit_code == 3


@pytest.mark.cgroups
def test_jobs_of_users_are_limited_measured_and_killed_in_their_cgroups(daemon: SharedDaemon) -> None:
    require("all", "cpus", "memory")
    assert daemon.owner.nodes()[0].limits == "enforced"
    job = daemon.submit(ANN, "head -c 300000000 /dev/zero | tail", memory_gib=0.0625)
    wait_until(lambda: daemon.owner.job(job).state in ("finished", "failed"))
    status = daemon.owner.job(job)
    why = "out of memory: a process was killed at the limit of 64 MiB"
    assert (status.state, status.message, status.exit_code) == ("failed", why, 137)
    assert (status.peak_memory_mib or 0) > 32
    assert status.cpu_seconds is not None

    escaped = daemon.submit(
        ANN, "env -i setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait", grace=0
    )
    wait_until(lambda: daemon.output(ANN, escaped).strip().isdecimal())
    pid = int(daemon.output(ANN, escaped))
    as_user(ANN, lambda: Client(f"unix:{daemon.socket}").cancel(escaped))
    wait_until(lambda: daemon.owner.job(escaped).state == "cancelled")
    found = read_process(pid)
    assert found is None or not found.alive
