"""Runs on this machine: the local back end of the daemon, and the rights with which it starts processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from refold.client import MACHINE_SOCKET
from refold.core import PastJob
from refold.engines.local.backend import LocalBackend
from refold.engines.local.cgroup_mounts import find_hierarchies
from refold.engines.local.cgroups import Cgroups, open_cgroups
from refold.engines.local.helper import start_daemon
from refold.engines.local.helper_processes import HelperProcesses
from refold.engines.local.process_host import OwnProcesses, ProcessHost
from refold.engines.local.run_groups import describe_limits
from refold.errors import BadInput
from refold.model import Cluster, format_count
from refold.server import (
    Admission,
    BackendOptions,
    ClusterEngine,
    Daemon,
    EngineParts,
    Inbox,
    LiveState,
    MachineUse,
    ServeRequest,
    StatusOf,
    find_account,
    find_socket_path,
    on_termination,
    read_account,
    run_until_done,
)
from refold.server.config import AUTO, OFF, Config
from refold.server.monitor import Layout, Machine, build_layout, default_slots, open_machine
from refold.server.output import LOGS_FOLDER, mark_prefix

PROTECTED_HARD_LINKS = Path("/proc/sys/fs/protected_hardlinks")
PRIVILEGED_STATE = Path("/var/lib/refold")
"""State folder of a daemon that root starts for all users."""

INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY")
"""Variables of the daemon that runs of other users inherit, if they bring none of their own."""


class LocalEngine(ClusterEngine):
    """This machine. `host`: what starts processes."""

    def __init__(self, config: Config, layout: Layout, host: ProcessHost) -> None:
        self._config = config
        self._layout = layout
        self._host = host
        self._backend: LocalBackend | None = None
        self.limits_text = describe_limits(host.groups)

    @property
    def cluster(self) -> Cluster:
        return self._layout.cluster

    def rebuild(self) -> None:
        """Do nothing: GPUs of a machine do not change while the daemon runs."""

    def history(self) -> list[PastJob]:
        """Return nothing: no one else starts jobs here."""
        return []

    def notes(self) -> list[str]:
        """Return whether limits are enforced, and as whom jobs run."""
        return [_limits_note(self.limits_text, self._config), describe_user(self._config)]

    def make_backend(self, options: BackendOptions) -> LocalBackend:
        """Return the back end of this machine."""
        as_users = isinstance(self._host, HelperProcesses)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ} if as_users else None
        self._backend = LocalBackend(
            options.report,
            options.logs,
            options.grace,
            inherited,
            exported=options.exported,
            secrets=options.secrets,
            devices=self._layout.devices,
            device_memory_mib=self._layout.device_memory_mib,
            gpus=self._layout.devices is not None,
            private_folders=True,
            max_output_bytes=options.max_output_bytes,
            limits_of=options.limits_of,
            host=self._host,
        )
        return self._backend

    async def job_use(self) -> Mapping[str, MachineUse]:
        return {} if self._backend is None else await self._backend.use()

    def make_parts(
        self, state: LiveState, inbox: Inbox, admission: Admission, status_of: StatusOf, end: Callable[[], None]
    ) -> EngineParts:
        """Return no parts: the daemon itself watches the GPUs of this machine."""
        del state, inbox, admission, status_of, end
        return EngineParts((), ())


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
    socket_folder = MACHINE_SOCKET.parent if find_socket_path(config, folder) == MACHINE_SOCKET else None
    if socket_folder is not None:
        socket_folder.mkdir(mode=0o755, exist_ok=True)
        os.chown(socket_folder, daemon.uid, daemon.gid, follow_symlinks=False)
    cgroups = find_cgroups(config, folder)
    return HelperProcesses(start_daemon(daemon, folder, folder / LOGS_FOLDER, cgroups, socket_folder), cgroups)


def find_cgroups(config: Config, folder: Path) -> Cgroups | None:
    """Return the cgroups for runs; None if there are none, or they are not to be used."""
    if config.serve.cgroup == OFF:
        return None
    path = "" if config.serve.cgroup == AUTO else config.serve.cgroup
    return open_cgroups(mark_prefix(folder / LOGS_FOLDER), find_hierarchies(), path)


def _limits_note(limits: str, config: Config) -> str:
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


# Serve this machine: its GPUs, or CPU slots.


def serve_machine(request: ServeRequest) -> None:
    """Serve until a signal ends the daemon. Jobs continue."""
    host = split_privileges(request.config, request.folder.absolute())
    config, machine = _open_machine(request)
    layout = build_layout(machine, config)
    device = "slot" if layout.devices is None else layout.cluster.nodes[0].gpu_type
    request.say(f"{format_count(layout.cluster.gpus, device)}, policy {config.policy.name}")

    async def serve() -> None:
        engine = LocalEngine(config, layout, host)
        daemon = Daemon(config, request.folder, machine, layout, engine, new_token=request.new_token)
        on_termination(daemon.end)
        await daemon.serve(request.ready)

    run_until_done(serve())
    request.say("stopped; running jobs continue, and `refold serve` takes control of them again")


def _open_machine(request: ServeRequest) -> tuple[Config, Machine]:
    """Open the machine's GPUs; if it has none, CPU slots."""
    config = request.config
    machine = open_machine(config.cluster)
    if machine.gpus():
        return config, machine
    slots = default_slots()
    request.say(f"no GPUs found: scheduling {format_count(slots, 'CPU slot')} instead (change with --slots N)")
    config = replace(config, cluster=replace(config.cluster, slots=slots))
    return config, open_machine(config.cluster)
