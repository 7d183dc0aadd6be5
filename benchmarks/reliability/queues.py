"""Queues of the daemons that are measured: with which policies, and how they are filled."""

from __future__ import annotations

import os
from pathlib import Path

from refold.client import Client
from refold.client.api import Submission
from refold.client.api.calls import MAX_SUBMISSIONS

POLICIES = ("fifo", "easy", "refold")


def fill_queue(client: Client, jobs: int, slots: int = 1, first: list[str] | None = None) -> None:
    """Submit jobs that wait, behind one per slot that runs: `first`, or for an hour."""
    client.submit_all([Submission(name="first", command=first or ["sleep", "3600"]) for _ in range(slots)])
    for begin in range(0, jobs, MAX_SUBMISSIONS):
        count = min(MAX_SUBMISSIONS, jobs - begin)
        client.submit_all([Submission(name="waits", command=["true"]) for _ in range(count)])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
