"""Unix accounts under which jobs run, if that is that of their submitter."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable

import msgspec

from refold.errors import BadInput, RefoldError

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
