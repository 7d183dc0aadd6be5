"""Choice of the runs to preempt so that a placement becomes free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import View
from refold.model import Placement, Run
from refold.packing import FreeResources


def free_without(view: View, runs: Iterable[Run]) -> FreeResources:
    """Return what would be free without these runs and without those that are stopping."""
    free = view.trial().free.copy()
    for run in view.runs.values():
        if run.stopping:
            free.release(run.allocation.placement)
    for run in runs:
        free.release(run.allocation.placement)
    return free


def will_be_free(view: View, placement: Placement) -> bool:
    """Return whether a placement will be free when the runs that are stopping have stopped."""
    return free_without(view, ()).has(placement)


def runs_to_stop(view: View, runs: Sequence[Run], placement: Placement) -> list[Run]:
    """Return those of the runs that must stop so that a placement is free."""
    free = free_without(view, runs)
    return [run for run in runs if not _can_stay(free, run.allocation.placement, placement)]


def _can_stay(free: FreeResources, held: Placement, placement: Placement) -> bool:
    """Return whether a placement is free beside what a run holds; if so, mark the latter as taken."""
    if free.take(held) is not None:
        return False
    if free.has(placement):
        return True
    free.release(held)
    return False
