"""Runs on this machine: the local back end of the daemon, and the rights with which it starts processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from refold.client import MACHINE_SOCKET
from refold.engines.local.accounts import find_account, find_job_account
from refold.engines.local.backend import LocalBackend
from refold.engines.local.cgroup_mounts import find_hierarchies
from refold.engines.local.cgroups import Cgroups, open_cgroups
from refold.engines.local.helper import start_daemon
from refold.engines.local.helper_processes import HelperProcesses
from refold.engines.local.process_host import OwnProcesses, ProcessHost
from refold.errors import BadInput, RefoldError
from refold.server import BackendOptions, JobLimits, find_socket_path, read_account
from refold.server.config import AUTO, OFF, Config
from refold.server.monitor import Layout
from refold.server.output import mark_prefix

LOGS_FOLDER = "logs"
PROTECTED_HARD_LINKS = Path("/proc/sys/fs/protected_hardlinks")
PRIVILEGED_STATE = Path("/var/lib/refold")
"""State folder of a daemon that root starts for all users."""

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY")
"""Variables of the daemon that runs of other users inherit, if they bring none of their own."""


def split_privileges(config: Config, folder: Path) -> ProcessHost:
    """If root starts the daemon for all users, continue as `serve.user` beside a helper; return what starts processes.

    Otherwise that is this process, as its own user.
    """
    if not config.serve.user:
        return OwnProcesses(find_cgroups(config, folder))
    if sys.platform != "linux" or os.geteuid() != 0:
        raise BadInput(
            "serve.user is set, so that jobs run as their users: that needs Linux, and root to start the daemon"
        )
    if not _are_hard_links_protected():
        raise BadInput(
            "users of this machine can make hard links to the daemon's files: run `sysctl fs.protected_hardlinks=1`"
        )
    daemon = find_account(config.serve.user)
    if daemon.uid == 0:
        raise BadInput("serve.user is root, expected an account for the daemon alone, such as refold")
    path = find_socket_path(config, folder)
    if path == MACHINE_SOCKET:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        os.chown(path.parent, daemon.uid, daemon.gid, follow_symlinks=False)
    cgroups = find_cgroups(config, folder)
    return HelperProcesses(start_daemon(daemon, folder, folder / LOGS_FOLDER, cgroups), cgroups)


def find_cgroups(config: Config, folder: Path) -> Cgroups | None:
    """Return the cgroups for runs; None if there are none, or they are not to be used."""
    if config.serve.cgroup == OFF:
        return None
    path = "" if config.serve.cgroup == AUTO else config.serve.cgroup
    return open_cgroups(mark_prefix(folder / LOGS_FOLDER), find_hierarchies(), path)


def describe_limits(limits: str, config: Config) -> str:
    """Say whether requests of CPUs and memory are enforced, and if not, how they can be."""
    if limits == "enforced":
        return "Jobs cannot use more CPUs and memory than they request (cgroups)."
    how = (
        "" if config.serve.cgroup == OFF else ": the daemon has no cgroup that it may divide (Delegate=yes in systemd)"
    )
    return f"CPUs and memory that jobs request are {limits}{how}."


def _are_hard_links_protected() -> bool:
    """Whether the kernel keeps a user from linking to others' files, such as the store, in the folder of a job."""
    try:
        return PROTECTED_HARD_LINKS.read_text().strip() != "0"
    except OSError:
        return False


def describe_user(config: Config) -> str:
    """Say as whom jobs run."""
    if config.serve.user:
        return "Jobs run as the users who submit them."
    return (
        f"All jobs run as {read_account(os.geteuid()).name}. To run them as their users, start the daemon as root and"
        " set serve.user in refold.yaml."
    )


def user_check(config: Config) -> Callable[[str], str]:
    """Return a function that says why a user cannot run jobs, or ''."""

    def problem(user: str) -> str:
        try:
            find_job_account(user, os.geteuid())
        except RefoldError as error:
            return str(error)
        return ""

    return problem if config.serve.user else lambda _: ""


def make_local_backend(
    options: BackendOptions, layout: Layout, limits: JobLimits, host: ProcessHost | None
) -> LocalBackend:
    """Return the back end of this machine."""
    as_users = isinstance(host, HelperProcesses)
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ} if as_users else None
    return LocalBackend(
        options.report,
        options.logs,
        options.grace,
        inherited,
        exported=options.exported,
        secrets=options.secrets,
        devices=layout.devices,
        device_memory_mib=layout.device_memory_mib,
        gpus=layout.devices is not None,
        private_folders=True,
        max_output_bytes=options.max_output_bytes,
        limits_of=limits.of_run,
        host=host,
    )
