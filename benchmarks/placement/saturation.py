"""GPU allocated at saturation: `python -m benchmarks.placement.saturation [--quick] [--seeds N] [--write] [--json F]`.

FGD's published experiment on openb: pods arrive in a drawn order until they ask for 130 % of the GPUs, none leaves,
one that has no place is turned away. *One by one*: each is placed as it arrives. *Windows*: they come in batches of
100, or all at once, and a rule sees a whole batch before it places it. `--write` keeps the page
docs/results/placement.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.peers.fgd_published import FgdAsPublished
from benchmarks.placement import ceilings, world
from benchmarks.placement.kept import answers
from benchmarks.placement.spread import Spread, paired, spread
from benchmarks.table import markdown
from refold.model import WHOLE, Cluster, Demand, Job, Placement
from refold.packing import RULES, Free, Placer

PAGE = REPOSITORY / "docs" / "results" / "placement.md"
SEEDS = 10
WHOLE_STREAM = 0
WINDOWS = (100, WHOLE_STREAM)
WINDOW_SEEDS = 5
LARGEST_FIRST = ", largest first"
"""A greedy rule that sees a window can at least sort it."""

AS_PUBLISHED = "fgd, as published"
"""The authors' own scoring (`peers/fgd_published.py`)."""

NO_ROOM = 5e-4
"""Where a ceiling is no further from the best greedy rule than this, parts of the way say nothing."""

ONE_BY_ONE = (*world.GREEDY, AS_PUBLISHED, *world.OURS)
IN_WINDOWS = (
    "first-fit",
    "fgd",
    AS_PUBLISHED,
    *(f"{rule}{LARGEST_FIRST}" for rule in ("best-fit", "fgd", AS_PUBLISHED)),
    *world.OURS,
)


class Game(msgspec.Struct, frozen=True):
    """One stream under one rule. `window`: how many pods are seen at once; 0: all."""

    variant: str
    rule: str
    window: int
    seed: int
    only_gpu_nodes: bool = False


class Held(msgspec.Struct, frozen=True):
    """The part of all GPU that was allocated when pods for 100 % and for 130 % had come."""

    at_100: float
    at_130: float


class Ceiling(msgspec.Struct, frozen=True):
    """What one stream could hold at most, see `ceilings`."""

    machine_100: float
    machine_130: float
    bins_100: float
    bins_130: float
    first_refusal: float


# --- playing ------------------------------------------------------------------------------------------------


def arrivals(variant: str, seed: int, only_gpu_nodes: bool = False) -> tuple[list[Job], int]:
    """A stream, and how many of its pods ask for 100 %."""
    gpu_milli = world.openb(only_gpu_nodes).gpus * WHOLE
    drawn = world.stream(world.pods(variant), round(world.SATURATED * gpu_milli), seed)
    return drawn, world.first_asking_for(drawn, gpu_milli)


def played(game: Game) -> Held:
    """Let all pods of a stream come."""
    cluster = world.openb(game.only_gpu_nodes)
    placer = _placer(game, cluster)
    free, total = Free(cluster), cluster.gpus * WHOLE
    stream, full = arrivals(game.variant, game.seed, game.only_gpu_nodes)
    if game.window == WHOLE_STREAM:
        place_batch(placer, free, stream, game.rule)
        return Held(1 - free.gpu_milli / total, 1 - free.gpu_milli / total)
    held = []
    for part in (stream[:full], stream[full:]):
        for begin in range(0, len(part), game.window):
            place_batch(placer, free, part[begin : begin + game.window], game.rule)
        held.append(1 - free.gpu_milli / total)
    return Held(*held)


class Places(Protocol):
    """What a rule does."""

    def place(self, free: Free, demand: Demand) -> Placement | None: ...

    def place_all(self, free: Free, demands: Sequence[Demand]) -> list[Placement | None]: ...


def _placer(game: Game, cluster: Cluster) -> Places:
    """A rule that knows what is typical of its variant."""
    name, jobs = game.rule.removesuffix(LARGEST_FIRST), world.pods(game.variant)
    if name == AS_PUBLISHED:
        return FgdAsPublished(cluster, jobs)
    return world.told(Placer(name, game.seed), cluster, jobs)


