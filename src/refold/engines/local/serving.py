"""Serve this machine: its GPUs, or CPU slots."""

from __future__ import annotations

from msgspec.structs import replace

from refold.engines.local.engine import LocalEngine, split_privileges
from refold.model import format_count
from refold.server import Daemon, ServeRequest, on_termination, run_until_done
from refold.server.config import Config
from refold.server.monitor import Machine, build_layout, default_slots, open_machine


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
