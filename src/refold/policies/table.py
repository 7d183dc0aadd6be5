"""The policies, one file each, and the table of their names. A new one is a file and a line here.

A policy of your own need not be here: `--policy path/to/mine.py` takes the file as it is, and every file of a
folder named by REFOLD_POLICIES is listed and can be called by its name.
"""

from __future__ import annotations

from typing import NamedTuple


class PolicyEntry(NamedTuple):
    """Where a policy is, and what it does in one line. `usual`: it is compared where nobody says with what."""

    module: str
    class_name: str
    summary: str
    oracle: bool = False
    preempts: bool = False
    usual: bool = True


def _backfill(class_name: str, summary: str) -> PolicyEntry:
    return PolicyEntry("refold.policies.backfill.backfill", class_name, summary, preempts=True)


def _rubick(class_name: str, summary: str) -> PolicyEntry:
    return PolicyEntry(
        "refold.policies.reshaping.rubick", class_name, summary, preempts=True, usual=class_name == "Rubick"
    )


def _beside(module: str, class_name: str, summary: str) -> PolicyEntry:
    """A published scheduler to compare with: asked for by name."""
    return PolicyEntry(f"refold.policies.published.{module}", class_name, summary, preempts=True, usual=False)


POLICIES: dict[str, PolicyEntry] = {
    "fifo": PolicyEntry("refold.policies.queueing.fifo", "Fifo", "strict order of arrival"),
    "fifo-skip": PolicyEntry(
        "refold.policies.queueing.fifo", "FifoSkip", "order of arrival; what has no place is passed over"
    ),
    "sjf": PolicyEntry("refold.policies.queueing.sjf", "Sjf", "shortest job first, durations known", oracle=True),
    "srtf": PolicyEntry(
        "refold.policies.queueing.srtf", "Srtf", "shortest remaining time first", oracle=True, preempts=True
    ),
    "las": PolicyEntry(
        "refold.policies.queueing.las", "Las", "least attained service, two queues (Tiresias)", preempts=True
    ),
    "drf": PolicyEntry("refold.policies.queueing.drf", "Drf", "the tenant with the smallest dominant share first"),
    "easy": _backfill("Easy", "backfill: the first in the queue has a reservation"),
    "conservative": _backfill("Conservative", "backfill: everybody has a reservation"),
    "refold": PolicyEntry(
        "refold.policies.reshaping.refold", "Refold", "least work left first, at the size that pays", preempts=True
    ),
    "rubick": _rubick("Rubick", "plans and amounts to whoever gains most (MLSys'25)"),
    "rubick-e": _rubick("RubickE", "the same, plans only"),
    "rubick-r": _rubick("RubickR", "the same, amounts only"),
    "rubick-n": _rubick("RubickN", "the same, neither"),
    "sia": _beside("sia", "Sia", "goodput by an integer program, in rounds (SOSP'23)"),
    "pollux": _beside("pollux", "Pollux", "goodput by a genetic search, in rounds (OSDI'21)"),
    "gavel": _beside("gavel", "Gavel", "max-min shares of time by a linear program, in rounds (OSDI'20)"),
    "synergy": _beside("synergy", "Synergy", "CPUs tuned by sensitivity, in rounds (OSDI'22)"),
    "antman": _beside("antman", "AntMan", "guaranteed by amount, best-effort on what is left (OSDI'20)"),
    "tiresias": _beside("tiresias", "Tiresias", "least attained service, K queues or Gittins (NSDI'19)"),
    "optimus": _beside("optimus", "Optimus", "each GPU to whoever saves the most time by it (EuroSys'18)"),
    "optimal": PolicyEntry(
        "refold.research.optimal",
        "Optimal",
        "the most throughput that there can be; small clusters only",
        preempts=True,
        usual=False,
    ),
}
"""The literal table."""
