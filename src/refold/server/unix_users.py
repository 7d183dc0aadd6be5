"""Users of this machine as callers of the API: who they are, whether they are allowed, and their tenant."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
from contextlib import suppress
from time import monotonic

import msgspec

from refold.client.api import UNIX_PREFIX, Caller
from refold.errors import Forbidden
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
    """Read an account from the account database."""
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
