"""Orders of a replay, compared with those of a journal."""

from refold.core import StartRun, StopRun
from refold.core.orders import Order, orders_as_recorded
from refold.model import Allocation, Share

ON_ONE_GPU = Allocation((Share(0, (0,)),))
START = StartRun("other", 1, ON_ONE_GPU)
STOP = StopRun("a", 1, "grows")
RESHAPE = StopRun("a", 1, "grows", ON_ONE_GPU)


def test_the_next_allocation_is_left_out_where_the_journal_has_none() -> None:
    assert orders_as_recorded([START, RESHAPE], [START, STOP]) == (START, STOP)


def test_the_next_allocation_is_compared_where_the_journal_has_any() -> None:
    journals: list[list[Order]] = [[START, RESHAPE], [StopRun("b", 1), RESHAPE]]
    for recorded in journals:
        assert orders_as_recorded([START, RESHAPE], recorded) == (START, RESHAPE)
