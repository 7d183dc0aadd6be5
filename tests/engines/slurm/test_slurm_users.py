"""A daemon on a real Slurm that root has started for all users: each job of Slurm is of the user who submitted it."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from other_users import as_user, made_accounts, needs_root, public_folder
from real_daemon import wait_until
from shared_daemon import SharedDaemon
from slurm_backend import job_ids
from slurm_servers import SlurmServers, find_program

import refold
from refold.client import Client
from refold.errors import BadInput, Forbidden

pytestmark = needs_root

HELPERS = Path(__file__).parents[2] / "helpers"
CHECKPOINTING = """
cd "$REFOLD_CHECKPOINT"
echo "start $(id -u) $CUDA_VISIBLE_DEVICES" >>log
trap 'echo saved >>log; exit 0' TERM
while [ ! -e go ]; do sleep 0.05; done
cat log
"""


class Site(NamedTuple):
    """A cluster of two nodes with four GPUs each, a daemon for all users, and two of them."""

    slurm: SlurmServers
    daemon: SharedDaemon
    ann: int
    ben: int

    def users_in_slurm(self, job: str) -> list[str]:
        """Return the users of the jobs of Slurm that were submitted for a job."""
        return self.slurm.run("squeue", "--noheader", "--states=all", f"--name={job}", "--format=%U").split()

    def users_in_accounting(self, job: str) -> list[str]:
        """Return the users of its jobs in Slurm's accounting, which is told of them a little later."""
        words = ("--allusers", "--allocations", "--noheader", "--parsable2", f"--name={job}", "--format=User")
        return self.slurm.run("sacct", *words).split()


