"""Golden runs: orders as they were when somebody last looked at them closely.

Policies that place jobs as they were asked for run on the workload that ships with the package, with every placement
rule for one of them; policies that reshape jobs run on a small seeded one. A difference means that orders have changed.
If that was the purpose, write the new ones down with `python tests/policies/test_golden.py` (a part of a case's name
behind it writes down only such cases) and say in the commit why.
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
AS_ASKED = ("fifo", "fifo-skip", "sjf", "srtf", "las", "drf", "easy", "conservative")
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
    *(f"{policy}/best-fit" for policy in AS_ASKED),
    *(f"fifo-skip/{rule}" for rule in RULES if rule != "best-fit"),
    *(f"{policy}/reshapable" for policy in RESHAPING),
]


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
            self._hash.update(self.line(entry.now, order).encode())

    def line(self, now: float, order: Order) -> str:
        return f"{now!r} {order}\n"

    def facts(self) -> dict[str, object]:
        return {"starts": self.starts, "stops": self.stops, "end": self.end, "orders": self._hash.hexdigest()[:16]}


class DigestWithoutTimes(Digest):
    """The same for runs whose times come from the performance model: last digits differ from machine to machine."""

    def line(self, now: float, order: Order) -> str:
        if not isinstance(order, StartRun):
            return f"stop {order.job} {order.run}\n"
        shares = [(share.node, share.gpus) for share in order.allocation.placement]
        return f"start {order.job} {order.run} {shares} {order.allocation.plan}\n"

    def facts(self) -> dict[str, object]:
        return super().facts() | {"end": round(self.end, 3)}


def run(case: str) -> dict[str, object]:
    policy, workload = case.split("/")
    return on_the_reshapable_workload(policy) if workload == "reshapable" else on_the_demo(policy, workload)


def on_the_demo(policy: str, placement: str) -> dict[str, object]:
    digest, costs = Digest(), Costs(start=10.0, stop=5.0, restart=30.0)
    jobs = read_trace("demo").jobs
    simulate(jobs, read_cluster("demo"), make_policy(policy, {"placement": placement}), journal=digest, costs=costs)
    return digest.facts()


def on_the_reshapable_workload(policy: str) -> dict[str, object]:
    digest, costs = DigestWithoutTimes(), Costs(start=10.0, stop=5.0, restart=60.0, report_every=60.0)
    jobs, cluster = reshapable_workload(7, jobs=40)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy(policy), journal=digest, charge=charge, costs=costs)
    return digest.facts()


@pytest.mark.parametrize("case", CASES)
def test_the_orders_are_the_golden_ones(case: str) -> None:
    assert run(case) == json.loads(GOLDEN.read_text())[case]


def write_down(part: str = "") -> None:
    """New golden orders of the cases with this in their names."""
    kept = json.loads(GOLDEN.read_text())
    now = {case: run(case) if part in case else kept[case] for case in CASES if part in case or case in kept}
    GOLDEN.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    write_down(*sys.argv[1:])
