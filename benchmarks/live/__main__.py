"""`python -m benchmarks.live`: how fast the live scheduler is, as a table."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.live import answering, long_past, resting, starting, submitting
from benchmarks.table import Row, as_markdown, as_plain, as_text

CASES = {
    "starting": starting.rows,
    "submitting": submitting.rows,
    "resting": resting.rows,
    "long-past": long_past.rows,
    "answering": answering.rows,
}


def main() -> None:
    """Measure the cases that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="one case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="less of everything: does it still run?")
    parser.add_argument("--json", action="store_true", help="the numbers, for programs")
    parser.add_argument("--markdown", action="store_true", help="the table of benchmarks/README.md")
    asked = parser.parse_args()
    rows: list[Row] = []
    for name in asked.only or CASES:
        print(f"measuring {name} …", file=sys.stderr)
        rows += CASES[name](asked.quick)
    print(json.dumps(as_plain(rows), indent=2) if asked.json else (as_markdown if asked.markdown else as_text)(rows))


if __name__ == "__main__":
    main()
