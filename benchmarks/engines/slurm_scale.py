"""Jobs on a real Slurm with many nodes: the daemon starts runs on all of them, and on all of them at once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_daemon import SlurmDaemon  # noqa: E402
from slurm_servers import SlurmServers  # noqa: E402

GPUS = 8
START_SECONDS = 300.0
"""How long a cluster may take to start: each node is a process of this machine."""

RECORD = 'echo "$SLURMD_NODENAME $(date +%s.%N)" >>{folder}/$REFOLD_JOB'


class ScaleOutcome(NamedTuple):
    """What was measured on a cluster. `jobs`: one for each node, each with all of its GPUs; then a gang on all nodes.

    `nodes_used`: by the jobs, and by the gang. `seconds`: from the first submission to the start of the last job, and
    of the last instance of the gang. `lost`: jobs that have not finished.
    """

    way: str
    nodes: int
    nodes_used: tuple[int, int]
    seconds: tuple[float, float]
    lost: int


def measure_scale(nodes: int) -> list[ScaleOutcome]:
    """Start a cluster, and jobs on all of its nodes, as jobs of Slurm and then in a pool of all nodes."""
    slurm = SlurmServers(nodes, GPUS, node_timeout=300)
    with TemporaryDirectory(prefix="refold-scale-") as name:
        try:
            slurm.start(START_SECONDS)
            return [_measure(slurm, Path(name), way, options) for way, options in _ways(nodes).items()]
        finally:
            slurm.stop()


def _ways(nodes: int) -> dict[str, tuple[str, ...]]:
    return {"a job per run": (), "in a pool": ("--pool", str(nodes))}


def _measure(slurm: SlurmServers, parent: Path, way: str, options: tuple[str, ...]) -> ScaleOutcome:
    folder = parent / way.replace(" ", "-")
    folder.mkdir()
    daemon = SlurmDaemon(slurm, folder / "state", "--policy", "fifo", *options)
    try:
        daemon.start()
        count = len(slurm.nodes)
        slurm.wait_until(lambda: _free_nodes(daemon) == count, "all nodes can be used", START_SECONDS)
        singles = _play(daemon, folder, count, 1)
        gang = _play(daemon, folder, 1, count)
        lost = sum(state != "finished" for state in daemon.states().values())
        return ScaleOutcome(way, count, (singles[0], gang[0]), (singles[1], gang[1]), lost)
    finally:
        daemon.kill()
        slurm.cancel_all()


def _free_nodes(daemon: SlurmDaemon) -> int:
    with daemon.client() as client:
        return sum(node.up and node.free_gpus == GPUS for node in client.nodes())


def _play(daemon: SlurmDaemon, folder: Path, jobs: int, instances: int) -> tuple[int, float]:
    """Submit jobs that hold their nodes until all have started; return their nodes, and when the last has started."""
    go = folder / f"go-{instances}"
    shell = f"{RECORD.format(folder=folder)}; while [ ! -e {go} ]; do sleep 0.5; done"
    began = time.time()
    with daemon.client() as client:
        ids = [client.submit(command=["sh", "-c", shell], instances=instances, gpus=GPUS).id for _ in range(jobs)]
        deadline = began + START_SECONDS
        while len(starts := _starts(folder, ids)) < jobs * instances and time.time() < deadline:
            time.sleep(0.2)
        go.touch()
        for job in ids:
            client.wait(job, timeout=START_SECONDS)
    return len({node for node, _ in starts}), max(at for _, at in starts) - began


def _starts(folder: Path, jobs: list[str]) -> list[tuple[str, float]]:
    texts = [(folder / job).read_text() for job in jobs if (folder / job).exists()]
    lines = [line.split() for text in texts for line in text.splitlines()]
    return [(line[0], float(line[1])) for line in lines if len(line) == 2]


def scale_table(outcomes: list[ScaleOutcome]) -> list[str]:
    """Return a Markdown table."""
    return [
        "| nodes | way | nodes of as many jobs | last start, s | nodes of a gang | last start, s | jobs lost |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {found.nodes} | {found.way} | {found.nodes_used[0]} | {found.seconds[0]:.1f} | {found.nodes_used[1]} |"
            f" {found.seconds[1]:.1f} | {found.lost} |"
            for found in outcomes
        ),
    ]
