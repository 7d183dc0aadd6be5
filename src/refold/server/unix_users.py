"""Users of this machine as callers of the API: who they are, whether they are allowed, and their tenant."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import msgspec

from refold.client.api import UNIX_PREFIX, Caller
from refold.errors import BadInput, Forbidden, RefoldError
from refold.server.config import UsersConfig

ROOT_UID = 0
CACHE_SECONDS = 60.0
"""How long the answer of the account database is used. It may be slow, such as a directory on the network."""

MAX_CACHED = 4096


class Account(msgspec.Struct, frozen=True):
    """A user of this machine with the names of its groups; the uid serves as the name of one without an account."""

    uid: int
    name: str
    groups: tuple[str, ...] = ()

    def is_in(self, entry: str) -> bool:
        """Whether an entry of the configuration means this user: a user name or, after '@', a group."""
        return entry[1:] in self.groups if entry.startswith("@") else entry == self.name


def read_account(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, str(uid))
    groups: list[str] = []
    for group in os.getgrouplist(entry.pw_name, entry.pw_gid):
        with suppress(KeyError):
            groups.append(grp.getgrgid(group).gr_name)
    return Account(uid, entry.pw_name, tuple(groups))


class UserDirectory:
    """Callers by uid. The daemon's user (`owner`) and root are owners; others are members, if they are allowed."""

    def __init__(self, config: UsersConfig, owner: int) -> None:
        self._config = config
        self._owners = (owner, ROOT_UID)
        self._known: dict[int, tuple[float, Account]] = {}

    async def caller_of(self, uid: int) -> Caller:
        """Return the caller with a uid, or raise `Forbidden`."""
        found = self._known.get(uid)
        if found is None or monotonic() - found[0] > CACHE_SECONDS:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            found = self._known[uid] = (monotonic(), await asyncio.to_thread(read_account, uid))
        return self._caller(found[1])

    def _caller(self, account: Account) -> Caller:
        entries = self._config.tenants.items()
        tenant = next((tenant for entry, tenant in entries if account.is_in(entry)), "default")
        if account.uid in self._owners:
            return Caller(UNIX_PREFIX + account.name, "owner", tenant, account.name)
        if self._config.allow != "all" and not any(map(account.is_in, self._config.allow)):
            raise Forbidden(
                f"user {account.name!r} may not use this daemon; its owner can add the user, or a group, to users.allow"
                " in refold.yaml"
            )
        return Caller(UNIX_PREFIX + account.name, "member", tenant, account.name, own_jobs_only=True)


# Unix accounts under which jobs run, if that is that of their submitter.

MIN_UID = 1000
"""The lowest uid under which jobs run: those below are of root and of system accounts."""

MAX_UID = 2**31 - 2


class JobAccount(msgspec.Struct, frozen=True):
    """A user with its groups and home folder."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def find_account(name: str) -> JobAccount:
    """Return an account by name. A number is a uid, which needs no entry in the account database."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() and len(name) < 11 else pwd.getpwnam(name)
    except (KeyError, ValueError):
        if not (name.isascii() and name.isdecimal() and 0 <= int(name) <= MAX_UID):
            raise BadInput(f"this machine has no account {name!r}") from None
        return JobAccount(name, int(name), int(name), (), "/", "/bin/sh")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return JobAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")


def is_job_uid(uid: int, daemon_uid: int) -> bool:
    """Whether jobs may run under a uid: not that of root, a system account or the daemon's user."""
    return uid >= MIN_UID and uid != daemon_uid


def find_job_account(name: str, daemon_uid: int) -> JobAccount:
    """Return the account under which the jobs of a user run; not root, a system account or the daemon's user."""
    account = find_account(name)
    if not is_job_uid(account.uid, daemon_uid):
        raise BadInput(
            f"user {name!r} cannot run jobs here: jobs run as their users, but not as root, a system account (uid below"
            f" {MIN_UID}) or the daemon's user"
        )
    return account


def user_check(is_enabled: bool) -> Callable[[str], str]:
    """Return a function that returns why a user cannot run jobs, or ''. `is_enabled`: jobs run as their users."""

    def problem(user: str) -> str:
        try:
            find_job_account(user, os.geteuid())
        except RefoldError as error:
            return str(error)
        return ""

    return problem if is_enabled else lambda _: ""
