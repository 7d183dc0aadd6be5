"""What client commands import: they are run often, so nothing that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_service import OWNER, FakeServer

HEAVY = ("asyncio", "numpy", "pydantic", "rich", "scipy", "uvicorn", "yaml")
"""Packages that take longer to import than the rest of a command that asks the daemon."""

SCRIPT = """
import sys
sys.argv = ["refold", *sys.argv[1:]]
from refold.cli.app import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("queue",),
        ("queue", "--tenant", "default", "--all"),
        ("cancel", "train-1"),
        ("history",),
        ("nodes",),
    ],
    ids=" ".join,
)
def test_a_command_that_asks_the_daemon_imports_nothing_heavy(
    words: tuple[str, ...], served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.client import Client

    Client(served.address, OWNER).submit(name="train", command=["true"])
    run = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True)
    assert run.stdout
    imported = set(run.stderr.splitlines()[-1].split())
    assert imported.isdisjoint(HEAVY)
    assert "refold" in imported
    assert ("typer" in imported) == (words[0] != "queue")


def test_a_comparison_imports_no_solvers_and_does_not_validate_plain_options(tmp_path: Path) -> None:
    words = ["compare", "demo", "--limit", "5", "--policies", "fifo", "--out", "report"]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "report: report/report.html" in run.stdout
    assert set(run.stderr.splitlines()[-1].split()).isdisjoint({"asyncio", "pydantic", "rich", "scipy", "uvicorn"})


IN_SMALL_PAGES = """
import os
from refold.cli.commands.serve import _take_memory_in_small_pages
_take_memory_in_small_pages()
import numpy
table = numpy.zeros(1 << 26, numpy.uint8)
table[:: 1 << 22] = 1
huge = [int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")]
print(max(huge), "NUMPY_MADVISE_HUGEPAGE" in os.environ)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux lists the pages of a process")
def test_the_daemon_takes_memory_in_small_pages_and_does_not_tell_its_jobs_to() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "NUMPY_MADVISE_HUGEPAGE"}
    run = subprocess.run([sys.executable, "-c", IN_SMALL_PAGES], capture_output=True, text=True, check=True, env=kept)
    assert run.stdout.split() == ["0", "False"]
