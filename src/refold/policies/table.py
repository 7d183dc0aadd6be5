"""Table of the built-in policies. A new one is a file in this package and an entry here.

Your own policy need not be listed: `--policy path/to/mine.py` loads a file, and every policy file in the folder that
REFOLD_POLICIES names is listed and available by its name.
"""

from __future__ import annotations

from typing import NamedTuple


class PolicyEntry(NamedTuple):
    """Module, class and one-line summary of a policy.

    `oracle`: it uses the actual run times of jobs. `preempts`: it stops running jobs. `compared_by_default`: `refold
    compare` includes it if no policies are named. `chooses_plans`: it gives jobs other plans than their own.
    """

    module: str
    class_name: str
    summary: str
    oracle: bool = False
    preempts: bool = False
    compared_by_default: bool = True
    chooses_plans: bool = False


def _backfill(class_name: str, summary: str) -> PolicyEntry:
    return PolicyEntry("refold.policies.backfill.backfill", class_name, summary, preempts=True)


def _rubick(class_name: str, summary: str) -> PolicyEntry:
    return PolicyEntry(
        "refold.policies.published.rubick.policies",
        class_name,
        summary,
        preempts=True,
        compared_by_default=class_name == "Rubick",
        chooses_plans=class_name in ("Rubick", "RubickE"),
    )


def _published(module: str, class_name: str, summary: str) -> PolicyEntry:
    """Return the entry of a published scheduler for comparison, which has to be named explicitly."""
    return PolicyEntry(
        f"refold.policies.published.{module}", class_name, summary, preempts=True, compared_by_default=False
    )


POLICIES: dict[str, PolicyEntry] = {
    "fifo": PolicyEntry("refold.policies.queueing.fifo", "Fifo", "Strict order of arrival."),
    "fifo-skip": PolicyEntry(
        "refold.policies.queueing.fifo",
        "FifoSkip",
        "Order of arrival; jobs that do not fit are skipped.",
    ),
    "sjf": PolicyEntry("refold.policies.queueing.sjf", "Sjf", "Shortest job first, by known durations.", oracle=True),
    "srtf": PolicyEntry(
        "refold.policies.queueing.srtf", "Srtf", "Shortest remaining time first.", oracle=True, preempts=True
    ),
    "las": PolicyEntry(
        "refold.policies.queueing.las", "Las", "Least attained service, two queues (Tiresias).", preempts=True
    ),
    "drf": PolicyEntry("refold.policies.queueing.drf", "Drf", "Tenant with the smallest dominant share first."),
    "easy": _backfill("Easy", "EASY backfill: the first job in the queue has a reservation."),
    "conservative": _backfill("Conservative", "Conservative backfill: the first 500 waiting jobs have reservations."),
    "slurm": PolicyEntry(
        "refold.policies.slurm.policy",
        "Slurm",
        "Slurm's own order: priorities, limits, and backfill by time limits.",
        compared_by_default=False,
    ),
    "refold": PolicyEntry(
        "refold.policies.refold.policy",
        "Refold",
        "Least remaining work first, each job at its most profitable size.",
        preempts=True,
        chooses_plans=True,
    ),
    "rubick": _rubick("Rubick", "Resources and plans to the jobs that gain most (MLSys'25)."),
    "rubick-e": _rubick("RubickE", "Like rubick, but changes plans only."),
    "rubick-r": _rubick("RubickR", "Like rubick, but changes resources only."),
    "rubick-n": _rubick("RubickN", "Like rubick, but changes neither plans nor resources."),
    "sia": _published("sia", "Sia", "Goodput by integer programming, in rounds (SOSP'23)."),
    "pollux": _published("pollux", "Pollux", "Goodput by genetic search, in rounds (OSDI'21)."),
    "gavel": _published("gavel", "Gavel", "Max-min fair time shares by linear programming, in rounds (OSDI'20)."),
    "synergy": _published("synergy", "Synergy", "CPUs allocated by sensitivity, in rounds (OSDI'22)."),
    "antman": _published(
        "antman", "AntMan", "Guaranteed jobs get their request, best-effort jobs what is left (OSDI'20)."
    ),
    "tiresias": _published("tiresias", "Tiresias", "Least attained service, K queues or Gittins index (NSDI'19)."),
    "optimus": _published("optimus", "Optimus", "Each GPU to the job whose run time it shortens most (EuroSys'18)."),
}
"""All built-in policies by name."""
