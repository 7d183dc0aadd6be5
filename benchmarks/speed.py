"""Speed of Refold as a table: `python -m benchmarks.speed [--quick] [--only NAME] [--json FILE] [--markdown]`."""

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
    "philly": ("FIFO compared with AccaSim", philly.rows),
    "easy": ("EASY backfill compared with AccaSim", easy.rows),
    "decisions": ("time per backfill decision, by queue length", decisions.rows),
    "helios": ("general simulator compared with bare event loops", helios.rows),
    "replay": ("compiled replay of PAI at full load", replay.rows),
    "growth": ("scaling: ten times the jobs, ten times the nodes", growth.rows),
    "startup": ("start-up time", startup.rows),
    "policies": ("for information: all policies and placement rules", policies.rows),
}


def main() -> None:
    """Run the selected cases and print their tables. The exit status is 0 even if goals are missed."""
    options = _parse_options()
    results: dict[str, list[Row]] = {}
    if not options.markdown:
        print(describe_machine())
    for name in options.only or CASES:
        title, rows = CASES[name]
        print(f"measuring {name}: {title} …", file=sys.stderr, flush=True)
        results[name] = rows(options.quick)
        if options.markdown:
            print(f"\n### {title[0].upper()}{title[1:]}\n\n{as_markdown(results[name])}", flush=True)
        else:
            print(f"\n{name}: {title}\n{as_text(results[name])}", flush=True)
    if options.json:
        cases = {name: as_plain(rows) for name, rows in results.items()}
        document = {"machine": describe_machine(), "quick": options.quick, "cases": cases}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="Measure the speed of Refold.")
    parser.add_argument("--quick", action="store_true", help="run smaller cases, to check that everything works")
    parser.add_argument(
        "--only", action="append", choices=CASES, metavar="NAME", help=f"run one case: {', '.join(CASES)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a JSON file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables for README.md")
    return parser.parse_args()


def describe_machine() -> str:
    """Return the architecture and the versions of Python and the libraries."""
    libraries = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "msgspec", "accasim", "simpy"))
    return f"{platform.machine()}, Python {platform.python_version()}, {libraries}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
