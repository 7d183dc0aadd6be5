"""The table of how fast Refold is: `python -m benchmarks.speed [--quick] [--only NAME] [--json FILE] [--markdown]`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.cases import decisions, easy, growth, helios, philly, policies, replay, startup
from benchmarks.table import Row, as_markdown, as_plain, as_text

CASES: dict[str, tuple[str, Callable[[bool], list[Row]]]] = {
    "philly": ("general simulator beside AccaSim", philly.rows),
    "easy": ("EASY backfill beside AccaSim's", easy.rows),
    "decisions": ("one decision of backfill, by how many wait", decisions.rows),
    "helios": ("general simulator beside bare event loops", helios.rows),
    "replay": ("compiled replay of PAI at full load", replay.rows),
    "growth": ("ten times the jobs, ten times the nodes", growth.rows),
    "startup": ("before anything happens", startup.rows),
    "policies": ("for information: every policy and placement", policies.rows),
}


def main() -> None:
    """Measure, print, and end with 0 whatever was missed: a benchmark is no test."""
    asked = _arguments()
    found: dict[str, list[Row]] = {}
    if not asked.markdown:
        print(machine())
    for name in asked.only or CASES:
        title, rows = CASES[name]
        print(f"measuring {name}: {title} …", file=sys.stderr, flush=True)
        found[name] = rows(asked.quick)
        if asked.markdown:
            print(f"\n### {title[0].upper()}{title[1:]}\n\n{as_markdown(found[name])}", flush=True)
        else:
            print(f"\n{name}: {title}\n{as_text(found[name])}", flush=True)
    if asked.json:
        cases = {name: as_plain(rows) for name, rows in found.items()}
        asked.json.write_text(json.dumps({"machine": machine(), "quick": asked.quick, "cases": cases}, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="How fast Refold is.")
    parser.add_argument("--quick", action="store_true", help="smaller cases, to see that everything runs")
    parser.add_argument("--only", action="append", choices=CASES, metavar="NAME", help=f"one of {', '.join(CASES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file, too")
    parser.add_argument("--markdown", action="store_true", help="print tables for README.md")
    return parser.parse_args()


def machine() -> str:
    """What it was measured on."""
    libraries = ", ".join(f"{name} {_version(name)}" for name in ("numba", "numpy", "msgspec", "accasim", "simpy"))
    return f"{platform.machine()}, Python {platform.python_version()}, {libraries}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(absent)"


if __name__ == "__main__":
    main()
