"""Measure Refold on Kubernetes beside kube-scheduler: `python -m benchmarks.kubernetes`.

Needs the servers of `make engines-kubernetes`. The order of the schedulers alternates from round to round. `--faults`
counts instead what goes wrong while daemons, bindings, watches or the API server fail; `--steady` lets pods arrive at a
steady rate; `--replay` plays a part of the Philly trace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.kubernetes import replay, steady
from benchmarks.kubernetes.faults import (
    CLEAN_UP_SECONDS,
    FAULTS,
    PODS,
    Outcome,
    measure as measure_fault,
    measure_takeovers,
)
from benchmarks.kubernetes.kubelets import describe
from benchmarks.kubernetes.placing import SCHEDULERS, WITH_RACKS, Placed, Size, available, measure


def find_servers(*options: str) -> Path:
    """Return the folder with the programs of Kubernetes. `options`: `--all` if kube-scheduler is needed as well."""
    tool = Path(__file__).parents[2] / "tools" / "build_kubernetes.py"
    command = [sys.executable, str(tool), *options, "--find"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise SystemExit("run `make engines-kubernetes` first")
    return Path(found.stdout.strip())


def main() -> None:
    """Measure all schedulers and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="nodes of eight GPUs (default: 100)")
    parser.add_argument("--gangs", type=int, default=100, help="gangs of eight pods with one GPU (default: 100)")
    parser.add_argument("--pods", type=int, default=8, help="pods of a gang (default: 8)")
    parser.add_argument("--racks", type=int, default=0, help="racks, of which each gang requires one (default: none)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each scheduler (default: 3)")
    parser.add_argument("--only", choices=SCHEDULERS, action="append", help="measure one scheduler; can be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--faults", type=int, metavar="N", help="let something fail N times, for each kind of failure")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="one kind of failure; can be repeated")
    parser.add_argument("--takeovers", type=int, metavar="N", help="kill the leader of two replicas N times")
    parser.add_argument(
        "--steady", type=float, metavar="RATE", help="let pods arrive, so many per second, for --seconds"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of --steady (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the failures (default: 0)")
    parser.add_argument("--replay", action="store_true", help="play a part of the Philly trace, and simulate it")
    parser.add_argument(
        "--speed-up", type=float, action="append", help="speed of --replay; can be repeated (default: 180 and 360)"
    )
    options = parser.parse_args()
    needs_peers = options.only != ["refold"] and options.takeovers is None
    assets = find_servers(*(["--all"] if needs_peers else []))
    if options.takeovers is not None:
        seconds = measure_takeovers(assets, options.takeovers)
        print(f"takeover: median {median(seconds):.1f} s, longest {max(seconds):.1f} s, {len(seconds)} times")
        return
    if options.faults is not None:
        outcomes: list[Outcome] = []
        for fault in options.fault or FAULTS:
            print(f"{fault} …", file=sys.stderr)
            outcomes.append(measure_fault(assets, fault, options.faults, options.seed))
        print("\n".join(fault_table(outcomes)))
        return
    if options.steady is not None:
        print("\n".join(steady.table(steady.measure(assets, options.nodes, options.steady, options.seconds))))
        return
    if options.replay:
        speeds = options.speed_up or [180.0, 360.0]
        played = {speed: replay.played(assets, replay.PHILLY_PART, speed) for speed in speeds}
        print(f"{describe(assets)}.\n")
        print("\n".join(replay.table(replay.PHILLY_PART, replay.simulated(replay.PHILLY_PART), played)))
        return
    size = Size(options.nodes, options.gangs, options.pods, options.racks)
    names = options.only or (list(WITH_RACKS) if size.racks else available(assets))
    found: list[Placed] = []
    for number in range(options.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            print(f"round {number + 1}: {name} …", file=sys.stderr)
            found.append(measure(assets, name, size))
    if options.json:
        print(json.dumps([placed._asdict() for placed in found], indent=2))
    else:
        print("\n".join([f"{describe(assets)}.", "", *table(found, names, size)]))


def table(found: list[Placed], names: list[str], size: Size) -> list[str]:
    """Return a Markdown table: medians, with the smallest and largest value."""
    rounds = len(found) // len(names)
    gangs = f"{size.gangs:,} gangs of {size.pods:,} pods with one GPU"
    gangs += f", each in one of {size.racks} racks," if size.racks else ""
    lines = [
        f"{gangs} on {size.nodes:,} nodes of eight GPUs: median of {rounds} (smallest to largest)",
        "",
        "| scheduler | bindings per second | start to last binding, s | gangs bound as a whole | in part | split |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        own = [placed for placed in found if placed.scheduler == name]
        speeds, totals = [placed.per_second for placed in own], [placed.total for placed in own]
        whole, partial = [placed.whole for placed in own], [placed.partial for placed in own]
        lines.append(
            f"| {name} | {spread(speeds)} | {spread(totals)} | {min(whole)} to {max(whole)} |"
            f" {min(partial)} to {max(partial)} | {max(placed.split for placed in own) if size.racks else ''} |"
        )
    return lines


def fault_table(outcomes: list[Outcome]) -> list[str]:
    """Return a Markdown table of what went wrong."""
    return [
        f"Gangs of {PODS} pods. The clean-up time is {CLEAN_UP_SECONDS:g} s.",
        "",
        "| failure | times | gangs bound in part beyond the clean-up time | longest, s | GPUs allocated twice"
        " | pods forgotten |",
        "|---|---|---|---|---|---|",
        *(
            f"| {found.fault} | {found.times} | {found.half_bound} | {found.longest:.1f} | {found.allocated_twice} |"
            f" {found.forgotten} |"
            for found in outcomes
        ),
    ]


def spread(values: list[float]) -> str:
    """Format a median and the range around it."""
    return f"{median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"


if __name__ == "__main__":
    main()
