"""A back end on a real Slurm, in the harness of the contract suite."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from slurm_servers import SlurmServers

from refold.engines.slurm.backend import SlurmBackend
from refold.engines.slurm.nodes import SlurmCluster, map_nodes, read_nodes
from refold.engines.slurm.pool import HeldPool, PoolSettings
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings
from refold.server import Report
from refold.testing.backend_contract import BackendContract
from refold.testing.backend_harness import BackendHarness

POLL_SECONDS = 0.2


class OnSlurm(BackendContract):
    """Makes back ends on a cluster. The id of the daemon is that of its folder."""

    slurm: SlurmServers
    partition = ""

    def make_backend(self, report: Report, folder: Path, grace: float) -> SlurmBackend:
        """Return a back end, or its successor, for the same folder."""
        programs = Programs(self.slurm.environment)
        nodes = map_nodes(read_nodes(programs.run))
        daemon = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        settings = SlurmSettings(partition=self.partition)
        pool = self.make_pool(programs, daemon, settings, nodes)
        return SlurmBackend(
            report, programs, nodes, folder / "out", daemon, settings, pool=pool, grace=grace, poll=POLL_SECONDS
        )

    def make_pool(
        self, programs: Programs, daemon: str, settings: SlurmSettings, nodes: SlurmCluster
    ) -> HeldPool | None:
        """Return None: each run is a job."""
        del programs, daemon, settings, nodes
        return None


class InPool(OnSlurm):
    """Makes back ends that start runs in a pool of all nodes. `time_limit`: that of its allocations."""

    time_limit: float | None = None

    def make_pool(self, programs: Programs, daemon: str, settings: SlurmSettings, nodes: SlurmCluster) -> HeldPool:
        """Return a pool that has all nodes."""
        pool = HeldPool(programs, daemon, settings, PoolSettings(len(nodes.groups), self.time_limit))

        def is_complete() -> bool:
            pool.read(time.time())
            pool.request_missing(time.time())
            return all(pool.place(group.node.name) for group in nodes.groups)

        self.slurm.wait_until(is_complete, "the pool has all nodes")
        return pool


def on_slurm(slurm: SlurmServers) -> OnSlurm:
    """Return what makes back ends on a cluster."""
    found = OnSlurm()
    found.slurm = slurm
    return found


def in_pool(slurm: SlurmServers) -> InPool:
    """Return what makes back ends on a pool of all nodes of a cluster."""
    found = InPool()
    found.slurm = slurm
    return found


def job_ids(slurm: SlurmServers, name: str = "job") -> list[str]:
    """Return the jobs of Slurm with a name that have not ended."""
    return slurm.run("squeue", "--noheader", "--format=%A", f"--name={name}").split()


def slurm_state(slurm: SlurmServers, number: str) -> str:
    """Return the state of a job of Slurm."""
    return slurm.run("squeue", "--noheader", "--states=all", "--format=%T", "--job", number, check=False).strip()


def record_of(harness: BackendHarness, name: str) -> list[str]:
    """Return the lines that the instances of a run have appended to a file."""
    path = harness.folder / name
    return path.read_text().splitlines() if path.exists() else []
