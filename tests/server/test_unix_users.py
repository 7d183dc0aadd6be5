"""Users of the machine at the Unix socket: who is allowed, in which role and tenant, and where the socket is."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
from pathlib import Path

import pytest

from refold.client.address import MACHINE_SOCKET
from refold.client.api.queries import Caller
from refold.errors import BadInput, Forbidden
from refold.server import listeners, unix_users
from refold.server.config.settings import Config, ServeConfig, UsersConfig
from refold.server.listeners import find_socket_path, unix_listener
from refold.server.unix_users import Account, UserDirectory, read_account

DAEMON, ANN, BEN, ROOT = 1000, 1001, 1002, 0
ACCOUNTS = {
    DAEMON: Account(DAEMON, "refold"),
    ANN: Account(ANN, "ann", ("lab", "vision")),
    BEN: Account(BEN, "ben", ("guests",)),
    ROOT: Account(ROOT, "root", ("root",)),
}


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The accounts above; the list has the uids that were looked up."""
    asked: list[int] = []

    def read(uid: int) -> Account:
        asked.append(uid)
        return ACCOUNTS[uid]

    monkeypatch.setattr(unix_users, "read_account", read)
    return asked


def callers(config: UsersConfig, *uids: int) -> list[Caller | str]:
    async def find() -> list[Caller | str]:
        directory = UserDirectory(config, DAEMON)
        found: list[Caller | str] = []
        for uid in uids:
            try:
                found.append(await directory.caller_of(uid))
            except Forbidden as error:
                found.append(str(error))
        return found

    return asyncio.run(find())


OWNERS: list[Caller | str] = [
    Caller("unix:refold", "owner", "default", "refold"),
    Caller("unix:root", "owner", "default", "root"),
]


def test_by_default_only_the_daemons_user_and_root_are_allowed(accounts: list[int]) -> None:
    assert callers(UsersConfig(), DAEMON, ROOT) == OWNERS
    assert callers(UsersConfig(), ANN) == [
        "user 'ann' may not use this daemon; its owner can add the user, or a group, to users.allow in refold.yaml"
    ]


@pytest.mark.parametrize("allow", [("ann",), ("@lab",), ("ben-2", "@vision")])
def test_users_are_allowed_by_name_or_group(allow: tuple[str, ...], accounts: list[int]) -> None:
    ann, ben = callers(UsersConfig(allow), ANN, BEN)
    assert ann == Caller("unix:ann", "member", "default", "ann", own_jobs_only=True)
    assert isinstance(ben, str)


def test_all_users_are_allowed_if_the_owner_says_so(accounts: list[int]) -> None:
    assert [caller.role for caller in callers(UsersConfig("all"), ANN, BEN) if isinstance(caller, Caller)] == [
        "member",
        "member",
    ]


def test_the_first_entry_that_matches_gives_the_tenant(accounts: list[int]) -> None:
    config = UsersConfig("all", {"@vision": "seeing", "ann": "other", "ben": "visitors", "refold": "staff"})
    tenants = [caller.tenant for caller in callers(config, ANN, BEN, DAEMON, ROOT) if isinstance(caller, Caller)]
    assert tenants == ["seeing", "visitors", "staff", "default"]


def test_the_account_database_is_asked_once_a_minute(accounts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    callers(UsersConfig("all"), ANN, ANN, BEN, ANN)
    assert accounts == [ANN, BEN]
    monkeypatch.setattr(unix_users, "CACHE_SECONDS", -1.0)
    callers(UsersConfig("all"), ANN, ANN)
    assert accounts == [ANN, BEN, ANN, ANN]


def test_a_member_of_the_machine_reads_only_its_own_jobs() -> None:
    ann = Caller("unix:ann", "member", "default", "ann", own_jobs_only=True)
    assert [ann.can_read("default", user) for user in ("ann", "ben", "")] == [True, False, False]
    assert not ann.can_read("vision", "ann")
    token = Caller("laptop", "member", "default", "ann")
    assert token.can_read("default", "ben")


def test_accounts_are_read_from_the_system() -> None:
    uid = os.geteuid()
    account = read_account(uid)
    assert account.name == pwd.getpwuid(uid).pw_name
    assert grp.getgrgid(pwd.getpwuid(uid).pw_gid).gr_name in account.groups
    assert read_account(4_000_000) == Account(4_000_000, "4000000")


# Where the socket is


@pytest.mark.parametrize(
    ("setting", "users", "environment", "uid", "path"),
    [
        ("auto", UsersConfig(), {}, 1000, "STATE/refold.sock"),
        ("auto", UsersConfig(), {"RUNTIME_DIRECTORY": "/run/other"}, 1000, "STATE/refold.sock"),
        ("auto", UsersConfig("all"), {}, 0, str(MACHINE_SOCKET)),
        ("auto", UsersConfig(("ann",)), {}, 1000, "/tmp/refold-1000/refold.sock"),
        ("auto", UsersConfig("all"), {"RUNTIME_DIRECTORY": "/run/other:/run/more"}, 0, "/run/other/refold.sock"),
        ("/srv/gpus.sock", UsersConfig("all"), {}, 0, "/srv/gpus.sock"),
        ("off", UsersConfig("all"), {}, 0, "None"),
    ],
)
def test_where_the_socket_is(
    setting: str,
    users: UsersConfig,
    environment: dict[str, str],
    uid: int,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    config = Config(serve=ServeConfig(socket=setting), users=users)
    assert str(find_socket_path(config, tmp_path)) == path.replace("STATE", str(tmp_path))


def test_the_socket_is_removed_at_the_end_and_one_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "refold.sock"  # longer than the kernel accepts
    with unix_listener(path, for_all=False) as listener:
        assert listener.family == socket.AF_UNIX
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        dead = path.with_name("dead.sock")
        path.rename(dead)
    dead.rename(path)
    with unix_listener(path, for_all=False):
        pass
    assert not path.exists()


def test_the_socket_of_another_daemon_and_other_files_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "refold.sock"
    with unix_listener(path, for_all=False) as first:
        first.listen()
        with pytest.raises(BadInput, match="another daemon listens on"), unix_listener(path, for_all=False):
            pass
        assert path.exists()
    path.write_text("a file")
    with pytest.raises(BadInput, match="there is another file"), unix_listener(path, for_all=False):
        pass
    assert path.read_text() == "a file"


@pytest.mark.parametrize(
    ("mode", "for_all", "problem"),
    [(0o777, False, "others cannot write"), (0o770, False, "others cannot write"), (0o700, True, "cannot be entered")],
)
def test_a_folder_that_others_can_write_or_cannot_enter_is_refused(
    mode: int, for_all: bool, problem: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(BadInput, match=problem), unix_listener(folder / "refold.sock", for_all):
        pass
    with pytest.raises(BadInput, match="No such file"), unix_listener(tmp_path / "a" / "b" / "c", for_all):
        pass


def test_the_folder_that_was_made_for_the_socket_is_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "refold" / "refold.sock"
    monkeypatch.setattr(listeners, "MACHINE_SOCKET", path)
    with unix_listener(path, for_all=True):
        pass
    assert not path.parent.exists()
    with unix_listener(path, for_all=True):
        (path.parent / "other").touch()
    assert [*path.parent.iterdir()] == [path.parent / "other"]
