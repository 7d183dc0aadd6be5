"""`refold snapshot`: save the current state to a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from refold.cli import make_client
from refold.cli.views import AsJson, plural, print_json, print_line, print_notes


class Source(StrEnum):
    """What is saved."""

    DAEMON = "daemon"
    KUBERNETES = "kubernetes"


def snapshot(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file.")] = Path("snapshot.jsonl"),
    whole: Annotated[
        bool, typer.Option("--whole", help="Include commands, environments and addresses, which may be confidential.")
    ] = False,
    source: Annotated[
        Source,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="What to save: daemon (the state of `refold serve`), or kubernetes (a cluster; nothing is changed).",
        ),
    ] = Source.DAEMON,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="How to reach the cluster (default: as kubectl)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save the current state to a file: running and waiting jobs, and the history used for predictions.

    The file is a journal that 'refold queue', 'refold whatif' and 'refold compare' read on any machine. To compare
    policies on the current queue: refold compare snapshot.jsonl --policies fifo,easy,refold. Commands, environment
    variables and addresses are omitted, so that the file can be shared.

    With --from kubernetes, the jobs are the pods of a cluster that request GPUs, whichever scheduler they have.

    Example: refold snapshot -o now.jsonl
    """
    if source is Source.KUBERNETES or kubeconfig is not None:
        _save_cluster(out, kubeconfig, whole)
    else:
        make_client().snapshot(out, whole=whole)
    if as_json:
        print_json({"snapshot": str(out)})
        return
    print_line(f"snapshot: {out}")
    print_line(f"to compare policies on it: refold compare {out} --policies fifo,easy,refold", err=True)


def _save_cluster(out: Path, kubeconfig: Path | None, whole: bool) -> None:
    from msgspec.structs import replace

    from refold.backends.kubernetes import ApiServer, find_access
    from refold.core import JobSubmitted, RunAdopted
    from refold.errors import BadFile
    from refold.server import encode_snapshot
    from refold.server.config import Config
    from refold.server.kubernetes import observe, read_only

    api = ApiServer(find_access(kubeconfig), guard=read_only)
    try:
        found = observe(api, Config().policy.name)
    finally:
        api.close()
    header = replace(found.header, snapshot=True)
    try:
        out.write_bytes(encode_snapshot(header, found.now, found.events, whole))
    except OSError as error:
        raise BadFile(out, f"cannot be written: {error.strerror}") from None
    running = sum(isinstance(event, RunAdopted) for event in found.events)
    waiting = sum(isinstance(event, JobSubmitted) for event in found.events) - running
    cluster = header.cluster
    print_notes(found.notes)
    size = f"{plural(len(cluster.nodes), 'node')}, {plural(cluster.gpus, 'GPU')}"
    print_line(f"{size}: {running:,} running, {waiting:,} waiting", err=True)
