"""Generate docs/images/live.svg, the real output of commands in a terminal: `python -m benchmarks.live.screenshot`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks.live.daemon import Daemon, run_daemon

TARGET = Path(__file__).parents[2] / "docs" / "images" / "live.svg"
COLUMNS = 108

CLUSTER = """
cluster: {nodes: {a: 4, b: 4}}
tenants:
  vision: {quota_gpus: 4, limit_gpus: 5}
  speech: {quota_gpus: 4}
"""

SLEEP = ["sleep", "600"]


def main() -> None:
    """Start a daemon on a small cluster with running, waiting and blocked jobs, and record four commands."""
    argparse.ArgumentParser(prog="python -m benchmarks.live.screenshot", description=__doc__).parse_args()
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=StringIO())
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "refold.yaml"
        config.write_text(CLUSTER)
        with run_daemon("--config", str(config), "--policy", "easy") as daemon:
            _submit_jobs(daemon)
            for command in (("queue",), ("why", "tune-4"), ("tenants",), ("top", "--once")):
                console.print(Text(f"$ refold {' '.join(command)}", "bold green"))
                console.print(Text.from_ansi(_run_command(daemon, command).rstrip()))
                console.print()
            for job in daemon.client.queue():
                daemon.client.cancel(job.id)
    TARGET.write_text(console.export_svg(title="refold"), encoding="utf-8")
    print(f"wrote {TARGET}")


def _submit_jobs(daemon: Daemon) -> None:
    submit = daemon.client.submit
    submit(name="train", command=SLEEP, gpus=4, tenant="vision", time_limit=4 * 3600)
    submit(name="whisper", command=SLEEP, gpus=2, tenant="speech", time_limit=2 * 3600)
    submit(name="notebook", command=SLEEP, gpu_share=0.5, tenant="speech", time_limit=3600)
    submit(name="tune", command=SLEEP, gpus=4, tenant="speech", time_limit=7200)
    submit(name="segment", command=SLEEP, gpus=2, tenant="vision")
    submit(name="eval", command=SLEEP, gpu_share=0.5, tenant="speech", time_limit=600)
    daemon.client.drain("b", gpu=3, reason="XID 79: the GPU has fallen off the bus")
    time.sleep(1.5)


def _run_command(daemon: Daemon, command: tuple[str, ...]) -> str:
    environment = {**daemon.environment, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    arguments = [sys.executable, "-m", "refold.cli.app", *command]
    return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
