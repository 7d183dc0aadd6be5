"""What client commands import: they are run often, so nothing that they do not need."""

from __future__ import annotations

import subprocess
import sys

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
        ("hold", "train-1"),
        ("history",),
        ("nodes",),
        ("submit", "--name", "train", "--", "true"),
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
