"""Golden runs: every policy and every placement on the workload that ships with the package.

A difference means that orders have changed. If that was the purpose, write the new ones down with
`python tests/policies/test_golden.py` and say in the commit why.
"""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from refold.core import Entry
from refold.core.orders import StartRun
from refold.packing import RULES
from refold.policies import POLICIES
from refold.registry import make_policy
from refold.simulator import Costs, simulate
from refold.traces import read_cluster, read_trace

GOLDEN = Path(__file__).with_name("golden.json")
CASES = [f"{policy}/best-fit" for policy in POLICIES] + [f"fifo-skip/{rule}" for rule in RULES if rule != "best-fit"]


class Digest:
    """A journal that keeps only how many starts and stops there were, when it ended, and a hash of every order."""

    def __init__(self) -> None:
        self.starts = self.stops = 0
        self.end = 0.0
        self._hash = sha256()

    def write(self, entry: Entry) -> None:
        self.end = entry.now
        for order in entry.orders:
            self.starts += isinstance(order, StartRun)
            self.stops += not isinstance(order, StartRun)
            self._hash.update(f"{entry.now!r} {order}\n".encode())

    def facts(self) -> dict[str, object]:
        return {"starts": self.starts, "stops": self.stops, "end": self.end, "orders": self._hash.hexdigest()[:16]}


def run(case: str) -> dict[str, object]:
    policy, placement = case.split("/")
    digest = Digest()
    jobs = read_trace("demo").jobs
    costs = Costs(start=10.0, stop=5.0, restart=30.0)
    simulate(jobs, read_cluster("demo"), make_policy(policy, {"placement": placement}), journal=digest, costs=costs)
    return digest.facts()


@pytest.mark.parametrize("case", CASES)
def test_the_orders_are_the_golden_ones(case: str) -> None:
    assert run(case) == json.loads(GOLDEN.read_text())[case]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({case: run(case) for case in CASES}, indent=1) + "\n")
