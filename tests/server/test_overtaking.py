"""A job for all slots starts although small jobs keep arriving."""

from __future__ import annotations

import time
from pathlib import Path

from real_daemon import RealDaemon


def test_a_job_for_all_slots_starts_while_small_ones_keep_arriving(tmp_path: Path) -> None:
    """Small jobs take longer than the gap between them, so that both slots are hardly ever free at the same time."""
    with RealDaemon(tmp_path / "state", slots=2) as daemon, daemon.client() as client:
        wide = ""
        for number in range(120):
            client.submit(name="small", command=["sleep", "1"], export="NONE")
            if number == 4:
                wide = client.submit(name="wide", command=["true"], gpus=2, export="NONE").id
            if wide and client.job(wide).state != "queued":
                break
            time.sleep(0.55)
        assert client.job(wide).state != "queued"
