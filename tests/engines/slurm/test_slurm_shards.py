"""Parts of GPUs on a real Slurm that offers them as shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_servers
from slurm_daemon import SlurmDaemon
from slurm_servers import SlurmServers


@pytest.fixture
def daemon(need_programs: Callable[..., None], tmp_path: Path) -> Iterator[SlurmDaemon]:
    """A daemon on one node with two GPUs, each in four parts."""
    need_programs(*slurm_servers.PROGRAMS)
    servers = SlurmServers(1, 2, shards=4)
    found = SlurmDaemon(servers, tmp_path / "state", "--policy", "fifo-skip")
    try:
        servers.start()
        found.start()
        yield found
    finally:
        found.kill()
        servers.stop()


def test_two_jobs_share_a_gpu_and_a_third_has_the_other(daemon: SlurmDaemon, tmp_path: Path) -> None:
    shell = f"echo $CUDA_VISIBLE_DEVICES >{tmp_path}/$REFOLD_JOB; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with daemon.client() as client:
        parts = [client.submit(command=["sh", "-c", shell], name="part", gpus=1, gpu_share=0.5).id for _ in range(2)]
        for job in parts:
            daemon.wait_until((tmp_path / job).exists, f"{job} runs")
        whole, late = (client.submit(command=["sh", "-c", shell], name="whole", gpus=1).id for _ in range(2))
        daemon.wait_until((tmp_path / whole).exists, "the other GPU is used")
        assert client.job(late).state == "waiting"
        (node,) = client.nodes()
        assert node.free_gpus == 0
        (tmp_path / "go").touch()
        for job in (*parts, whole, late):
            daemon.wait_for_state(job, "finished")
    gpus = [(tmp_path / job).read_text().strip() for job in (*parts, whole)]
    assert gpus in (["0", "0", "1"], ["1", "1", "0"])
