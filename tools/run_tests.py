"""Run pytest; tests that fail run once more, alone, and those that pass then are named in the last lines.

Many tests start daemons, servers and training processes, and wait for them. On a busy machine one of thousands may be
late. A test that fails twice has failed; one that passes alone is reported, so that it can be mended. Nothing runs
again where more than `MOST_RERUN` tests have failed: then it is not the machine.

    python tools/run_tests.py [pytest's arguments]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST_RERUN = 5
FAILED_TESTS = 1
"""pytest's exit status when tests have failed, rather than pytest itself."""

LAST_FAILED = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def _run(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed() -> list[str]:
    try:
        return sorted(json.loads(LAST_FAILED.read_text()))
    except (OSError, ValueError):
        return []


def _selection(arguments: list[str]) -> list[str]:
    """Return `-m` with its expression: without it, tests with some markers are left out."""
    if "-m" not in arguments:
        return []
    place = arguments.index("-m")
    return arguments[place : place + 2]


def main(arguments: list[str]) -> int:
    """Run the tests, and those that have failed once more; return the exit status."""
    LAST_FAILED.unlink(missing_ok=True)
    status = _run(*arguments)
    failed = _failed()
    if status != FAILED_TESTS or not 0 < len(failed) <= MOST_RERUN:
        return status
    print(f"\n{len(failed)} failed; once more, alone:", *failed, sep="\n  ", flush=True)
    status = _run(*_selection(arguments), "--numprocesses", "0", "--last-failed", *failed)
    passed = sorted(set(failed) - set(_failed()))
    if status == 0 and passed:
        print("failed at first and passed alone, to be mended:", *passed, sep="\n  ", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
