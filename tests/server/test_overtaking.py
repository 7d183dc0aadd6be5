"""A job for all slots starts although small jobs keep arriving."""

from __future__ import annotations

import time
from pathlib import Path

from real_daemon import RealDaemon


def test_a_job_for_all_slots_starts_while_small_ones_keep_arriving(tmp_path: Path) -> None:
    """A small job of two seconds arrives every half second, so that the four slots are never free at the same time."""
    with RealDaemon(tmp_path / "state", slots=4, policy="refold") as daemon, daemon.client() as client:
        wide = ""
        for number in range(80):
            client.submit(name="small", command=["sleep", "2"], export="NONE")
            if number == 4:
                wide = client.submit(name="wide", command=["true"], gpus=4, export="NONE").id
            if wide and client.job(wide).state != "waiting":
                break
            time.sleep(0.45)
        assert client.job(wide).state != "waiting"
