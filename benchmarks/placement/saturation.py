"""GPU allocation at saturation: `python -m benchmarks.placement.saturation [--quick] [--seeds N] [--write] [--json F]`.

FGD's published experiment on openb: pods arrive in random order until they request 130 % of the GPUs; no pod leaves; a
pod that does not fit is rejected. *One by one*: each pod is placed on arrival. *Windows*: pods arrive in batches of
100, or all at once, and a rule sees the whole batch before placing it. `--write` writes the pages full_cluster.md and
saturation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import msgspec

from benchmarks.peers.fgd_published import FgdAsPublished
from benchmarks.placement import upper_bounds, workloads
from benchmarks.placement.confidence import Interval, interval, paired
from benchmarks.placement.result_cache import cached_results
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import markdown
from refold.model import WHOLE, Cluster, Demand, Job, Placement
from refold.placement import RULES, FreeResources, Placer

PAGE = Path(__file__).with_name("full_cluster.md")
FURTHER_TABLES = Path(__file__).with_name("saturation.md")
FURTHER_HEADING = """# Placement at saturation: further tables

Generated, with the method of [the page](full_cluster.md), by
`python -m benchmarks.placement.saturation --write`.

"""
SEEDS = 10
WHOLE_STREAM = 0
WINDOWS = (100, WHOLE_STREAM)
WINDOW_SEEDS = 5
LARGEST_FIRST = ", largest first"
"""Suffix of greedy rules that sort a window before placing it."""

AS_PUBLISHED = "fgd, as published"
"""FGD with its authors' scoring (`peers/fgd_published.py`)."""

MIN_GAP = 5e-4
"""If the gap between the best greedy rule and an upper bound is smaller, shares of it are not meaningful."""

ONE_BY_ONE = (*workloads.GREEDY, AS_PUBLISHED, *workloads.OURS)
IN_WINDOWS = (
    "first-fit",
    "fgd",
    AS_PUBLISHED,
    *(f"{rule}{LARGEST_FIRST}" for rule in ("best-fit", "fgd", AS_PUBLISHED)),
    *workloads.OURS,
)


class Run(msgspec.Struct, frozen=True):
    """One stream with one placement rule. `window`: number of pods placed together; 0: all."""

    variant: str
    rule: str
    window: int
    seed: int
    only_gpu_nodes: bool = False


class Allocated(msgspec.Struct, frozen=True):
    """Allocated share of the GPU capacity after requests for 100 % and for 130 % of it."""

    at_100: float
    at_130: float


class UpperBounds(msgspec.Struct, frozen=True):
    """Upper bounds of the allocation for one stream, see `upper_bounds`."""

    machine_100: float
    machine_130: float
    bins_100: float
    bins_130: float
    first_rejection: float


# --- simulation ---------------------------------------------------------------------------------------------


def arrivals(variant: str, seed: int, only_gpu_nodes: bool = False) -> tuple[list[Job], int]:
    """Return a stream, and how many of its first pods together request 100 %."""
    gpu_milli = workloads.openb(only_gpu_nodes).gpus * WHOLE
    drawn = workloads.stream(workloads.pods(variant), round(workloads.SATURATION_LOAD * gpu_milli), seed)
    return drawn, workloads.count_requesting(drawn, gpu_milli)


def simulate_run(run: Run) -> Allocated:
    """Place all pods of a stream."""
    cluster = workloads.openb(run.only_gpu_nodes)
    placer = _placer(run, cluster)
    free, total = FreeResources(cluster), cluster.gpus * WHOLE
    stream, full = arrivals(run.variant, run.seed, run.only_gpu_nodes)
    if run.window == WHOLE_STREAM:
        place_batch(placer, free, stream, run.rule)
        return Allocated(1 - free.gpu_milli / total, 1 - free.gpu_milli / total)
    allocated = []
    for part in (stream[:full], stream[full:]):
        for begin in range(0, len(part), run.window):
            place_batch(placer, free, part[begin : begin + run.window], run.rule)
        allocated.append(1 - free.gpu_milli / total)
    return Allocated(*allocated)


class PlacementRule(Protocol):
    """The common interface of all placement rules."""

    def place(self, free: FreeResources, demand: Demand) -> Placement | None: ...

    def place_all(self, free: FreeResources, demands: Sequence[Demand]) -> list[Placement | None]: ...


def _placer(run: Run, cluster: Cluster) -> PlacementRule:
    """Return a rule that knows the typical pods of the variant."""
    name, jobs = run.rule.removesuffix(LARGEST_FIRST), workloads.pods(run.variant)
    if name == AS_PUBLISHED:
        return FgdAsPublished(cluster, jobs)
    return workloads.observed(Placer(name, run.seed), cluster, jobs)


