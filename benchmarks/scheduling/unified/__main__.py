"""Measure `refold` on all kinds of workloads: `python -m benchmarks.scheduling.unified [--only philly] [--quick] …`.

A table with one row for each target: value (mean of draws), spread, target, best other policy, met or missed; then all
policies on each workload, which are not on the page. The exit status is 1 if a target is missed. `--write` adds the
figures to those in docs/results/unified.json, where they replace earlier ones of the same workload and policy, and
writes docs/results/unified.md and targets.md beside this file. `--quick` shows the targets of the workloads that it
does not run as well, with the figures in that file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.accuracy.tables import data_folder
from benchmarks.result_page import FOLDER, measurement_parser, publish
from benchmarks.scheduling.unified.page import all_policies, as_plain, page, target_results, targets_page
from benchmarks.scheduling.unified.runs import Results, merge, plan_runs, read_results, run_all, write_results
from benchmarks.scheduling.unified.workload import Workload
from benchmarks.scheduling.unified.workloads import workloads
from benchmarks.workloads import HELIOS, OPENB, PAI, PHILLY, missing
from refold.cli.options import parse_settings
from refold.errors import RefoldError
from refold.simulator.registry import make_policy

PAGE, FIGURES = FOLDER / "unified.md", FOLDER / "unified.json"
TARGETS = Path(__file__).with_name("targets.md")
QUICK_DRAWS = 2


def _parser() -> argparse.ArgumentParser:
    parser = measurement_parser(
        "benchmarks.scheduling.unified",
        __doc__,
        f"run only the first workload of each kind, with {QUICK_DRAWS} draws; a few minutes",
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="run only this workload, or all whose names begin with NAME-"
    )
    parser.add_argument("--policies", default="", help="run only these policies, comma-separated")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="setting of refold")
    parser.add_argument("--tuning", action="store_true", help="run the slices and draws for tuning")
    parser.add_argument("--draws", type=int, help="run at most this many draws of each workload")
    parser.add_argument("--workers", type=int, choices=(1, 2), default=1, help="number of processes")
    parser.add_argument(
        "--from", action="append", type=Path, metavar="FILE", dest="stored", help="run nothing; read files of --json"
    )
    return parser


def _choose(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Workload]:
    available = workloads(options.tuning)
    names = options.only or list(available)
    for name in names:
        if not any(_matches(name, workload) for workload in available):
            parser.error(f"no workload {name!r}; available: {', '.join(available)}")
    chosen = [one for one in available.values() if any(_matches(name, one.name) for name in names)]
    return [one for one in chosen if one.quick] if options.quick and not options.only else chosen


def _matches(name: str, workload: str) -> bool:
    return workload == name or workload.startswith(f"{name}-")


def _settings(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    try:
        settings = parse_settings(options.set)
        make_policy("refold", settings)
    except RefoldError as error:
        parser.error(str(error))
    return settings


def main() -> None:
    """Run what the options select and print the page."""
    parser = _parser()
    options = parser.parse_args()
    if data_folder() is None or missing(HELIOS, PHILLY, PAI, OPENB):
        print("the published traces are not available (see benchmarks/README.md)")
        return
    chosen = _choose(parser, options)
    if options.write and (options.set or options.tuning or options.quick):
        parser.error(
            "--write is for the settings, slices and draws that are reported: omit --set, --tuning and --quick"
        )
    draws = QUICK_DRAWS if options.quick and options.draws is None else options.draws
    policies = options.policies.split(",") if options.policies else []
    runs = plan_runs(chosen, options.tuning, policies, draws, _settings(parser, options))

    completes = options.write or (options.quick and not (options.only or options.tuning or options.set))
    earlier = read_results([FIGURES]) if completes and FIGURES.exists() else {}

    def save(results: Results) -> None:
        if options.json:
            options.json.write_text(json.dumps(as_plain(chosen, results)), encoding="utf-8")
        if options.write:
            write_results(FIGURES, merge(earlier, results))

    ran = chosen
    results = read_results(options.stored) if options.stored else run_all(runs, options.workers, save)
    save(results)
    if completes:
        chosen, results = list(workloads().values()), merge(earlier, results)
    publish(options, TARGETS, targets_page(chosen, results))
    publish(options, PAGE, page(chosen, results), as_plain(chosen, results))
    if not options.write:
        print(all_policies(ran, results))
    rows = [row for workload in chosen for row in target_results(workload, results.get(workload.name, {}))]
    sys.exit(any(row.verdict == "missed" for row in rows))


if __name__ == "__main__":
    main()
