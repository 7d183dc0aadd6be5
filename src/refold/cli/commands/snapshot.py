"""`refold snapshot`: the present as a file, to replay and to compare policies on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refold.cli import daemon
from refold.cli.views import AsJson, print_json, say


def snapshot(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.")] = Path(
        "snapshot.jsonl"
    ),
    whole: Annotated[
        bool, typer.Option("--whole", help="With commands, environments and addresses: not for everybody's eyes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write how things stand now into a file: who runs where, who waits, and what is known of the past.

    It is a journal: 'refold queue', 'refold whatif' and 'refold compare' read it, on any machine. What would another
    policy do with this queue? refold compare snapshot.jsonl --policies fifo,easy,refold. Commands, variables of the
    environment and addresses are left out, so that it can be handed around.

    Example: refold snapshot -o now.jsonl
    """
    path = daemon().snapshot(out, whole=whole)
    if as_json:
        print_json({"snapshot": str(path)})
        return
    say(f"snapshot: {path}")
    say(f"what would other policies do? refold compare {path} --policies fifo,easy,refold", err=True)
