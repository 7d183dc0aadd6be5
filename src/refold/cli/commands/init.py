"""`refold init`: write a commented refold.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refold.cli.views import print_line

DEFAULT_PATH = Path("refold.yaml")


def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Output file.", show_default=True)] = DEFAULT_PATH,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented refold.yaml: cluster, tenants, policy, monitoring and notifications.

    The file contains the default settings. Edit it, then start the daemon with `refold serve`. On a terminal, this
    command asks whether jobs may be preempted, with what that costs and brings.

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
