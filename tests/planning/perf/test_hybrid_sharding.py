"""Hybrid sharding: ZeRO shards inside groups of GPUs, which sum the shards of their gradients."""

import pytest

from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import Estimate, estimate
from refold.planning.perf.hardware import GpuSpec, Machines
from refold.planning.perf.memory_model import GIB
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0, 0.0), 32.0, 100.0, 400.0)
MODEL = ModelShape("m", layers=16, hidden=2048, heads=16, bias=False)
ENGINE = Engine("e", launch_seconds=0.0, overlap_shards=0.0, gather_straggler_share=0.1)


def on(plan: Plan, nodes: int = 4) -> Estimate:
    machines = Machines(GPU, (8,) * nodes, GPU.link, Link("network", 50.0, 0.0))
    return estimate(TrainingSetup(MODEL, machines, ENGINE, plan.data, 1024), plan)


def test_states_are_divided_among_the_gpus_of_a_group() -> None:
    hybrid = on(Plan(32, zero=3, replicate=4))
    on_one_node = on(Plan(8, zero=3), nodes=1)
    for part in ("weights", "gradients", "optimizer"):
        assert hybrid.memory[part] == pytest.approx(on_one_node.memory[part])
    stored = ENGINE.optimizer_bytes * MODEL.parameters / GIB
    assert hybrid.memory["optimizer"] == pytest.approx(stored / 8)
    assert on(Plan(32, zero=3)).memory["optimizer"] == pytest.approx(stored / 32)


def test_groups_on_one_node_gather_inside_it_and_sum_their_shards_across_nodes() -> None:
    weights, gradients = 2 * MODEL.parameters, ENGINE.gradient_traffic_bytes * MODEL.parameters
    link, network = 300e9 * GPU.efficiency.link, 50e9 * GPU.efficiency.network
    inside = (2 * weights + gradients) * (1 - 1 / 8) / link
    shard = gradients / 8
    across = 2 * shard * (1 - 1 / 4) * 8 / network  # 8 groups share the network of a node
    assert on(Plan(32, zero=3, replicate=4)).seconds["data"] == pytest.approx(inside + across)


def test_only_nodes_that_gather_together_wait_for_each_other() -> None:
    def share(plan: Plan) -> float:
        result = on(plan)
        return result.seconds["stragglers"] / (result.step_seconds - result.seconds["stragglers"])

    assert share(Plan(32, zero=3)) == pytest.approx(0.2)
    assert share(Plan(32, zero=3, replicate=2)) == pytest.approx(0.1)
    assert share(Plan(32, zero=3, replicate=4)) == share(Plan(32, zero=3, replicate=8)) == 0


def test_context_parallel_gpus_hold_shards_too() -> None:
    hybrid, alone = on(Plan(16, zero=3, context=2, replicate=4)), on(Plan(32, zero=3, replicate=4))
    assert hybrid.memory["optimizer"] == pytest.approx(alone.memory["optimizer"])
