"""`refold serve`: start the daemon; `refold init`: write its configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import PlacementName, Settings, argument, option, parse_duration_option, switch, with_option_groups
from refold.cli.views import print_line, print_notes
from refold.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from refold.server import DaemonReady, ServeRequest
    from refold.server.config import Config, SlurmConfig


DEFAULT_CONFIG = Path("refold.yaml")
ANSWER = """\
# Written by `refold serve` at its first start; `refold init --force` writes a file with all settings.
preemption: {preemption}
"""


class EngineName(StrEnum):
    """What the daemon schedules."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    RAY = "ray"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class PoolOptions:
    """Allocations of Slurm in which runs are started."""

    pool: Annotated[int | None, option("NODES", "Hold nodes of Slurm and start runs inside.", min=0, max=10_000)] = None
    pool_time: Annotated[str | None, option("TIME", "Time limit of the pool's allocations (default: Slurm's).")] = None
    pool_job: Annotated[
        list[int] | None, option("ID", "Start runs in this allocation of Slurm; repeatable.", min=1)
    ] = None

    @property
    def are_given(self) -> bool:
        return self != PoolOptions()

    def override(self, config: SlurmConfig) -> SlurmConfig:
        """Return the configuration with these options."""
        from msgspec.structs import replace

        nodes = config.pool if self.pool is None else self.pool
        time = config.pool_time if self.pool_time is None else parse_duration_option("--pool-time", self.pool_time)
        jobs = config.pool_jobs if self.pool_job is None else tuple(self.pool_job)
        return replace(config, pool=nodes, pool_time=time, pool_jobs=jobs)


@dataclass(frozen=True)
class EngineOptions:
    """What the daemon schedules, and how it is reached."""

    on: Annotated[EngineName, option("ENGINE", "What to schedule: local, kubernetes, slurm or ray.")] = EngineName.LOCAL
    kubeconfig: Annotated[Path | None, option("FILE", "How to reach the cluster (default: as kubectl).")] = None
    standby: Annotated[
        bool, switch("--standby", "Wait while another daemon schedules the Kubernetes cluster, then take over.")
    ] = False

    @property
    def name(self) -> EngineName:
        """The engine; --kubeconfig implies Kubernetes."""
        return self.on if self.kubeconfig is None else EngineName.KUBERNETES

    def check(self, config: Config, pool: PoolOptions) -> None:
        if pool.are_given and self.name is not EngineName.SLURM:
            raise BadInput("--pool, --pool-time and --pool-job need --on slurm")
        if config.serve.user and self.name not in (EngineName.LOCAL, EngineName.SLURM):
            raise BadInput("serve.user, by which jobs run as their users, needs --on local or --on slurm")

    def serve(self, request: ServeRequest) -> None:
        """Serve until a signal ends the daemon."""
        if self.name is EngineName.KUBERNETES:
            from refold.engines.kubernetes import serve_kubernetes

            serve_kubernetes(request, self.kubeconfig, self.standby)
        elif self.name is EngineName.SLURM:
            from refold.engines.slurm import serve_slurm

            serve_slurm(request)
        elif self.name is EngineName.RAY:
            from refold.engines.ray import serve_ray

            serve_ray(request)
        else:
            from refold.engines.local import serve_machine

            serve_machine(request)


