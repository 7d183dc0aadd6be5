"""What was aimed at, and whether it was reached, policy by policy and workload by workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.backfill.runs import WHOLE_NODES, Outcome, Outcomes, Run
from benchmarks.backfill.world import CONSERVATIVE, EASY, FIFO, PREDICTED_AND_KNOWN, Contender, Workload
from benchmarks.table import Row, Verdict
from refold.model import MINUTE, Seconds, text_from_seconds

HARDLY: Seconds = MINUTE
"""Where fifo's jobs wait for less in the mean, there is nothing to be gained."""

SHARE, KEPT = 0.80, 0.95
JUDGED = {"easy": EASY, "conservative": CONSERVATIVE}
"""Those that goals are about, as everybody would run them: with predictions."""


class Reached(NamedTuple):
    """What was measured on one workload, in words; `above` is how far it is on the right side of the goal."""

    workload: Workload
    text: str
    above: float


def fifo_mean(found: Outcomes, workload: Workload) -> float:
    """The mean waiting under fifo; 0 if it was not run."""
    outcome = found.get(Run(workload, FIFO))
    return 0.0 if outcome is None else outcome.waiting.mean or 0.0


def share(found: Outcomes, workload: Workload, name: str) -> float | None:
    """Prediction's part of the oracle's improvement over fifo in mean waiting; None where fifo hardly waits."""
    predicted, known = PREDICTED_AND_KNOWN[name]
    return part_of_improvement(found, workload, predicted, known)


def part_of_improvement(found: Outcomes, workload: Workload, who: Contender, best: Contender) -> float | None:
    """One's part of another's improvement over fifo in mean waiting; None where fifo hardly waits."""
    theirs, best_there_is = (found.get(Run(workload, contender)) for contender in (who, best))
    fifo = fifo_mean(found, workload)
    if theirs is None or best_there_is is None or fifo <= HARDLY:
        return None
    assert theirs.waiting.mean is not None and best_there_is.waiting.mean is not None
    gained = fifo - best_there_is.waiting.mean
    return (fifo - theirs.waiting.mean) / gained if gained > 0 else None


def rows(found: Outcomes, workloads: Sequence[Workload]) -> list[Row]:
    """Every goal for every policy that it is about: on how many workloads it is met, and the worst of them."""
    made = []
    for name in JUDGED:
        shares = [_share_reached(found, workload, name) for workload in workloads]
        made.append(_row(f"{name}: part of the oracle's improvement", f"≥ {SHARE:.0%}", shares))
    for name, contender in JUDGED.items():
        kept = [_kept_reached(found, workload, contender) for workload in workloads]
        made.append(_row(f"{name}: promises kept", f"≥ {KEPT:.0%}", kept))
    for name, contender in JUDGED.items():
        whole = [_whole_nodes_reached(found, workload, contender) for workload in workloads]
        made.append(_row(f"{name}: p99 waiting of whole-node jobs", "≤ fifo's", whole))
    return made


def _row(what: str, goal: str, everywhere: Sequence[Reached | None]) -> Row:
    judged = [one for one in everywhere if one is not None]
    if not judged:
        return Row(what, "not measured", goal=goal, verdict="skipped")
    worst = min(judged, key=lambda one: one.above)
    met = sum(one.above >= 0 for one in judged)
    verdict: Verdict = "met" if met == len(judged) else "missed"
    text = f"on {met} of {len(judged)} workloads; worst: {worst.text} ({worst.workload.title})"
    return Row(what, text, worst.above, goal, verdict)


def _share_reached(found: Outcomes, workload: Workload, name: str) -> Reached | None:
    part = share(found, workload, name)
    return None if part is None else Reached(workload, f"{part:.1%}", part - SHARE)


def _kept_reached(found: Outcomes, workload: Workload, contender: Contender) -> Reached | None:
    outcome = found.get(Run(workload, contender))
    if outcome is None or outcome.promises is None or outcome.promises.share_kept is None:
        return None
    kept = outcome.promises.share_kept
    return Reached(workload, f"{kept:.1%} of {outcome.promises.promised:,}", kept - KEPT)


def _whole_nodes_reached(found: Outcomes, workload: Workload, contender: Contender) -> Reached | None:
    ours, fifo = whole_nodes_p99(found.get(Run(workload, contender))), whole_nodes_p99(found.get(Run(workload, FIFO)))
    if ours is None or fifo is None or ours == fifo == 0.0:
        return None
    text = f"{text_from_seconds(ours)}, fifo {text_from_seconds(fifo)}"
    return Reached(workload, text, (fifo - ours) / max(fifo, HARDLY))


def whole_nodes_p99(outcome: Outcome | None) -> float | None:
    """The p99 waiting of jobs that take whole nodes."""
    return None if outcome is None else outcome.sizes[WHOLE_NODES].p99
