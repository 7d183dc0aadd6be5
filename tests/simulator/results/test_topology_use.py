"""What topology costs: GPU time lost across domains, and GPUs that requests for domains keep idle."""

from __future__ import annotations

import msgspec
import pytest

from refold.journal import HistoryJournal
from refold.model import Cluster, Job, Level, Link, TopologyRequest
from refold.policies.queueing.fifo import Fifo
from refold.simulator import simulate
from refold.simulator.results import Measures, measure
from refold.simulator.traces import read_cluster
from refold.testing import make_job

HOUR = 3600.0


def racks() -> Cluster:
    """Return two racks of two nodes with 8 GPUs; links between racks are 4 times slower."""
    levels = (Level("rack", Link("infiniband", 48.0)),)
    return msgspec.structs.replace(read_cluster("2 racks of 2x8:A100"), levels=levels, network=Link("infiniband", 12.0))


def job(name: str, nodes: int, at: float, work: float, **topology: object) -> Job:
    one = make_job(name, instances=nodes, gpus=8, at=at, work=work)
    request = msgspec.convert(topology, TopologyRequest)
    return msgspec.structs.replace(one, demand=msgspec.structs.replace(one.demand, topology=request))


def measured(*jobs: Job, cluster: Cluster | None = None) -> Measures:
    cluster, journal = cluster or racks(), HistoryJournal()
    simulate(jobs, cluster, Fifo(), journal=journal)
    return measure(journal.history(cluster))


def one_node_free_in_each_rack(until: float) -> list[Job]:
    return [job("a", 1, 0.0, until), job("gone", 1, 0.0, 60.0), job("b", 1, 0.0, until)]


def test_a_run_that_is_twice_as_slow_loses_half_of_its_gpu_time() -> None:
    """48 / 12 = 4 times slower for a third of the step: it takes 1 - 1/3 + 4/3 = 2 times as long."""
    across = job("across", 2, 100.0, HOUR, communication=1 / 3)
    use = measured(*one_node_free_in_each_rack(3 * HOUR), across).topology
    assert use is not None
    assert use.crossing_gpu_hours == pytest.approx(16 * 1.0)
    assert use.crossing_share == pytest.approx(16 / (2 * 16 + 2 * 8 * 3 + 8 / 60))
    assert use.idle_share == 0.0


def test_free_gpus_that_a_gang_may_not_use_are_idle_by_topology() -> None:
    """From 100 s to the end of the window, at 2 h, 16 of 32 GPUs are free in different racks."""
    jobs = [
        *one_node_free_in_each_rack(3 * HOUR),
        job("one", 2, 100.0, HOUR, required="rack"),
        job("end", 4, 7200.0, 1),
    ]
    use = measured(*jobs).topology
    assert use is not None
    assert use.crossing_gpu_hours == 0.0
    assert use.idle_share == pytest.approx(0.5 * (1 - 100 / 7200), abs=0.01)


def test_a_gang_for_which_too_few_gpus_are_free_leaves_none_idle_by_topology() -> None:
    jobs = [*one_node_free_in_each_rack(3 * HOUR), job("one", 4, 100.0, HOUR, segment=2), job("end", 4, 7200.0, 1.0)]
    use = measured(*jobs).topology
    assert use is not None and use.idle_share == 0.0


def test_a_cluster_without_levels_has_no_measures_of_topology() -> None:
    assert measured(make_job("a", gpus=8), cluster=read_cluster("4x8:A100")).topology is None