@with_option_groups
def serve(
    *,
    config: Annotated[Path | None, option("FILE", "Configuration file (default: refold.yaml, if it exists).")] = None,
    slots: Annotated[
        int | None, option("N", "Schedule this number of CPU slots instead of GPUs.", min=1, max=62)
    ] = None,
    policy: Annotated[str | None, option("POLICY", "Scheduling policy, or a policy file (default: refold).")] = None,
    placement: PlacementName = None,
    settings: Settings = None,
    host: Annotated[str | None, option("ADDRESS", "Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, option("N", "Port; 0 chooses a free one (default: 7170).", min=0, max=65535)] = None,
    engine: EngineOptions,
    pool: PoolOptions,
    state: Annotated[Path | None, option("FOLDER", "State folder (default: ~/.refold).")] = None,
    new_token: Annotated[bool, switch("--new-token", "Create a new owner token and revoke the old one.")] = False,
    log_format: Annotated[LogFormat, option("FORMAT", "Format of the log: text or json.")] = LogFormat.TEXT,
) -> None:
    """Start the scheduler daemon: detect the GPUs of this machine, or schedule CPU slots.

    Listens on the loopback interface only, unless --host is given. Ctrl-C stops the daemon; running jobs continue, and
    the next `refold serve` takes control of them again.

    Example: refold serve --slots 4
    """
    _take_memory_in_small_pages()
    from msgspec.structs import replace

    from refold.client import state_folder
    from refold.engines.local import PRIVILEGED_STATE
    from refold.server import ServeRequest, log_to_stderr

    try:
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("refold serve", "serve") from None
    log_to_stderr(as_json=log_format is LogFormat.JSON)
    configuration = _override(_read_config(config), slots, policy, settings, placement, host, port)
    configuration = replace(configuration, slurm=pool.override(configuration.slurm))
    folder = (state or (PRIVILEGED_STATE if configuration.serve.user else state_folder())).expanduser()
    engine.check(configuration, pool)
    if config is None and not DEFAULT_CONFIG.exists() and not folder.exists():
        configuration = _choose_preemption(configuration)
    engine.serve(ServeRequest(configuration, folder, new_token, print_line, lambda ready: _print_ready(ready, folder)))


def _take_memory_in_small_pages() -> None:
    """Load NumPy without huge pages: of large tables with few used rows, each row would take 2 MB."""
    name = "NUMPY_MADVISE_HUGEPAGE"
    if name not in os.environ:
        os.environ[name] = "0"
        import numpy as _numpy  # noqa: F401  # it reads the variable, which jobs must not inherit

        del os.environ[name]


def _read_config(path: Path | None) -> Config:
    from refold.server.config import Config, read_config

    if path is None and not DEFAULT_CONFIG.exists():
        return Config()
    return read_config(path or DEFAULT_CONFIG)


def _choose_preemption(config: Config) -> Config:
    """Ask, at the first start, which jobs may be preempted; write the answer to `refold.yaml`."""
    from msgspec.structs import replace

    from refold.cli import choose_preemption
    from refold.model import PreemptionRules

    chosen = choose_preemption()
    if chosen is None:
        return config
    try:
        DEFAULT_CONFIG.write_text(ANSWER.format(preemption=chosen), encoding="utf-8")
        print_line(f"wrote {DEFAULT_CONFIG.absolute()}; start the daemon in this folder, or with --config")
    except OSError as error:
        print_notes([f"{DEFAULT_CONFIG} cannot be written ({error.strerror}): the answer holds until the daemon ends"])
    return replace(config, preemption=PreemptionRules(chosen))


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


def _activation() -> str | None:
    """Return the command after which another terminal finds `refold`, if it is only in a virtual environment."""
    import shlex
    import shutil
    import sys

    programs = Path(sys.executable).parent
    outside = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if Path(part) != programs)
    if sys.prefix == sys.base_prefix or shutil.which("refold", path=outside):
        return None
    if (programs / "activate").exists():
        return f"source {shlex.quote(str(programs / 'activate'))}"
    return f"export PATH={shlex.quote(str(programs))}:$PATH"


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
    if activation := _activation():
        print_line(f"  {activation}")
    if folder.absolute() != state_folder().absolute():
        print_line(f"  export REFOLD_HOME={shlex.quote(str(folder.absolute()))}")
    print_line("  refold submit -- python -c 'print(\"hello\")'")
    print_line("  refold queue --watch")
    print_line("  refold top")
    print_line("  refold open")


DEFAULT_PATH = Path("refold.yaml")


def init(
    path: Annotated[Path, argument("PATH", "Output file.", show_default=True)] = DEFAULT_PATH,
    force: Annotated[bool, switch("--force", "Overwrite an existing file.")] = False,
) -> None:
    """Write a commented refold.yaml: cluster, tenants, policy, monitoring and notifications.

    The file contains the default settings. Edit it, then start the daemon with `refold serve`. On a terminal, this
    command asks whether jobs may be preempted, with its costs and benefits.

    Example: refold init
    """
    from refold.cli import choose_preemption, own_outlook
    from refold.server.config import write_template
    from refold.server.monitor import NvidiaMachine, SlotsMachine, default_slots, open_driver

    target = path / DEFAULT_PATH if path.is_dir() else path
    driver = open_driver()
    machine = NvidiaMachine(driver) if driver and driver.gpus else SlotsMachine(default_slots())
    preemption = None if target.exists() and not force else choose_preemption(own_outlook())
    write_template(target, machine, preemption, replace=force)
    gpus = machine.gpus()
    found = f"{len(gpus)} × {gpus[0].name}" if driver and driver.gpus else f"no GPUs found: {len(gpus)} CPU slots"
    machine.close()
    print_line(f"wrote {target} ({found}); start the daemon with `refold serve`")
