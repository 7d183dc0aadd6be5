"""`refold snapshot`: save the current state to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refold.cli import make_client
from refold.cli.views import AsJson, print_json, print_line


def snapshot(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file.")] = Path("snapshot.jsonl"),
    whole: Annotated[
        bool, typer.Option("--whole", help="Include commands, environments and addresses, which may be confidential.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Save the current state to a file: running and waiting jobs, and the history used for predictions.

    The file is a journal that 'refold queue', 'refold whatif' and 'refold compare' read on any machine. To compare
    policies on the current queue: refold compare snapshot.jsonl --policies fifo,easy,refold. Commands, environment
    variables and addresses are omitted, so that the file can be shared.

    Example: refold snapshot -o now.jsonl
    """
    path = make_client().snapshot(out, whole=whole)
    if as_json:
        print_json({"snapshot": str(path)})
        return
    print_line(f"snapshot: {path}")
    print_line(f"to compare policies on it: refold compare {path} --policies fifo,easy,refold", err=True)