def place_batch(placer: Places, free: Free, batch: Sequence[Job], rule: str) -> None:
    """Place what has a place. Since nobody leaves, who has none now never will, and need not wait."""
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
    """A stream, to ask for its ceiling."""

    variant: str
    seed: int
    only_gpu_nodes: bool = False


def ceiling(asked: Stream) -> Ceiling:
    """What this stream could hold at most."""
    cluster = world.openb(asked.only_gpu_nodes)
    stream, full = arrivals(asked.variant, asked.seed, asked.only_gpu_nodes)
    return Ceiling(
        ceilings.one_machine(stream[:full], cluster),
        ceilings.one_machine(stream, cluster),
        ceilings.most_in_bins(stream[:full], cluster.gpus),
        ceilings.most_in_bins(stream, cluster.gpus),
        ceilings.held_at_first_refusal(stream, cluster.gpus),
    )


# --- telling ------------------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True):
    """A column of a table: one variant, with what every rule held for every seed at the end."""

    held: dict[str, list[Held]]
    ceilings: list[Ceiling]

    def values(self, rule: str) -> list[float]:
        """At 130 %, seed by seed."""
        return [held.at_130 for held in self.held[rule]]

    def best_greedy(self) -> str:
        """The rule with the largest mean that is not ours."""
        return max((rule for rule in self.held if rule not in world.OURS), key=lambda rule: fmean(self.values(rule)))


def columns(
    variants: Sequence[str], rules: Sequence[str], window: int, seeds: int, only_gpu_nodes: bool = False
) -> dict[str, Column]:
    """Play all games of a table."""
    known = [rule for rule in rules if rule.removesuffix(LARGEST_FIRST) in (*RULES, AS_PUBLISHED)]
    games = {
        (variant, rule): [Game(variant, rule, window, seed, only_gpu_nodes) for seed in range(seeds)]
        for variant in variants
        for rule in known
    }
    streams = {variant: [Stream(variant, seed, only_gpu_nodes) for seed in range(seeds)] for variant in variants}
    held = answers(played, _flat(games.values()), Held, ["benchmarks/peers/fgd_published.py"])
    bounds = answers(ceiling, _flat(streams.values()), Ceiling, ["benchmarks/placement/ceilings.py"])
    return {
        variant: Column(
            {rule: [held[game] for game in games[variant, rule]] for rule in known},
            [bounds[stream] for stream in streams[variant]],
        )
        for variant in variants
    }


def _flat(groups: Iterable[Sequence[Any]]) -> list[Any]:
    return [one for group in groups for one in group]


def table(found: Mapping[str, Column]) -> str:
    """Percent of all GPU allocated at 130 %, a row for each rule, then what is above and what could be."""
    rules = list(next(iter(found.values())).held)
    rows = [[rule, *(spread(column.values(rule)).text() for column in found.values())] for rule in rules]
    for rule in (rule for rule in world.GENETIC if rule in rules):
        rows.append([f"{rule} − best greedy", *(_above_greedy(column, rule).text() for column in found.values())])
    rows.append(["best greedy", *(column.best_greedy() for column in found.values())])
    for title, field in CEILINGS.items():
        rows.append([title, *(_ceiling(column, field).text() for column in found.values())])
    rows += _ways(found, CEILINGS, "at_130")
    return markdown(["", *found], rows)


CEILINGS = {
    "one machine": "machine_130",
    "every GPU a bin": "bins_130",
    "the first refusal": "first_refusal",
}
CEILINGS_AT_100 = {"one machine": "machine_100", "every GPU a bin": "bins_100"}


def _ceiling(column: Column, field: str) -> Spread:
    return spread([getattr(one, field) for one in column.ceilings])


def _above_greedy(column: Column, rule: str) -> Spread:
    return paired(column.values(rule), column.values(column.best_greedy()))


def _ways(found: Mapping[str, Column], bounds: Mapping[str, str], when: str) -> list[list[str]]:
    """For each genetic rule and each ceiling: which part of the way from the best greedy rule it goes."""
    rules = [rule for rule in world.GENETIC if rule in next(iter(found.values())).held]
    return [
        [f"{rule}: part of the way to {title}", *(_way(column, rule, field, when) for column in found.values())]
        for rule in rules
        for title, field in bounds.items()
    ]


