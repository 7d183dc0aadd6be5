"""Orders: instructions to a back end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.model import Allocation


class StartRun(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Start the `run`-th run of `job` on an allocation."""

    job: str
    run: int
    allocation: Allocation


class StopRun(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """Stop a run, after it has saved its progress; the back end reports when it has ended.

    `next`: the allocation on which the next run of the job will start at once, so that the back end can prepare it.
    """

    job: str
    run: int
    why: str = ""
    next: Allocation | None = None


Order = StartRun | StopRun


def orders_as_recorded(orders: Sequence[Order], recorded: Sequence[Order]) -> tuple[Order, ...]:
    """Return the orders of a replay as the journal would have them: in older journals, stops have no `next`."""
    if any(isinstance(order, StopRun) and order.next is not None for order in recorded):
        return tuple(orders)
    return tuple(StopRun(order.job, order.run, order.why) if isinstance(order, StopRun) else order for order in orders)
