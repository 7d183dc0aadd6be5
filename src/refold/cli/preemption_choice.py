"""Ask the owner of a cluster, on a terminal, whether jobs may be preempted, with its costs and benefits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from refold.cli.daemon_client import make_client
from refold.cli.views import print_line, print_paragraph, progress
from refold.errors import RefoldError
from refold.model import DAY, HOUR, MINUTE

if TYPE_CHECKING:
    from refold.model import Preemption, PreemptionOutlook

MIN_JOBS = 50
"""Fewer jobs of one's own say little."""

RULES: tuple[tuple[Preemption, str], ...] = (
    ("consent", "best-effort and reshapable jobs, and those that save checkpoints"),
    ("always", "all that do not refuse; jobs without checkpoints start from the beginning"),
    ("never", "no job is interrupted; short jobs wait longer for long ones"),
)


def choose_preemption(outlook: PreemptionOutlook | None = None) -> Preemption | None:
    """Print the costs and benefits of preemption, and ask on a terminal which rule applies; None: not asked.

    `outlook`: from the owner's own jobs; by default from the demo workload.
    """
    outlook = outlook or demo_outlook()
    print_line("May jobs be stopped or reshaped for others (preemption)?")
    for rule, meaning in RULES:
        print_line(f"  {rule:8} {meaning}")
    simulated = f"Simulated on {outlook.history} under policy {outlook.policy}, 30 s to stop and 2 min to restart."
    print_paragraph(f"{outlook.sentence} {simulated}")
    if not is_on_terminal():
        print_paragraph("It is `consent`, unless refold.yaml has another value of `preemption` (docs/config.md).")
        return None
    while True:
        answer = typer.prompt("preemption", default="consent").strip().lower()
        for rule, _ in RULES:
            if answer and rule.startswith(answer):
                return rule
        print_line(f"{answer!r} is none of consent, always, never")


def is_on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def own_outlook() -> PreemptionOutlook | None:
    """Return the outlook for the jobs of the daemon that is running; None if there is none, or it has few jobs."""
    try:
        with progress("simulating preemption on the daemon's jobs"):
            outlook = make_client().preemption_outlook()
    except RefoldError:
        return None
    return outlook if outlook.jobs >= MIN_JOBS else None


def demo_outlook() -> PreemptionOutlook:
    """Return the outlook for the demo workload, as measured in docs/results/demo.md."""
    from refold.model import PreemptionOutcome, PreemptionOutlook

    return PreemptionOutlook(
        "the demo workload (92 GPUs)",
        "refold",
        1500,
        PreemptionOutcome("always", 1500, 58 * MINUTE + 8, 4 * DAY + 6 * HOUR, 388, 93.0),
        PreemptionOutcome("consent", 461, HOUR + 49 * MINUTE, 3 * DAY + 23 * HOUR, 116, 7.7),
        PreemptionOutcome("never", 0, 2 * HOUR + 26 * MINUTE, 4 * DAY + 5 * HOUR, 0, 0.0),
    )
