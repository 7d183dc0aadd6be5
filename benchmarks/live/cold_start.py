"""The first start on a fresh machine, with an empty kernel cache: time until the API answers and until a job runs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.live.daemon import run_daemon
from benchmarks.table import Row, at_most

ANSWER_GOAL_SECONDS = 3.0
FIRST_JOB_GOAL_SECONDS = 10.0


def rows(quick: bool) -> list[Row]:
    """Measure each policy once; without `quick` also until the policy is compiled."""
    return [row for policy in ("fifo", "easy") for row in _rows(policy, quick)]


def _rows(policy: str, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        began = time.monotonic()
        with run_daemon("--slots", "2", "--policy", policy, cache=Path(cache)) as daemon:
            answered = time.monotonic() - began
            daemon.client.wait(daemon.client.submit(command=["true"], name="first").id, 60)
            ended = time.monotonic() - began
            while not quick and daemon.client.info().policy_note:
                time.sleep(0.1)
            compiled = time.monotonic() - began
    name = f"first start, {policy}"
    measured = [
        at_most(f"{name}: until the API answers", answered, ANSWER_GOAL_SECONDS, f"{answered:.1f} s", "s"),
        at_most(f"{name}: until a first job has run", ended, FIRST_JOB_GOAL_SECONDS, f"{ended:.1f} s", "s"),
    ]
    return (
        measured if quick else [*measured, Row(f"{name}: until the policy is compiled", f"{compiled:.0f} s", compiled)]
    )
