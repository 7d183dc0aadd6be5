"""`refold serve`: start the scheduler daemon."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import PlacementName, Settings, parse_duration_option, with_option_groups
from refold.cli.views import plural, print_line, print_notes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from refold.engines.kubernetes import KubernetesEngine
    from refold.engines.local import ProcessHost
    from refold.server import ClusterEngine, Daemon, DaemonReady
    from refold.server.config import Config, SlurmConfig
    from refold.server.monitor import Machine

DEFAULT_CONFIG = Path("refold.yaml")

RAY_ADDRESS = "auto"
"""The Ray cluster to serve: that of the variable RAY_ADDRESS, or of this machine. None is started."""

END_SECONDS = 5.0
"""How long a daemon on a cluster may take to end in an orderly way."""


class EngineName(StrEnum):
    """What the daemon schedules."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    RAY = "ray"


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class PoolOptions:
    """Allocations of Slurm in which runs are started."""

    pool: Annotated[
        int | None,
        typer.Option("--pool", metavar="NODES", min=0, max=10_000, help="Hold nodes of Slurm and start runs inside."),
    ] = None
    pool_time: Annotated[
        str | None,
        typer.Option("--pool-time", metavar="TIME", help="Time limit of the pool's allocations (default: Slurm's)."),
    ] = None
    pool_job: Annotated[
        list[int] | None,
        typer.Option("--pool-job", metavar="ID", min=1, help="Start runs in this allocation of Slurm; repeatable."),
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether there are any."""
        return self != PoolOptions()

    def override(self, config: SlurmConfig) -> SlurmConfig:
        """Return the configuration with these options."""
        from msgspec.structs import replace

        nodes = config.pool if self.pool is None else self.pool
        time = config.pool_time if self.pool_time is None else parse_duration_option("--pool-time", self.pool_time)
        jobs = config.pool_jobs if self.pool_job is None else tuple(self.pool_job)
        return replace(config, pool=nodes, pool_time=time, pool_jobs=jobs)


@with_option_groups
def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Configuration file (default: refold.yaml, if it exists)."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", min=1, max=62, help="Schedule this number of CPU slots instead of GPUs."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="Scheduling policy, or a policy file (default: refold)."),
    ] = None,
    placement: PlacementName = None,
    settings: Settings = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 chooses a free one (default: 7170)."),
    ] = None,
    on: Annotated[
        EngineName,
        typer.Option("--on", metavar="ENGINE", help="What to schedule: local, kubernetes, slurm or ray."),
    ] = EngineName.LOCAL,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="How to reach the cluster (default: as kubectl)."),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait while another daemon schedules the Kubernetes cluster, then take over."),
    ] = False,
    pool: PoolOptions,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FOLDER", help="State folder (default: ~/.refold).")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Create a new owner token and revoke the old one.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", metavar="FORMAT", help="Format of the log: text or json.")
    ] = LogFormat.TEXT,
) -> None:
    """Start the scheduler daemon: detect the GPUs of this machine, or schedule CPU slots.

    Listens on the loopback interface only, unless --host is given. Ctrl-C stops the daemon; running jobs continue, and
    the next `refold serve` takes control of them again.

    Example: refold serve --slots 4
    """
    _take_memory_in_small_pages()
    import asyncio

    from msgspec.structs import replace

    from refold.client import state_folder
    from refold.engines.local import PRIVILEGED_STATE
    from refold.errors import BadInput, MissingExtra
    from refold.server import log_to_stderr

    try:
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("refold serve", "serve") from None
    log_to_stderr(as_json=log_format is LogFormat.JSON)
    configuration = _override(_read_config(config), slots, policy, settings, placement, host, port)
    configuration = replace(configuration, slurm=pool.override(configuration.slurm))
    folder = (state or (PRIVILEGED_STATE if configuration.serve.user else state_folder())).expanduser()
    if pool.are_given and on is not EngineName.SLURM:
        raise BadInput("--pool, --pool-time and --pool-job need --on slurm")
    if configuration.serve.user and (on not in (EngineName.LOCAL, EngineName.SLURM) or kubeconfig is not None):
        raise BadInput("serve.user, by which jobs run as their users, needs --on local or --on slurm")
    if on is EngineName.KUBERNETES or kubeconfig is not None:
        _fastest_loop(asyncio)(_serve_kubernetes(configuration, folder, kubeconfig, new_token, standby))
        return
    if on is EngineName.SLURM:
        processes = _split_without_cgroups(configuration, folder.absolute()) if configuration.serve.user else None
        _fastest_loop(asyncio)(_serve_slurm(configuration, folder, new_token, processes))
        return
    if on is EngineName.RAY:
        _serve_ray(asyncio, configuration, folder, new_token)
        return
    _serve_machine(asyncio, configuration, folder, new_token)


def _take_memory_in_small_pages() -> None:
    """Load NumPy without huge pages: of large tables with few used rows, each row would take 2 MB."""
    name = "NUMPY_MADVISE_HUGEPAGE"
    if name not in os.environ:
        os.environ[name] = "0"
        import numpy as _numpy  # noqa: F401  # it reads the variable, which jobs must not inherit

        del os.environ[name]


async def _serve_kubernetes(
    config: Config, folder: Path, kubeconfig: Path | None, new_token: bool, standby: bool
) -> None:
    """Serve a cluster, while no other daemon does."""
    import asyncio

    from refold.engines.kubernetes import KubernetesEngine, Leadership, OwnJobs, find_access, own_namespace
    from refold.server import TERMINATION_SIGNALS

    access = find_access(kubeconfig)
    ended = asyncio.Event()
    for number in TERMINATION_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    leadership = Leadership(access, own_namespace() or config.kubernetes.namespace, folder, ended)
    try:
        daemon_id = await leadership.acquire(standby, print_line)
        if not daemon_id:
            return
        own = OwnJobs(config.kubernetes.namespace, config.kubernetes.image, config.kubernetes.volume_claim)
        engine = KubernetesEngine(access, daemon_id, own, config.tenants, leadership.check)
        try:
            await _end_in_time(_connect_and_serve(config, folder, engine, access.address, new_token, ended), ended)
        finally:
            await engine.close()
    finally:
        await leadership.release()
    leadership.raise_if_lost()
    print_line("stopped; pods continue, and `refold serve --on kubernetes` takes control of them again")


def _split_without_cgroups(config: Config, folder: Path) -> ProcessHost:
    """Continue as `serve.user` beside a helper. Runs are not on this machine."""
    from msgspec.structs import replace

    from refold.engines.local import split_privileges

    return split_privileges(replace(config, serve=replace(config.serve, cgroup="off")), folder)


async def _serve_slurm(config: Config, folder: Path, new_token: bool, host: ProcessHost | None) -> None:
    """Serve a Slurm cluster: each run is a job of Slurm, or a step in the pool."""
    import asyncio

    from refold.engines.local import describe_user
    from refold.engines.slurm import DAEMON_KEY, PoolSettings, Programs, SlurmEngine, SlurmSettings
    from refold.server import TERMINATION_SIGNALS, load_daemon_id

    ended = asyncio.Event()
    for number in TERMINATION_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    given = config.slurm
    settings = SlurmSettings(given.partition, given.account, given.qos, given.options)
    daemon_id = await asyncio.to_thread(load_daemon_id, folder, DAEMON_KEY)
    pool = PoolSettings(given.pool, given.pool_time, given.pool_jobs)
    engine = SlurmEngine(Programs(), daemon_id, settings, config.tenants, pool, host)
    print_line(f"{await engine.connect()}. {describe_user(config)}")
    await _end_in_time(_serve_epochs(config, folder, engine, new_token, ended), ended)
    print_line("stopped; running jobs continue, and `refold serve --on slurm` takes control of them again")


def _serve_ray(asyncio: Any, config: Config, folder: Path, new_token: bool) -> None:
    """Serve a Ray cluster: each instance of a run is an actor."""
    from refold.engines.ray import DAEMON_KEY, RayConnection, RayEngine, connected, load_ray
    from refold.server import TERMINATION_SIGNALS, load_daemon_id

    ray = load_ray("refold serve --on ray")

    async def serve() -> None:
        ended = asyncio.Event()
        for number in TERMINATION_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        daemon_id = await asyncio.to_thread(load_daemon_id, folder, DAEMON_KEY)
        engine = RayEngine(RayConnection(ray), daemon_id, config.tenants)
        print_line(await engine.connect())
        await _end_in_time(_serve_epochs(config, folder, engine, new_token, ended), ended)

    with connected(ray, RAY_ADDRESS):
        asyncio.run(serve())
    print_line("stopped; running jobs continue, and `refold serve --on ray` takes control of them again")


async def _end_in_time(work: Coroutine[Any, Any, None], ended: asyncio.Event) -> None:
    """Run work that ends soon after `ended` is set; if it does not, as while the API server is gone, cancel it."""
    import asyncio

    task, ending = asyncio.create_task(work), asyncio.create_task(ended.wait())
    await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    await asyncio.wait({task}, timeout=END_SECONDS)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _connect_and_serve(
    config: Config, folder: Path, engine: KubernetesEngine, address: str, new_token: bool, ended: asyncio.Event
) -> None:
    version = await engine.connect()
    print_line(f"Kubernetes {version} at {address}")
    await _serve_epochs(config, folder, engine, new_token, ended)


async def _serve_epochs(
    config: Config, folder: Path, engine: ClusterEngine, new_token: bool, ended: asyncio.Event
) -> None:
    """Serve a cluster; when its nodes have changed, continue with the new ones, at the same address."""
    import asyncio
    from urllib.parse import urlsplit

    from msgspec.structs import replace

    from refold.server import Daemon
    from refold.server.monitor import Layout, SlotsMachine, with_power

    port = config.serve.port

    def show(ready: DaemonReady) -> None:
        nonlocal port
        port = urlsplit(ready.address).port or port
        _print_ready(ready, folder)

    while not ended.is_set():
        cluster = with_power(engine.cluster, config.power, config.policy)
        size = f"{plural(len(cluster.nodes), 'node')}, {plural(cluster.gpus, 'GPU')}"
        print_line(f"{size}, policy {config.policy.name}")
        current = replace(config, serve=replace(config.serve, port=port))
        daemon = Daemon(current, folder, SlotsMachine(0), Layout(cluster, ()), engine, new_token=new_token)
        ending = asyncio.create_task(_end_with(daemon, ended))
        await daemon.serve(show)
        ending.cancel()
        new_token = False
        engine.rebuild()


async def _end_with(daemon: Daemon, ended: asyncio.Event) -> None:
    await ended.wait()
    daemon.end()


def _serve_machine(asyncio: Any, config: Config, folder: Path, new_token: bool) -> None:
    from refold.engines.local import LocalEngine, split_privileges
    from refold.server import TERMINATION_SIGNALS, Daemon
    from refold.server.monitor import build_layout

    host = split_privileges(config, folder.absolute())
    config, machine = _open_machine(config)
    layout = build_layout(machine, config)
    device = "slot" if layout.devices is None else layout.cluster.nodes[0].gpu_type
    print_line(f"{plural(layout.cluster.gpus, device)}, policy {config.policy.name}")

    async def serve() -> None:
        daemon = Daemon(config, folder, machine, layout, LocalEngine(config, layout, host), new_token=new_token)
        for number in TERMINATION_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, daemon.end)
        await daemon.serve(lambda ready: _print_ready(ready, folder))

    _fastest_loop(asyncio)(serve())
    print_line("stopped; running jobs continue, and `refold serve` takes control of them again")


def _fastest_loop(asyncio: Any) -> Any:
    """Return the run function of uvloop if installed: it handles about twice as many requests as asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _read_config(path: Path | None) -> Config:
    from refold.server.config import Config, read_config

    if path is None and not DEFAULT_CONFIG.exists():
        return Config()
    return read_config(path or DEFAULT_CONFIG)


def _override(
    config: Config,
    slots: int | None,
    policy: str | None,
    settings: list[str] | None,
    placement: str | None,
    host: str | None,
    port: int | None,
) -> Config:
    """Override the configuration with the options."""
    from msgspec.structs import replace

    from refold.cli import parse_settings
    from refold.cli.inputs import parse_policy
    from refold.server.config import PolicyConfig

    cluster, listen, policy_config = config.cluster, config.serve, config.policy
    if slots is not None:
        cluster = replace(cluster, slots=slots, nodes={}, gpus="auto")
    given = parse_settings(settings, placement)
    if policy is not None or given:
        configured = policy_config.settings if policy in (None, policy_config.name) else {}
        selected = parse_policy(policy or policy_config.name, {**configured, **given})
        policy_config = PolicyConfig(selected.policy, dict(selected.settings))
    listen = replace(listen, **{key: value for key, value in (("host", host), ("port", port)) if value is not None})
    return replace(config, cluster=cluster, policy=policy_config, serve=listen)


def _open_machine(config: Config) -> tuple[Config, Machine]:
    """Open the machine's GPUs; if it has none, CPU slots."""
    from msgspec.structs import replace

    from refold.server.monitor import default_slots, open_machine

    machine = open_machine(config.cluster)
    if machine.gpus():
        return config, machine
    slots = default_slots()
    print_line(f"no GPUs found: scheduling {plural(slots, 'CPU slot')} instead (change with --slots N)")
    config = replace(config, cluster=replace(config.cluster, slots=slots))
    return config, open_machine(config.cluster)


def _print_ready(ready: DaemonReady, folder: Path) -> None:
    import shlex

    from refold.client import read_address, state_folder

    print_notes(ready.notes)
    print_line(f"serving on {ready.address}   (API: {ready.address}/docs)")
    if ready.socket is not None and ready.socket.parent != folder.absolute():
        print_line(f"other users: export REFOLD_ADDRESS=unix:{shlex.quote(str(ready.socket))}")
    stored = read_address(folder)
    if ready.token:
        print_line(f"owner token: {ready.token}")
    elif stored is None or not stored.token:
        print_line("the owner token is not stored here: create a new one with `refold serve --new-token`")
    print_line(f"state: {folder}   {ready.running:,} running, {ready.waiting:,} waiting")
    print_line()
    print_line("next, in another terminal:")
    if folder.absolute() != state_folder().absolute():
        print_line(f"  export REFOLD_HOME={shlex.quote(str(folder.absolute()))}")
    print_line("  refold submit -- python -c 'print(\"hello\")'")
    print_line("  refold queue --watch")
    print_line("  refold top")
    print_line("  refold open")
