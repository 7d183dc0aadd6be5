"""Which runs have to make way for a job, so that a place is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import View
from refold.model import Placement, Run
from refold.packing import Free


def free_without(view: View, runs: Iterable[Run]) -> Free:
    """What would be free without some runs, and without those that are stopping."""
    free = view.trial().free.copy()
    for run in view.runs.values():
        if run.stopping:
            free.give_back(run.allocation.placement)
    for run in runs:
        free.give_back(run.allocation.placement)
    return free


def is_given_back(view: View, placement: Placement) -> bool:
    """Whether a place will be free when the runs that were told to stop have."""
    return free_without(view, ()).has(placement)


def runs_to_stop(view: View, runs: Sequence[Run], placement: Placement) -> list[Run]:
    """Of some runs, those without which a place is free; others stay."""
    free = free_without(view, runs)
    return [run for run in runs if not _fits_beside(free, run.allocation.placement, placement)]


def _fits_beside(free: Free, held: Placement, placement: Placement) -> bool:
    """Whether there is room for a place beside what is held; if so, that stays taken."""
    if free.take(held) is not None:
        return False
    if free.has(placement):
        return True
    free.give_back(held)
    return False