def place_batch(placer: PlacementRule, free: FreeResources, batch: Sequence[Job], rule: str) -> None:
    """Place the pods that fit. The others are dropped: no pod leaves, so they would never fit."""
    demands = [job.demand for job in batch]
    if rule.endswith(LARGEST_FIRST):
        demands.sort(key=_size, reverse=True)
    if len(demands) == 1:
        placer.place(free, demands[0])
    else:
        placer.place_all(free, demands)


def _size(demand: Demand) -> tuple[int, int, int]:
    return (demand.total_gpu_milli, demand.cpu_milli, demand.memory_mib)


class Stream(msgspec.Struct, frozen=True):
    """A stream of pods."""

    variant: str
    seed: int
    only_gpu_nodes: bool = False


def stream_bounds(stream: Stream) -> UpperBounds:
    """Compute the upper bounds for a stream."""
    cluster = workloads.openb(stream.only_gpu_nodes)
    pods, full = arrivals(stream.variant, stream.seed, stream.only_gpu_nodes)
    return UpperBounds(
        upper_bounds.one_machine(pods[:full], cluster),
        upper_bounds.one_machine(pods, cluster),
        upper_bounds.max_in_bins(pods[:full], cluster.gpus),
        upper_bounds.max_in_bins(pods, cluster.gpus),
        upper_bounds.allocated_at_first_rejection(pods, cluster.gpus),
    )


# --- tables -------------------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True):
    """A table column: the results of one variant by rule and seed, and the upper bounds by seed."""

    allocated: dict[str, list[Allocated]]
    bounds: list[UpperBounds]

    def values(self, rule: str) -> list[float]:
        """Return the allocated shares at 130 % by seed."""
        return [one.at_130 for one in self.allocated[rule]]

    def best_greedy(self) -> str:
        """Return the rule with the largest mean among those that are not ours."""
        others = (rule for rule in self.allocated if rule not in workloads.OURS)
        return max(others, key=lambda rule: fmean(self.values(rule)))


def columns(
    variants: Sequence[str], rules: Sequence[str], window: int, seeds: int, only_gpu_nodes: bool = False
) -> dict[str, Column]:
    """Run all simulations of a table."""
    known = [rule for rule in rules if rule.removesuffix(LARGEST_FIRST) in (*RULES, AS_PUBLISHED)]
    runs = {
        (variant, rule): [Run(variant, rule, window, seed, only_gpu_nodes) for seed in range(seeds)]
        for variant in variants
        for rule in known
    }
    streams = {variant: [Stream(variant, seed, only_gpu_nodes) for seed in range(seeds)] for variant in variants}
    allocated = cached_results(simulate_run, _flat(runs.values()), Allocated, ["benchmarks/peers/fgd_published.py"])
    bounds = cached_results(
        stream_bounds, _flat(streams.values()), UpperBounds, ["benchmarks/placement/upper_bounds.py"]
    )
    return {
        variant: Column(
            {rule: [allocated[run] for run in runs[variant, rule]] for rule in known},
            [bounds[stream] for stream in streams[variant]],
        )
        for variant in variants
    }


def _flat(groups: Iterable[Sequence[Any]]) -> list[Any]:
    return [one for group in groups for one in group]


def table(found: Mapping[str, Column]) -> str:
    """Format the allocation at 130 % of each rule, the gain over greedy rules, and the upper bounds."""
    rules = list(next(iter(found.values())).allocated)
    rows = [[rule, *(interval(column.values(rule)).text() for column in found.values())] for rule in rules]
    for rule in (rule for rule in workloads.GENETIC if rule in rules):
        rows.append([f"{rule} − best greedy", *(_above_greedy(column, rule).text() for column in found.values())])
    rows.append(["best greedy", *(column.best_greedy() for column in found.values())])
    for title, field in BOUNDS.items():
        rows.append([title, *(_bound(column, field).text() for column in found.values())])
    rows += _gap_rows(found, BOUNDS, "at_130")
    return markdown(["", *found], rows)


BOUNDS = {
    "one machine": "machine_130",
    "GPUs as bins": "bins_130",
    "first rejection": "first_rejection",
}
BOUNDS_AT_100 = {"one machine": "machine_100", "GPUs as bins": "bins_100"}


def _bound(column: Column, field: str) -> Interval:
    return interval([getattr(one, field) for one in column.bounds])


def _above_greedy(column: Column, rule: str) -> Interval:
    return paired(column.values(rule), column.values(column.best_greedy()))


def _gap_rows(found: Mapping[str, Column], bounds: Mapping[str, str], when: str) -> list[list[str]]:
    """Return for each genetic rule and upper bound how much of the gap from the best greedy rule it closes."""
    rules = [rule for rule in workloads.GENETIC if rule in next(iter(found.values())).allocated]
    return [
        [f"{rule}: share of the gap to {title}", *(_gap_share(column, rule, field, when) for column in found.values())]
        for rule in rules
        for title, field in bounds.items()
    ]


