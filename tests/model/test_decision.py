"""Decisions that lead from the current allocations to a target, and shortages as text."""

from collections.abc import Mapping

import msgspec
import pytest

from refold.model import NO_CHANGE, Allocation, Decision, Demand, Plan, Reshape, Run, Share, Shortage, Start, Stop

HERE, THERE = Allocation((Share(0, (0,)),)), Allocation((Share(1, (0,)),))


class Runs(msgspec.Struct, frozen=True):
    """The runs of a view."""

    runs: Mapping[str, Run]


def running(*names: str, stopping: tuple[str, ...] = ()) -> Runs:
    return Runs({name: Run(name, 1, HERE, 0.0, name in stopping) for name in (*names, *stopping)})


def test_jobs_of_the_target_start_and_others_stop() -> None:
    decision = Decision.towards(running("old", "kept"), {"kept": HERE, "new": THERE}, "made room")
    assert decision == Decision(starts=(Start("new", THERE),), stops=(Stop("old", "made room"),))


def test_a_job_with_another_allocation_or_plan_is_reshaped() -> None:
    replanned = Allocation(HERE.placement, Plan(1, zero=1))
    decision = Decision.towards(running("moved", "replanned"), {"moved": THERE, "replanned": replanned}, "balance")
    assert decision == Decision(
        reshapes=(Reshape("moved", THERE, "balance"), Reshape("replanned", replanned, "balance"))
    )


def test_runs_that_are_stopping_are_left_alone() -> None:
    view = running(stopping=("leaving", "moving"))
    assert Decision.towards(view, {"moving": THERE}) == NO_CHANGE


def test_a_target_that_is_reached_needs_no_change() -> None:
    assert Decision.towards(running("a", "b"), {"a": HERE, "b": HERE}) == NO_CHANGE
    assert Decision.towards(running(), {}) == NO_CHANGE


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
            "1 is at the power limit of the rack, 2 are down",
        ),
        (Shortage(nodes=2, at_power_limit=2), None, "0 of 2 nodes fit: 2 are at the power limit of the rack"),
        (Shortage(nodes=1, too_small=1), None, "0 of 1 nodes fit: 1 has too few GPUs in total"),
        (Shortage(nodes=1, too_small=1), Demand(gpus=4), "0 of 1 nodes fit: 1 has fewer than 4 GPUs in total"),
        (
            Shortage(nodes=2, too_few_gpus=2),
            Demand(1, 3, 250),
            "0 of 2 nodes fit: 2 have fewer than 3 GPUs with 0.25 free",
        ),
    ],
)
def test_a_shortage_counts_nodes_by_what_they_lack(shortage: Shortage, demand: Demand | None, text: str) -> None:
    assert shortage.text(demand) == text