@pytest.fixture(scope="module")
def site(slurm_with_accounting: SlurmServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    slurm = slurm_with_accounting
    with public_folder() as public, made_accounts(public, "refold-d", "refold-ann", "refold-ben") as (uid, ann, ben):
        if not as_user(uid, os.access, refold.__file__, os.R_OK):
            pytest.skip("needs a checkout that other users can read")
        if not as_user(uid, os.access, find_program("sbatch"), os.X_OK):
            pytest.skip("needs a Slurm that other users can run; one that REFOLD_SLURM chooses is in the home of root")
        os.chown(public, uid, uid)
        options = ["--on", "slurm", "--policy", str(HELPERS / "shrinking_policy.py")]
        folder = tmp_path_factory.mktemp("daemon")
        daemon = SharedDaemon(public, folder, uid, options=options, variables=slurm.environment)
        try:
            daemon.start()
            yield Site(slurm, daemon, ann, ben)
        finally:
            daemon.kill(signal.SIGTERM)
            slurm.cancel_all()


def test_jobs_of_slurm_are_of_the_users_who_submitted_them_and_have_no_other_rights(site: Site) -> None:
    daemon, ann, ben = site.daemon, site.ann, site.ben
    assert "Jobs run as the users who submit them." in daemon.log()

    # Identity and environment, on one node and on two.
    account = pwd.getpwuid(ann)
    script = 'echo $(id -u) $(id -g) $HOME $USER $(umask); echo x >"$REFOLD_CHECKPOINT/x$REFOLD_INSTANCE"'
    assert daemon.run(ann, script, name="one", exported="") == [
        f"{ann} {account.pw_gid} {account.pw_dir} {account.pw_name} 0022"
    ]
    gang = daemon.submit(ben, "id -u", name="gang", instances=2, gpus=4)
    wait_until(lambda: daemon.owner.job(gang).state == "finished")
    assert [as_user(ben, log.read_text) for log in sorted((daemon.folder / "logs" / gang).glob("*.?.log"))] == [
        f"{ben}\n"
    ] * 2
    assert (site.users_in_slurm("one-1"), site.users_in_slurm(gang)) == ([str(ann)], [str(ben)])
    wait_until(lambda: site.users_in_accounting(gang) == [pwd.getpwuid(ben).pw_name])

    # A job with secrets of Ann runs while Ben looks around.
    victim = daemon.submit(ann, "echo $$ $MINE; exec sleep 600", name="victim", secrets={"MINE": "secret"})
    wait_until(lambda: "secret" in daemon.output(ann, victim))
    pid = int(daemon.output(ann, victim).split()[0])
    state = daemon.folder
    log = state / "logs" / victim / "run-1.0.log"
    (number,) = job_ids(site.slurm, victim)
    others = {"another user's script": f"cat {log.parent}/run-1.0.sh", "another user's job": f"scancel {number}"}
    assert daemon.intrude(ben, victim, pid, others) == []
    assert as_user(ann, log.read_text) == f"{pid} secret\n"

    # Cancelled by its user; not by another one.
    with pytest.raises(Forbidden, match="belongs to another user"):
        as_user(ben, lambda: Client(f"unix:{daemon.socket}").cancel(victim))
    as_user(ann, lambda: Client(f"unix:{daemon.socket}").cancel(victim))
    wait_until(lambda: daemon.owner.job(victim).state == "cancelled")
    assert job_ids(site.slurm, victim) == []

    # Root and system accounts run nothing.
    with pytest.raises(BadInput, match="user 'root' cannot run jobs here: jobs run as their users, but not as root"):
        daemon.owner.submit(name="a", command=["true"])


def test_a_job_of_slurm_with_a_false_comment_is_not_taken_for_a_run(site: Site) -> None:
    daemon, slurm = site.daemon, site.slurm
    job = daemon.submit(site.ann, 'while [ ! -e "$REFOLD_CHECKPOINT/go" ]; do sleep 0.05; done', name="job")
    wait_until(lambda: job_ids(slurm, job))
    comment = slurm.run("squeue", "--noheader", f"--name={job}", "--format=%k").strip()
    for name, text in {"false": comment, "stray": comment.replace(job, "unknown-1")}.items():
        words = [f"--job-name={name}", f"--comment={text}", "--output=/dev/null", "--wrap", "exec sleep 600"]
        as_user(site.ben, slurm.run, "sbatch", *words)
    wait_until(lambda: daemon.owner.job(job).state == "running")

    # The next daemon ends what seems to be a run of Ben's that it does not know, and leaves no traces in its state.
    daemon.kill(signal.SIGKILL)
    daemon.start()
    wait_until(lambda: job_ids(slurm, "stray") == [])
    assert not (daemon.folder / "logs" / "unknown-1").exists()
    assert daemon.owner.job(job).state == "running"
    as_user(site.ann, (daemon.folder / "logs" / job / "checkpoint" / "go").touch)
    wait_until(lambda: daemon.owner.job(job).state == "finished")
    assert site.users_in_slurm(job) == [str(site.ann)]


def test_a_job_is_reshaped_and_adopted_by_the_next_daemon_as_its_user(site: Site) -> None:
    daemon = site.daemon
    options = {"gpu_range": (1, 4), "reshapable": True, "preemptible": True}
    job = daemon.submit(site.ann, CHECKPOINTING, name="elastic", gpus=4, **options)
    checkpoint = daemon.folder / "logs" / job / "checkpoint"
    wait_until((checkpoint / "log").exists)
    daemon.run(site.ben, "id -u", name="wide", instances=2, gpus=3)
    wait_until(lambda: (checkpoint / "log").read_text().count("start") == 2)
    helper, served = daemon.pids()
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{served}").exists())  # the daemon ends with its helper
    daemon.kill()
    daemon.start()
    assert daemon.owner.job(job).state == "running"
    as_user(site.ann, (checkpoint / "go").touch)
    wait_until(lambda: daemon.owner.job(job).state == "finished")
    first, saved, second = daemon.output(site.ann, job).splitlines()
    assert (first.split()[1], saved, second.split()[1]) == (str(site.ann), "saved", str(site.ann))
    assert (first.count(","), second.count(",")) == (3, 0)
    assert site.users_in_slurm(job) == [str(site.ann)] * 2
