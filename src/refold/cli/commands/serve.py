"""`refold serve`: the scheduler of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import PlacementName, Settings
from refold.cli.views import plural, say, tell

if TYPE_CHECKING:
    from refold.server import Ready
    from refold.server.config import Config
    from refold.server.monitor import Machine

CONFIG = Path("refold.yaml")


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="What `refold init` writes [refold.yaml, if there].")
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, max=62, help="Offer so many CPU slots as stand-ins for GPUs.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="NAME", help="Which policy decides [easy].")] = None,
    placement: PlacementName = None,
    settings: Settings = None,
    host: Annotated[str | None, typer.Option("--host", help="Where to listen [127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="On which port; 0: any that is free [7170].")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FOLDER", help="Where to keep everything [~/.refold].")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make another token for the owner; the old one opens nothing more.")
    ] = False,
) -> None:
    """Run the scheduler of this machine: finds its GPUs, or offers CPU slots; keeps all that it knows in one file.

    It listens on the loopback only, unless told otherwise with --host. Ctrl-C ends it; its runs go on, and the next
    `refold serve` takes them up again.

    Example: refold serve --slots 4
    """
    import asyncio

    from refold.client import state_folder
    from refold.errors import MissingExtra

    try:
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("refold serve", "serve") from None
    chosen = _chosen(_config(config), slots, policy, settings, placement, host, port)
    chosen, machine = _with_something_to_share(chosen)
    _log_to_stderr()
    _run(asyncio, chosen, (state or state_folder()).expanduser(), machine, new_token)


def _run(asyncio: Any, config: Config, folder: Path, machine: Machine, new_token: bool) -> None:
    from refold.server import ASKS_TO_END, Daemon
    from refold.server.monitor import layout_of

    layout = layout_of(machine, config)
    what = layout.cluster.nodes[0].gpu_type
    say(f"{plural(layout.cluster.gpus, 'slot' if layout.devices is None else what)}, policy {config.policy.name}")

    async def serve() -> None:
        daemon = Daemon(config, folder, machine, layout, new_token=new_token)
        for number in ASKS_TO_END:
            asyncio.get_running_loop().add_signal_handler(number, daemon.end)
        await daemon.serve(lambda ready: _welcome(ready, folder))

    _best_loop(asyncio)(serve())
    say("ended; what was running goes on, and `refold serve` takes it up again")


def _best_loop(asyncio: Any) -> Any:
    """uvloop, where there is one, answers about twice as many requests."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _config(path: Path | None) -> Config:
    from refold.server.config import Config, read_config

    if path is None and not CONFIG.exists():
        return Config()
    return read_config(path or CONFIG)


def _chosen(
    config: Config,
    slots: int | None,
    policy: str | None,
    settings: list[str] | None,
    placement: str | None,
    host: str | None,
    port: int | None,
) -> Config:
    """What the file says, but for what was typed."""
    from msgspec.structs import replace

    from refold.cli import settings_from
    from refold.cli.inputs import chosen_policy
    from refold.server.config import PolicyChoice

    cluster, serving, decides = config.cluster, config.serve, config.policy
    if slots is not None:
        cluster = replace(cluster, slots=slots, nodes={}, gpus="auto")
    typed = settings_from(settings, placement)
    if policy is not None or typed:
        kept = decides.settings if policy in (None, decides.name) else {}
        choice = chosen_policy(policy or decides.name, {**kept, **typed})
        decides = PolicyChoice(choice.policy, dict(choice.settings))
    serving = replace(serving, **{key: value for key, value in (("host", host), ("port", port)) if value is not None})
    return replace(config, cluster=cluster, policy=decides, serve=serving)


def _with_something_to_share(config: Config) -> tuple[Config, Machine]:
    """The machine's GPUs; where it has none, CPU slots that stand in for them."""
    from msgspec.structs import replace

    from refold.server.monitor import machine_of, usual_slots

    machine = machine_of(config.cluster)
    if machine.gpus():
        return config, machine
    slots = usual_slots()
    say(f"no GPU was found here: {plural(slots, 'CPU slot')} stand in (--slots N for another number)")
    config = replace(config, cluster=replace(config.cluster, slots=slots))
    return config, machine_of(config.cluster)


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")


def _welcome(ready: Ready, folder: Path) -> None:
    from refold.client import left_address

    tell(ready.notes)
    say(f"serving on {ready.address}   (API: {ready.address}/docs)")
    if ready.token:
        say(f"token of the owner: {ready.token}")
    elif left_address(folder) is None:
        say("the owner's token is not known here any more: `refold serve --new-token` makes another")
    say(f"state: {folder}   {plural(ready.running, 'run')}, {plural(ready.waiting, 'job')} waiting")
    say()
    say("next, in another terminal:")
    say("  refold submit -- python -c 'print(\"hello\")'")
    say("  refold queue --watch")
    say("  refold top")
