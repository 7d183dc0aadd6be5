"""Backfill on real traces: `python -m benchmarks.backfill [--quick] [--again] [--write]`.

Thirteen policies on ten workloads, half an hour of CPU time. Every run is kept under build/ when it is done, so
that it can be stopped and gone on with. `--quick`: 2,000 jobs of each trace, a minute or two. `--write` keeps
docs/results/backfill.md and its pictures.
"""

from __future__ import annotations

import argparse

from benchmarks.backfill import world
from benchmarks.backfill.page import page, pictures
from benchmarks.backfill.runs import kept, outcomes
from benchmarks.measure import REPOSITORY

PAGES = REPOSITORY / "docs" / "results"


def main() -> None:
    """Run what has not been run, print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.backfill", description=__doc__)
    words.add_argument("--quick", action="store_true", help="2,000 jobs of each trace; nothing is written")
    words.add_argument("--again", action="store_true", help="run also what has been kept")
    words.add_argument("--kept", action="store_true", help="run nothing: a page of what has been kept so far")
    words.add_argument("--write", action="store_true", help="keep the page and its pictures in docs/results")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    workloads = world.QUICK if asked.quick else world.WORKLOADS
    found = kept(workloads) if asked.kept else outcomes(workloads, again=asked.again)
    text = page(found, workloads)
    print(text)
    if asked.write and not asked.quick:
        (PAGES / "backfill.md").write_text(text, encoding="utf-8")
        for name, picture in pictures(found, workloads).items():
            (PAGES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
