"""Golden runs: the orders of each policy must equal the recorded ones.

Policies that place jobs as requested run on the workload that ships with the package, one of them with every placement
rule; policies that reshape jobs run on a small seeded workload. A failure means that orders have changed. If that is
intended, record the new ones with `python tests/policies/test_golden.py` (an argument restricts it to cases whose name
contains it) and give the reason in the commit message.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from refold.core import Entry
from refold.core.orders import Order, StartRun
from refold.packing import RULES
from refold.plans.speeds import Speeds
from refold.registry import make_policy
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.modelled_speeds import ModelledSpeeds
from refold.testing import reshapable_workload
from refold.traces.formats import read_cluster, read_trace

GOLDEN = Path(__file__).with_name("golden.json")
NOT_RESHAPING = ("fifo", "fifo-skip", "sjf", "srtf", "las", "drf", "easy", "conservative")
RESHAPING = (
    "refold",
    "rubick",
    "rubick-e",
    "rubick-r",
    "rubick-n",
    "sia",
    "synergy",
    "antman",
    "optimus",
    "tiresias",
)
CASES = [
    *(f"{policy}/best-fit" for policy in NOT_RESHAPING),
    *(f"fifo-skip/{rule}" for rule in RULES if rule != "best-fit"),
    *(f"{policy}/reshapable" for policy in RESHAPING),
]


class Digest:
    """A journal that stores only the numbers of starts and stops, the end time, and a hash of all orders."""

    def __init__(self) -> None:
        self.starts = self.stops = 0
        self.end = 0.0
        self._hash = sha256()

    def write(self, entry: Entry) -> None:
        self.end = entry.now
        for order in entry.orders:
            self.starts += isinstance(order, StartRun)
            self.stops += not isinstance(order, StartRun)
            self._hash.update(self.line(entry.now, order).encode())

    def line(self, now: float, order: Order) -> str:
        return f"{now!r} {order}\n"

    def summary(self) -> dict[str, object]:
        return {"starts": self.starts, "stops": self.stops, "end": self.end, "orders": self._hash.hexdigest()[:16]}


class DigestWithoutTimes(Digest):
    """A digest without times: those from the performance model differ between machines in the last digits."""

    def line(self, now: float, order: Order) -> str:
        if not isinstance(order, StartRun):
            return f"stop {order.job} {order.run}\n"
        shares = [(share.node, share.gpus) for share in order.allocation.placement]
        return f"start {order.job} {order.run} {shares} {order.allocation.plan}\n"

    def summary(self) -> dict[str, object]:
        return super().summary() | {"end": round(self.end, 3)}


def run(case: str) -> dict[str, object]:
    policy, workload = case.split("/")
    return run_reshapable(policy) if workload == "reshapable" else run_demo(policy, workload)


def run_demo(policy: str, placement: str) -> dict[str, object]:
    digest, costs = Digest(), Costs(start=10.0, stop=5.0, restart=30.0)
    jobs = read_trace("demo").jobs
    simulate(jobs, read_cluster("demo"), make_policy(policy, {"placement": placement}), journal=digest, costs=costs)
    return digest.summary()


def run_reshapable(policy: str) -> dict[str, object]:
    digest, costs = DigestWithoutTimes(), Costs(start=10.0, stop=5.0, restart=60.0, report_every=60.0)
    jobs, cluster = reshapable_workload(7, jobs=40)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy(policy), journal=digest, charge=charge, costs=costs)
    return digest.summary()


@pytest.mark.parametrize("case", CASES)
def test_orders_equal_the_golden_ones(case: str) -> None:
    assert run(case) == json.loads(GOLDEN.read_text())[case]


def record(part: str = "") -> None:
    """Record new golden orders of the cases whose name contains `part`."""
    recorded = json.loads(GOLDEN.read_text())
    updated = {
        case: run(case) if part in case else recorded[case] for case in CASES if part in case or case in recorded
    }
    GOLDEN.write_text(json.dumps(updated, indent=1) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