def _way(column: Column, rule: str, field: str, when: str) -> str:
    """From the best greedy rule to a ceiling; where there is no room between them, nothing."""
    means = {name: fmean(getattr(one, when) for one in held) for name, held in column.held.items()}
    greedy = max(mean for name, mean in means.items() if name not in world.OURS)
    room = _ceiling(column, field).mean - greedy
    return f"{(means[rule] - greedy) / room:.0%}" if room > NO_ROOM else "no room"


def table_at_100(found: Mapping[str, Column]) -> str:
    """The same when pods for 100 % have come."""
    rules = list(next(iter(found.values())).held)
    rows = [
        [rule, *(spread([held.at_100 for held in column.held[rule]]).text() for column in found.values())]
        for rule in rules
    ]
    for title, field in CEILINGS_AT_100.items():
        rows.append([title, *(_ceiling(column, field).text() for column in found.values())])
    return markdown(["", *found], [*rows, *_ways(found, CEILINGS_AT_100, "at_100")])


HEADING = """# Placement: GPU allocated at saturation

openb ({nodes:,} nodes, {gpus:,} GPUs), as FGD's authors play it: pods come in an order drawn by a seed until
they ask for 130 % of all GPU; none leaves; one that has no place is turned away. Percent of GPU (in thousandths of a
GPU) that is then allocated: mean of {seeds} seeds ± half of its 95 % confidence interval (Student's t). Differences are
between results for the same seeds. `fgd` and `genetic` are told all pods of the variant before the first one comes,
as the authors do.

Ceilings ([benchmarks/placement/ceilings.py](../../benchmarks/placement/ceilings.py)): *one machine* takes all nodes as
one; *every GPU a bin* lets the best choice of pods fill the GPUs, with no regard to CPUs, memory, types and nodes;
*the first refusal*: how full the cluster can be, with every GPU a bin, when the first pod has to be turned away. The
first two may leave out any pod; a rule that takes every pod for which it has room cannot choose so, and the third is
what a perfect one could hope for until it is full. Smaller pods that still find a place later can lift it above that.

Published for FGD: 95.39 on default, the mean of its authors' ten seeds (95.3 in their README). `fgd` descends exactly;
*fgd, as published* rounds its scores to whole numbers from 0 to 100 and takes the first of the nodes that tie, as the
authors' code does, which packs better where few pods are typical.

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.saturation --write
```

Further pages: [small windows against PyGAD](placement_window.md), [against the optimum](placement_optimum.md),
[speed](placement_speed.md), [over a day](placement_day.md).
"""


def report(variants: Sequence[str], windows: Sequence[int], seeds: int) -> tuple[str, dict[str, Any]]:
    """The page, and its numbers."""
    one_by_one = columns(variants, ONE_BY_ONE, 1, seeds)
    parts = [HEADING.format(nodes=len(world.openb().nodes), gpus=world.openb().gpus, seeds=seeds)]
    parts += ["## One by one, at 130 %\n", table(one_by_one), "", "## One by one, at 100 %\n", table_at_100(one_by_one)]
    plain = {"one by one": msgspec.to_builtins(one_by_one)}
    for window in windows:
        fewer_seeds = min(seeds, WINDOW_SEEDS)
        found = columns(variants, IN_WINDOWS, window, fewer_seeds)
        title = f"Windows of {window:,}" if window else "All at once"
        title += f", at 130 % ({fewer_seeds} seeds)"
        parts += ["", f"## {title}\n", table(found)]
        plain[title] = msgspec.to_builtins(found)
    fewer = columns(["default"], ONE_BY_ONE, 1, seeds, only_gpu_nodes=True)
    count = len(world.openb(only_gpu_nodes=True).nodes)
    parts += ["", f"## One by one on the {count:,} nodes that have GPUs, at 130 %\n", table(fewer), ""]
    return "\n".join(parts), plain | {"only nodes with GPUs": msgspec.to_builtins(fewer)}


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.placement.saturation", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page in docs/results")
    words.add_argument("--quick", action="store_true", help="two seeds, two variants, one window")
    words.add_argument("--seeds", type=int, default=SEEDS)
    words.add_argument("--json", type=Path, help="keep the numbers here")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    variants, windows, seeds = (
        (("default", "gpushare100"), (1000,), 2) if asked.quick else (world.VARIANTS, WINDOWS, asked.seeds)
    )
    text, plain = report(variants, windows, seeds)
    print(text)
    if asked.json:
        asked.json.write_text(json.dumps(plain), encoding="utf-8")
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
