"""`refold init`: write a commented refold.yaml to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refold.cli.views import say

DEFAULT = Path("refold.yaml")


def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="Where to write it.", show_default=True)] = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a commented refold.yaml: cluster, tenants, policy, what is watched for, and whom to tell.

    It says what the usual settings are; change what you like, then run `refold serve`.

    Example: refold init
    """
    from refold.backends.local import open_driver
    from refold.server.config import write_commented
    from refold.server.monitor import NvidiaMachine, SlotsMachine, usual_slots

    target = path / DEFAULT if path.is_dir() else path
    driver = open_driver()
    machine = NvidiaMachine(driver) if driver and driver.gpus else SlotsMachine(usual_slots())
    write_commented(target, machine, replace=force)
    gpus = machine.gpus()
    found = f"{len(gpus)} × {gpus[0].name}" if driver and driver.gpus else f"no GPUs: {len(gpus)} slots stand in"
    machine.close()
    say(f"wrote {target} ({found}); `refold serve` starts the scheduler with it")
