"""Decisions that lead from the current allocations to a target, and shortages as text."""

import pytest

from refold.model import Allocation, Demand, Share, Shortage, TopologyRequest

HERE, THERE = Allocation((Share(0, (0,)),)), Allocation((Share(1, (0,)),))


@pytest.mark.parametrize(
    ("shortage", "demand", "text"),
    [
        (Shortage(nodes=3, nodes_fit=3), None, "3 of 3 nodes fit"),
        (Shortage(4, 0, 3, 0, too_few_cpus=3), Demand(4), "0 of 3 nodes fit: 3 have too few free CPUs"),
        (Shortage(4, 3, 3, 2, too_few_cpus=1), None, "3 of 4 instances fit on 2 of 3 nodes: 1 has too few free CPUs"),
        (
            Shortage(nodes=9, down=2, wrong_type=1, too_little_memory=4, at_power_limit=1, too_small=1),
            Demand(gpus=1),
            "0 of 9 nodes fit: 1 has a different GPU type, 1 has no GPU, 4 have too little free memory, "
            "1 is at the power limit of the rack, 2 are down or drained",
        ),
        (Shortage(nodes=2, at_power_limit=2), None, "0 of 2 nodes fit: 2 are at the power limit of the rack"),
        (Shortage(nodes=1, too_small=1), None, "0 of 1 nodes fit: 1 has too few GPUs in total"),
        (Shortage(nodes=1, too_small=1), Demand(gpus=4), "0 of 1 nodes fit: 1 has fewer than 4 GPUs in total"),
        (
            Shortage(nodes=2, too_few_gpus=2),
            Demand(1, 3, 250),
            "0 of 2 nodes fit: 2 have fewer than 3 GPUs with 0.25 free",
        ),
        (
            Shortage(8, 4, 12, 12, fit_anywhere=8),
            Demand(8, 4, topology=TopologyRequest("rack")),
            "4 of 8 instances fit in one rack, 8 in any domains",
        ),
        (
            Shortage(8, 4, 12, 12, fit_anywhere=6),
            Demand(8, 4, topology=TopologyRequest("block", segment=4, segment_level="rack")),
            "4 of 8 instances fit in one block, in segments of 4 in one rack each, 6 in any domains",
        ),
        (Shortage(8, 4, 12, 12, fit_anywhere=6), None, "4 of 8 instances fit as requested, 6 in any domains"),
    ],
)
def test_a_shortage_counts_nodes_by_what_they_lack(shortage: Shortage, demand: Demand | None, text: str) -> None:
    assert shortage.text(demand) == text
