"""A daemon on Ray for tests: `refold serve --on ray` in a process of its own."""

from __future__ import annotations

from pathlib import Path

from ray_cluster import RayCluster
from served_daemon import ServedDaemon
from slurm_daemon import SlurmDaemon


class RayDaemon(SlurmDaemon):
    """The daemon, and the same shortcuts as on Slurm."""

    def __init__(self, cluster: RayCluster, folder: Path, *options: str) -> None:
        log = folder.with_name(f"{folder.name}.log")
        ServedDaemon.__init__(self, folder, log, ["--on", "ray", *options], cluster.environment)
