"""Many nodes, as `python -m benchmarks.engines --nodes` starts them: all are used, by many jobs and by one."""

from __future__ import annotations

from collections.abc import Callable

import slurm_servers
from benchmarks.engines.slurm_scale import measure_scale

NODES = 32


def test_jobs_run_on_all_nodes_of_a_large_cluster(need_programs: Callable[..., None]) -> None:
    need_programs(*slurm_servers.PROGRAMS)
    assert [(found.nodes_used, found.lost) for found in measure_scale(NODES)] == [((NODES, NODES), 0)] * 2
