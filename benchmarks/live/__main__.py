"""Measure the daemon and print a table: `python -m benchmarks.live`."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.live import api_call, estimates, history, idle, start_latency, submissions
from benchmarks.table import Row, as_markdown, as_plain, as_text

CASES = {
    "start-latency": start_latency.rows,
    "submissions": submissions.rows,
    "idle": idle.rows,
    "history": history.rows,
    "estimates": estimates.rows,
    "api-call": api_call.rows,
}


def main() -> None:
    """Measure the selected cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="run one case; can be repeated")
    parser.add_argument("--quick", action="store_true", help="run smaller cases, to check that everything works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print the Markdown table of benchmarks/README.md")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or CASES:
        print(f"measuring {name} …", file=sys.stderr)
        rows += CASES[name](options.quick)
    if options.json:
        print(json.dumps(as_plain(rows), indent=2))
    else:
        print(as_markdown(rows) if options.markdown else as_text(rows))


if __name__ == "__main__":
    main()
