"""As whom jobs of Slurm run, without Slurm: programs as users, and what is refused at start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from real_daemon import wait_until
from slurm_servers import is_running

from refold.engines.local import OwnProcesses
from refold.engines.slurm import SlurmEngine, job_owners
from refold.engines.slurm.job_owners import SubmitterOwners
from refold.engines.slurm.pool import PoolSettings
from refold.engines.slurm.programs import Programs, SlurmError
from refold.engines.slurm.requests import SlurmSettings
from refold.errors import BadInput


class AsNobodyElse(OwnProcesses):
    """Starts all processes as this user, and remembers which user was meant."""

    def __init__(self) -> None:
        super().__init__()
        self.users: list[str] = []

    def start(self, user: str, *arguments: object) -> int:
        self.users.append(user)
        return super().start(user, *arguments)  # type: ignore[arg-type]


def programs(folder: Path, **scripts: str) -> Programs:
    """Return programs that are these shell scripts."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return Programs({"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/home/daemon", "USER": "daemon"})


def test_a_program_runs_as_a_user_without_the_identity_of_the_daemon(tmp_path: Path) -> None:
    host = AsNobodyElse()
    owners = SubmitterOwners(programs(tmp_path, sbatch='echo "$1" [$HOME] [$USER]'), host)
    assert owners.run(1234, "sbatch", "a b") == "a b [] []\n"
    assert host.users == ["1234"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo sbatch: error: Invalid account >&2; exit 3", "sbatch: Invalid account"),
        ("exit 3", "sbatch: exit status 3"),
        ("kill -KILL $PPID", "sbatch: exit status 1"),
        ("exec nothing-of-this-name", "sbatch: .*not found"),
    ],
)
def test_a_program_that_fails_says_why(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(SlurmError, match=message):
        SubmitterOwners(programs(tmp_path, sbatch=script), AsNobodyElse()).run(1234, "sbatch")


def test_a_program_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_owners, "TIMEOUT_SECONDS", 0.2)
    owners = SubmitterOwners(programs(tmp_path, sbatch=f"echo $$ >{tmp_path}/pid; exec sleep 600"), AsNobodyElse())
    with pytest.raises(SlurmError, match="did not answer within") as error:
        owners.run(1234, "sbatch")
    assert error.value.is_transient
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize(
    ("private", "level", "is_refused"),
    [
        ("none", "None", False),
        ("accounts,usage", "None", False),
        ("jobs,usage", "Operator", False),
        ("accounts,jobs", "None", True),
        ("jobs", "", True),
    ],
)
def test_jobs_of_users_must_not_be_hidden_from_the_daemon(
    tmp_path: Path, private: str, level: str, is_refused: bool
) -> None:
    found = programs(tmp_path, scontrol=f"echo 'PrivateData             = {private}'", sacctmgr=f"echo '{level}'")
    owners = SubmitterOwners(found, AsNobodyElse())
    if not is_refused:
        owners.check()
        return
    with pytest.raises(BadInput, match=r"hides the jobs of users from .*adminlevel=Operator"):
        owners.check()


def test_root_and_the_daemons_user_have_no_jobs(tmp_path: Path) -> None:
    owners = SubmitterOwners(programs(tmp_path), AsNobodyElse())
    for user in ("root", str(os.geteuid())):
        with pytest.raises(BadInput, match="cannot run jobs here"):
            owners.uid_of(user)
    assert owners.uid_of("60001") == 60_001


def test_runs_in_a_pool_cannot_be_of_several_users(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not possible in a pool"):
        SlurmEngine(programs(tmp_path), "d", SlurmSettings(), pool=PoolSettings(1), host=AsNobodyElse())
