"""Every policy keeps the contract, with the default placement and, for one of them, with every placement."""

import pytest

from refold.core import Policy
from refold.packing import RULES
from refold.policies import POLICIES
from refold.registry import make_policy
from refold.testing import PolicyContract


class TestFifo(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("fifo")


class TestFifoSkip(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("fifo-skip")


class TestSjf(PolicyContract):
    oracle = True

    def make_policy(self) -> Policy:
        return make_policy("sjf")


class TestSrtf(PolicyContract):
    oracle = True

    def make_policy(self) -> Policy:
        return make_policy("srtf")


class TestLas(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("las", {"threshold_gpu_seconds": 60.0})


class TestDrf(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("drf")


@pytest.mark.parametrize("placement", RULES)
@pytest.mark.parametrize("policy", ["fifo-skip", "srtf"])
def test_every_placement_keeps_the_contract(policy: str, placement: str) -> None:
    class Contract(PolicyContract):
        oracle = POLICIES[policy].oracle
        seeds = range(3)

        def make_policy(self) -> Policy:
            return make_policy(policy, {"placement": placement, "seed": 7})

    contract = Contract()
    contract.test_every_job_that_fits_runs_to_its_end_once()
    contract.test_the_same_facts_give_the_same_orders()
    contract.test_costs_and_lost_nodes_break_nothing()


def test_the_table_says_the_truth_about_every_policy() -> None:
    for name in POLICIES:
        assert make_policy(name).name == name
    tested = {"fifo", "fifo-skip", "sjf", "srtf", "las", "drf"}
    assert set(POLICIES) == tested, "a new policy needs its contract here"
