"""Every policy satisfies the contract with the default placement, and some with every placement."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from refold.core import Policy
from refold.placement import RULES
from refold.policies.table import POLICIES
from refold.simulator.registry import make_policy
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


class TestSlurm(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("slurm")


class TestEasyInTwoLanesByShortest(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("easy", {"lanes": True, "order": "shortest", "backfill_order": "queue"})


class TestEasyByFairShareWithoutPreemption(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("easy", {"order": "fair-share", "preempt": "never"})


class TestConservative(PolicyContract):
    def make_policy(self) -> Policy:
        return make_policy("conservative")


class TestConservativeWithKnownDurations(PolicyContract):
    oracle = True

    def make_policy(self) -> Policy:
        return make_policy("conservative", {"durations": "known", "order": "attained"})


PLACED_BY_ALL_RULES = ["fifo-skip", "srtf", "easy", "refold"]
"""Policies that are tested with placement rules: with each rule in turn one of them, with all rules if long."""


@pytest.mark.parametrize(
    ("policy", "placement"),
    [
        pytest.param(policy, rule, marks=() if (number + first) % len(PLACED_BY_ALL_RULES) == 0 else pytest.mark.long)
        for number, rule in enumerate(RULES)
        for first, policy in enumerate(PLACED_BY_ALL_RULES)
    ],
)
def test_every_placement_satisfies_the_contract(policy: str, placement: str) -> None:
    class Contract(PolicyContract):
        oracle = POLICIES[policy].oracle
        seeds = range(2)

        def make_policy(self) -> Policy:
            return make_policy(policy, {"placement": placement, "seed": 7})

    contract = Contract()
    contract.test_the_same_events_give_the_same_orders()
    contract.test_every_job_finishes_despite_overhead_and_lost_nodes()


TESTED_WITH_RESHAPABLE_JOBS_HERE = ["fifo", "srtf", "drf", "sia", "synergy", "antman", "tiresias", "optimus", "gavel"]
"""Policies whose contract classes do not set `reshapes`; `pollux` would take too long."""


@pytest.mark.parametrize("policy", TESTED_WITH_RESHAPABLE_JOBS_HERE)
def test_policies_satisfy_the_contract_with_reshapable_jobs(policy: str) -> None:
    class Contract(PolicyContract):
        oracle = POLICIES[policy].oracle
        reshapes = True
        reshaping_seeds = range(1)
        waits_for_quota = policy == "antman"

        def make_policy(self) -> Policy:
            return make_policy(policy)

    contract = Contract()
    contract.test_reshapable_jobs_finish_despite_overhead_and_lost_nodes_and_can_be_replayed()
    contract.test_every_waiting_reshapable_job_has_a_reason()
    contract.test_reshapable_jobs_are_handled_with_disturbances_and_a_snapshot()


def contracts() -> Iterator[type[PolicyContract]]:
    """Yield all contract classes of the tests in this folder."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for found in vars(import_module(path.stem)).values():
            if isinstance(found, type) and issubclass(found, PolicyContract) and found is not PolicyContract:
                yield found


def test_every_policy_has_a_contract_class() -> None:
    tested = {contract().make_policy().name for contract in contracts()}
    assert set(POLICIES) == tested, "a new policy needs a class that subclasses PolicyContract"


def test_names_in_the_table_are_those_of_the_policies() -> None:
    for name in POLICIES:
        assert make_policy(name).name == name
