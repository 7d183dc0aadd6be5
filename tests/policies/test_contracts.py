"""Every policy keeps the contract, with the default placement and, for one of them, with every placement."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from refold.core import Policy
from refold.packing import RULES
from refold.policies.table import POLICIES
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


class TestEasy(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("easy")


class TestEasyInTwoLanesByShortest(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("easy", {"lanes": True, "order": "shortest", "most_passed": 3, "filling": "order"})


class TestEasyByFairShareWithoutStopping(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("easy", {"order": "fair-share", "preempt": "never", "most_waiting_seconds": 60.0})


class TestConservative(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("conservative")


class TestConservativeThatKnowsDurations(PolicyContract):
    oracle = True

    def make_policy(self) -> Policy:
        return make_policy("conservative", {"durations": "known", "order": "attained"})


@pytest.mark.parametrize("placement", RULES)
@pytest.mark.parametrize("policy", ["fifo-skip", "srtf", "easy"])
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


WITHOUT_A_CLASS_THAT_RESHAPES = ["fifo", "srtf", "drf", "sia", "synergy", "antman", "tiresias", "optimus", "gavel"]
"""Policies whose own contract classes are for jobs of all kinds; `pollux` and `optimal` take too long here."""


@pytest.mark.parametrize("policy", WITHOUT_A_CLASS_THAT_RESHAPES)
def test_jobs_that_may_be_reshaped_break_no_policy(policy: str) -> None:
    class Contract(PolicyContract):
        oracle = POLICIES[policy].oracle
        reshapes = True
        waits_for_quota = policy == "antman"

        def make_policy(self) -> Policy:
            return make_policy(policy)

    contract = Contract()
    contract.test_reshapable_jobs_run_to_their_end_once()
    contract.test_reshaping_survives_costs_and_lost_nodes_and_is_replayed()
    contract.test_every_reshapable_job_that_waits_has_a_reason()
    contract.test_jobs_that_may_be_reshaped_survive_unrest_and_an_opening()


def contracts() -> Iterator[type[PolicyContract]]:
    """Every contract class of the tests in this folder."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for found in vars(import_module(path.stem)).values():
            if isinstance(found, type) and issubclass(found, PolicyContract) and found is not PolicyContract:
                yield found


def test_every_policy_has_its_contract() -> None:
    tested = {contract().make_policy().name for contract in contracts()}
    assert set(POLICIES) == tested, "a new policy needs a class that subclasses PolicyContract"


def test_the_table_says_the_truth_about_every_policy() -> None:
    for name in POLICIES:
        assert make_policy(name).name == name
