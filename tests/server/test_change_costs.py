"""The cost of changes that restart a run is measured from the order to stop to the first new step."""

import pytest

from refold.core import ChangeMeasured, Entry, Event, Order, RunProgressed, RunStarted, StartRun, StopRun
from refold.model import Allocation, Share
from refold.server.subscribers import ChangeCosts, LoopStep

ELSEWHERE = Allocation((Share(0, (1,)),))
STOP, START = StopRun("a", 1, "", ELSEWHERE), StartRun("a", 2, ELSEWHERE)


class ReportedEvents:
    """An inbox that stores reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def report(self, event: Event) -> None:
        self.events.append(event)


def costs_of(*steps: tuple[float, Event | Order]) -> list[Event]:
    inbox = ReportedEvents()
    costs = ChangeCosts(inbox)  # type: ignore[arg-type]
    for now, item in steps:
        entry = Entry(now, orders=(item,)) if isinstance(item, StartRun | StopRun) else Entry(now, (item,))
        costs.after_step(LoopStep(entry, [], []))
    return inbox.events


def test_a_restart_costs_the_time_until_its_first_step() -> None:
    first, second = RunProgressed("a", 2, steps=11), RunProgressed("a", 2, steps=20)
    costs = costs_of((100.0, STOP), (104.0, START), (105.0, RunStarted("a", 2)), (131.0, first), (140.0, second))
    assert costs == [ChangeMeasured("a", 2, 31.0, "cold")]


@pytest.mark.parametrize(
    "steps",
    [
        [(100.0, StopRun("a", 1)), (200.0, RunProgressed("a", 2, steps=11))],
        [(100.0, STOP), (200.0, RunProgressed("a", 1, steps=11))],
        [(100.0, STOP), (101.0, ChangeMeasured("a", 2, 0.4, "live")), (200.0, RunProgressed("a", 2, steps=11))],
    ],
    ids=["not a change", "a late report of the old run", "measured live"],
)
def test_nothing_else_is_measured(steps: list[tuple[float, Event | Order]]) -> None:
    assert costs_of(*steps) == []
