"""`refold snapshot`: save the current state to a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import Since, make_client, option, require_option, switch
from refold.cli.views import AsJson, plural, print_json, print_line, print_notes
from refold.errors import BadFile

if TYPE_CHECKING:
    from refold.core import Entry, Header


class Source(StrEnum):
    DAEMON = "daemon"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


def snapshot(
    out: Annotated[Path, option("FILE", "Output file.", "--out", "-o")] = Path("snapshot.jsonl"),
    whole: Annotated[
        bool, switch("--whole", "Include commands, environments and addresses, which may be confidential.")
    ] = False,
    source: Annotated[
        Source,
        option(
            "SOURCE",
            "What to save: daemon (the state of `refold serve`), kubernetes or slurm (a cluster, read-only).",
            "--from",
        ),
    ] = Source.DAEMON,
    kubeconfig: Annotated[Path | None, option("FILE", "How to reach the cluster (default: as kubectl).")] = None,
    since: Since = None,
    priorities: Annotated[
        bool, switch("--priorities/--no-priorities", "With --from slurm: keep Slurm's order of the waiting jobs.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Save the current state to a file: running and waiting jobs, and the history used for predictions.

    The file is a journal that 'refold queue', 'refold whatif' and 'refold compare' read on any machine. To compare
    policies on the current queue: refold compare snapshot.jsonl --policies fifo,easy,refold. Commands, environment
    variables and addresses are omitted, so that the file can be shared.

    With --from kubernetes, the jobs are the pods of a cluster that request GPUs, whichever scheduler they have. With
    --from slurm, they are the jobs of Slurm's queue that request GPUs; past jobs come from its accounting.

    Example: refold snapshot -o now.jsonl
    """
    if source is not Source.SLURM:
        require_option(
            "--from slurm", {"--since": since, "--no-priorities": None if priorities else True}, "only Slurm has them"
        )
    if source is Source.SLURM:
        _save_slurm(out, since, priorities, whole)
    elif source is Source.KUBERNETES or kubeconfig is not None:
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

    from refold.core import Entry
    from refold.engines.kubernetes import ApiServer, find_access, observe, read_only
    from refold.server.config import Config

    api = ApiServer(find_access(kubeconfig), guard=read_only)
    try:
        found = observe(api, Config().policy.name)
    finally:
        api.close()
    _write(out, replace(found.header, snapshot=True), Entry(found.now, found.events), found.notes, whole)


def _save_slurm(out: Path, since: str | None, priorities: bool, whole: bool) -> None:
    from refold.cli.inputs import parse_since
    from refold.engines.slurm import Programs, observe_slurm

    found = observe_slurm(Programs().run, parse_since(since), priorities=priorities)
    _write(out, found.header, found.entry, found.notes, whole)


def _write(out: Path, header: Header, entry: Entry, notes: list[str], whole: bool) -> None:
    from refold.core import JobSubmitted, RunAdopted
    from refold.server import encode_snapshot

    try:
        out.write_bytes(encode_snapshot(header, entry, whole))
    except OSError as error:
        raise BadFile(out, f"cannot be written: {error.strerror}") from None
    running = sum(isinstance(event, RunAdopted) for event in entry.events)
    waiting = sum(isinstance(event, JobSubmitted) for event in entry.events) - running
    cluster = header.cluster
    print_notes(notes)
    size = f"{plural(len(cluster.nodes), 'node')}, {plural(cluster.gpus, 'GPU')}"
    print_line(f"{size}: {running:,} running, {waiting:,} waiting", err=True)
