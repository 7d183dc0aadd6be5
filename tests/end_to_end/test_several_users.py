"""A daemon and several Unix users, each with its own uid: at the socket, without tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from other_users import ANN, BEN, as_user, needs_root, public_folder
from real_daemon import RealDaemon, wait_until

from refold.client import Client
from refold.errors import Forbidden, NoDaemon, RefoldError

pytestmark = needs_root


@pytest.fixture
def public() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def problem_of(address: str, action: Callable[[Client], object]) -> str:
    """Return the error of an action; '' if there is none."""
    try:
        with Client(address) as client:
            action(client)
    except RefoldError as error:
        return str(error)
    return ""


def test_the_owner_needs_no_token_and_others_are_refused_by_default(tmp_path: Path, public: Path) -> None:
    path = public / "refold.sock"
    with RealDaemon(tmp_path / "state", socket=str(path)) as daemon:
        with Client(f"unix:{path}") as client:
            info = client.info()
        assert (info.role, info.user, info.own_jobs_only) == ("owner", "root", False)
        with pytest.raises(NoDaemon, match="permission denied"):
            as_user(ANN, lambda: Client(f"unix:{path}").info())
        path.chmod(0o666)
        with pytest.raises(Forbidden, match=f"user '{ANN}' may not use this daemon"):
            as_user(ANN, lambda: Client(f"unix:{path}").info())
        assert daemon.client().info().user == "owner"


def test_members_see_and_change_only_their_own_jobs(tmp_path: Path, public: Path) -> None:
    path = public / "refold.sock"
    address = f"unix:{path}"
    with RealDaemon(tmp_path / "state", users="{allow: all}", socket=str(path)) as daemon:
        command = ["sh", "-c", "echo secret; exec sleep 600"]
        job = as_user(ANN, lambda: Client(address).submit(name="train", command=command, folder="/"))
        assert (job.user, job.tenant) == (str(ANN), "default")
        owner = daemon.client()
        wait_until(lambda: "".join(owner.logs(job.id)) == "secret\n")
        refusal = f"job 'train-1' belongs to another user; '{BEN}' may not {{}} it"
        actions: dict[str, Callable[[Client], object]] = {
            "read": lambda client: list(client.logs(job.id)),
            "change": lambda client: client.cancel(job.id),
        }
        for verb, action in actions.items():
            assert as_user(BEN, problem_of, address, action) == refusal.format(verb)
        seen = as_user(BEN, lambda: Client(address).job(job.id))
        assert (seen.state, seen.user) == ("running", "")
        assert "".join(as_user(ANN, lambda: list(Client(address).logs(job.id)))) == "secret\n"
        assert as_user(ANN, problem_of, address, lambda client: client.drain("localhost")) == (
            f"drain requires the role owner; user '{ANN}' has member"
        )
        assert as_user(ANN, problem_of, address, lambda client: client.cancel(job.id, now=True)) == ""


def test_a_member_cannot_enter_the_state_folder_or_read_the_owners_token(tmp_path: Path, public: Path) -> None:
    state = public / "state"
    with RealDaemon(state, users="{allow: all}", socket=str(public / "refold.sock")):
        for name in ("client.json", "refold.db", "logs", "lock"):
            with pytest.raises(PermissionError):
                as_user(ANN, os.stat, state / name)
