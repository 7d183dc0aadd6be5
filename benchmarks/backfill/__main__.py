"""Simulate backfill on real traces: `python -m benchmarks.backfill [--quick] [--again] [--write]`.

Thirteen policy configurations on ten workloads take half an hour of CPU time. The result of every run is stored under
build/, so an interrupted benchmark can be resumed. `--quick`: 2,000 jobs of each trace, a minute or two. `--write`
writes benchmarks/backfill/backfill.md, its charts and the table of all runs.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.backfill import experiment
from benchmarks.backfill.page import RUNS, charts, page, runs_table
from benchmarks.backfill.runs import run_all, stored_results
from benchmarks.result_page import page_parser, publish

PAGE = Path(__file__).with_name("backfill.md")


def main() -> None:
    """Run what has no stored result, and print the page; write it with --write."""
    parser = page_parser("benchmarks.backfill", __doc__, "the page and its charts to benchmarks/backfill")
    parser.add_argument("--quick", action="store_true", help="run 2,000 jobs of each trace; write nothing")
    parser.add_argument("--again", action="store_true", help="repeat runs that have stored results")
    parser.add_argument("--stored", action="store_true", help="run nothing; print a page of the stored results")
    options = parser.parse_args()
    if message := experiment.missing_files():
        print(message)
        return
    workloads = experiment.QUICK if options.quick else experiment.WORKLOADS
    results = stored_results(workloads) if options.stored else run_all(workloads, again=options.again)
    options.write = options.write and not options.quick
    beside = {**charts(results, workloads), RUNS: runs_table(results, workloads)} if options.write else {}
    publish(options, PAGE, page(results, workloads), charts=beside)


if __name__ == "__main__":
    main()
