"""Launchers in a gang, without options: all instances train together."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from refold.core import Event, RunFinished, RunStarted, StartRun
from refold.engines.local import LocalBackend
from refold.model import Allocation, Demand, Job, Launch, Share
from refold.server.output import log_path

ALL_REDUCE = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():g}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_plain_torchrun_is_one_job_on_nodes_with_different_numbers_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALL_REDUCE)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    shares = (Share(0, (0, 1)), Share(0, (2,)))
    launch = Launch(folder=str(tmp_path))
    job = Job("job-1", demand=Demand(2, 1), command=(torchrun, "train.py"), launch=launch)
    reports: list[Event] = []

    async def run() -> None:
        environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
        backend = LocalBackend(reports.append, tmp_path / "out", environment=environment, gpus=False)
        await backend.carry_out([StartRun("job-1", 1, Allocation(shares))], {"job-1": job})
        async with asyncio.timeout(120):
            while len(reports) < 2:
                await asyncio.sleep(0.05)

    asyncio.run(run())
    output = "".join(log_path(tmp_path / "out", "job-1", 1, instance).read_text() for instance in (0, 1))
    assert reports == [RunStarted("job-1", 1), RunFinished("job-1", 1)], output
    found = sorted(line for line in output.splitlines() if line.startswith("rank "))
    assert found == [f"rank {rank} of 3: 3" for rank in range(3)]