def _gap_share(column: Column, rule: str, field: str, when: str) -> str:
    means = {name: fmean(getattr(one, when) for one in results) for name, results in column.allocated.items()}
    greedy = max(mean for name, mean in means.items() if name not in workloads.OURS)
    gap = _bound(column, field).mean - greedy
    return f"{(means[rule] - greedy) / gap:.0%}" if gap > MIN_GAP else "no gap"


def table_at_100(found: Mapping[str, Column]) -> str:
    """Format the allocation at 100 % of each rule, and the upper bounds."""
    rules = list(next(iter(found.values())).allocated)
    rows = [
        [rule, *(interval([one.at_100 for one in column.allocated[rule]]).text() for column in found.values())]
        for rule in rules
    ]
    for title, field in BOUNDS_AT_100.items():
        rows.append([title, *(_bound(column, field).text() for column in found.values())])
    return markdown(["", *found], [*rows, *_gap_rows(found, BOUNDS_AT_100, "at_100")])


HEADING = """# Placement: GPU allocation at saturation

openb ({nodes:,} nodes, {gpus:,} GPUs), as in the experiment of FGD's authors: pods arrive in random order until they
request 130 % of the GPU capacity; no pod leaves; a pod that does not fit is rejected. The tables show the share of the
GPU capacity that is then allocated, in percent: mean of {seeds} seeds ± half of the 95 % confidence interval (Student's
t). Differences are between results for the same seeds. `fgd` and `genetic` observe all pods of the variant before the
first arrives, as in the authors' experiment.

Upper bounds ([benchmarks/placement/upper_bounds.py](upper_bounds.py)): *one machine* treats
all nodes as one; *GPUs as bins* is the best selection of pods for the GPUs, ignoring CPUs, memory, types and nodes;
*first rejection* is the maximum allocation, with GPUs as bins, at the time when a pod must be rejected for the first
time. The first two may reject any pod; the rules accept every pod that fits, so for them the third is the best possible
allocation until the first rejection. Smaller pods that fit later can raise the allocation above it.

Published for FGD: 95.39 on default, the mean of its authors' ten seeds (95.3 in their README). `fgd` is an exact
descent; *fgd, as published* rounds its scores to integers from 0 to 100 and takes the first of the tied nodes, as the
authors' code does, which packs better if few pods are typical.

Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.saturation --write
```

See also: [at 100 %, in windows of 100, and without nodes that have no
GPUs](saturation.md); small windows compared with
[PyGAD](window.md) and with the [optimum](optimum.md),
[speed](speed.md), [over a day](day.md).
"""


def report(variants: Sequence[str], windows: Sequence[int], seeds: int) -> tuple[str, str, dict[str, Any]]:
    """Return the page, further tables and the numbers of both."""
    one_by_one = columns(variants, ONE_BY_ONE, 1, seeds)
    parts = [HEADING.format(nodes=len(workloads.openb().nodes), gpus=workloads.openb().gpus, seeds=seeds)]
    parts += ["## One by one, at 130 %\n", table(one_by_one)]
    further = ["## One by one, at 100 %\n", table_at_100(one_by_one)]
    plain = {"one by one": msgspec.to_builtins(one_by_one)}
    for window in windows:
        fewer_seeds = min(seeds, WINDOW_SEEDS)
        found = columns(variants, IN_WINDOWS, window, fewer_seeds)
        title = f"Windows of {window:,}" if window else "All at once"
        title += f", at 130 % ({fewer_seeds} seeds)"
        (further if window else parts).extend(["", f"## {title}\n", table(found)])
        plain[title] = msgspec.to_builtins(found)
    fewer = columns(["default"], ONE_BY_ONE, 1, seeds, only_gpu_nodes=True)
    count = len(workloads.openb(only_gpu_nodes=True).nodes)
    further += ["", f"## One by one on the {count:,} nodes with GPUs, at 130 %\n", table(fewer), ""]
    numbers = plain | {"only nodes with GPUs": msgspec.to_builtins(fewer)}
    return "\n".join([*parts, ""]), "\n".join(further), numbers


def main() -> None:
    """Print the page; write it with --write."""
    quick = "use two seeds, two variants and one window"
    parser = measurement_parser("benchmarks.placement.saturation", __doc__, quick)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of random seeds [{SEEDS}]")
    options = parser.parse_args()
    if message := workloads.missing_data():
        print(message)
        return
    variants, windows, seeds = (
        (("default", "gpushare100"), (1000,), 2) if options.quick else (workloads.VARIANTS, WINDOWS, options.seeds)
    )
    text, further, plain = report(variants, windows, seeds)
    publish(options, PAGE, text, plain)
    if options.write:
        FURTHER_TABLES.write_text(FURTHER_HEADING + further, encoding="utf-8")
    else:
        print(further)


if __name__ == "__main__":
    main()
