"""What happens as one thing changes: `python -m benchmarks.scheduling.sweeps [NAME …] [--write] [--quick] [--all]`.

Rubick's random-plan trace under every policy, as the load, the share of large models, the cost of a restart or the
error of the performance model grows, or as nobody knows how much work is left. `--write` keeps the page
docs/results/sweeps.md and a picture for each sweep. `--quick` takes fewer values; `--all` adds policies that take long.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from textwrap import fill

from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import REPOSITORY
from benchmarks.scheduling.pictures import LinesPicture, Series
from benchmarks.scheduling.runs import Figures, Point, cluster_for, figures_of, jobs_of
from benchmarks.scheduling.variants import gpu_seconds
from benchmarks.scheduling.world import charge
from benchmarks.table import markdown
from refold.model import HOUR

FOLDER = REPOSITORY / "docs" / "results"
PAGE = FOLDER / "sweeps.md"
POLICIES = ("refold", "rubick", "rubick-e", "rubick-r", "rubick-n", "sia", "synergy", "antman", "tiresias")
SLOW = ("pollux",)
IGNORANT = "refold, work unknown"
WRAPPED = 120
"""Columns of the page."""

SEEDS = 2
"""How many draws are averaged where chance has a part."""

Line = tuple[tuple[Point, ...], ...]
"""For each value of a sweep, the simulations whose figures are averaged."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is changed, from where to where, and what there is to see."""

    name: str
    title: str
    x_title: str
    values: Sequence[float]
    text: Callable[[float], str]
    points: Callable[[str, float, int], Point]
    about: str
    chance: bool = False
    also: Mapping[str, Callable[[str, float, int], Point]] | None = None
    """Lines beside those of the policies, by name."""

    def lines(self, policies: Sequence[str], seeds: int) -> dict[str, Line]:
        """What has to be simulated."""
        made = dict.fromkeys(policies, self.points) | dict(self.also or {})
        draws = range(1, seeds + 1) if self.chance else [0]
        return {
            label: tuple(tuple(point(label, value, seed) for seed in draws) for value in self.values)
            for label, point in made.items()
        }


def _times(value: float) -> str:
    return f"{value:g} ×"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _seconds(value: float) -> str:
    return f"{value:g} s"


def _at_load(policy: str, load: float, _: int) -> Point:
    return Point(policy, load=load)


def _with_large(policy: str, share: float, seed: int) -> Point:
    return Point(policy, large=share, seed=seed)


def _at_restart(policy: str, seconds: float, _: int) -> Point:
    return Point(policy, restart=seconds)


def _with_error(policy: str, spread: float, seed: int) -> Point:
    return Point(policy, error=spread, seed=seed if spread else 0)


def _ignorant(_: str, load: float, __: int) -> Point:
    return Point("refold", load=load, settings=(("trust_steps", False),))


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "load",
            "More load",
            "how many times as fast jobs arrive",
            (0.5, 0.75, 1.0, 1.5, 2.0),
            _times,
            _at_load,
            "All times of arrival are divided by the load. (Rubick, figure 10: it leads Synergy by up to 3.5 times in "
            "mean completion time.)",
        ),
        Sweep(
            "large",
            "More large models",
            "share of jobs that train LLaMA-7B or LLaMA-30B",
            (0.0, 0.1, 0.25, 0.4, 0.6),
            _percent,
            _with_large,
            "Jobs chosen at random take over the model, the GPUs and the plan of a random job of the other kind, and "
            "as many steps as their own GPU-seconds, as asked for, are worth there (at least one). (Rubick, figure 11: "
            "its lead in mean completion time grows with the share, from 2.6 to 3.4 times.)",
            chance=True,
        ),
        Sweep(
            "restart",
            "Dearer restarts",
            "seconds that a restart takes",
            (0.0, 30.0, 78.0, 150.0, 260.0, 300.0),
            _seconds,
            _at_restart,
            "Policies that take the cost as a setting are told it.",
        ),
        Sweep(
            "error",
            "Wrong speeds",
            "standard deviation of the error of believed speeds",
            (0.0, 0.1, 0.2, 0.3),
            _percent,
            _with_error,
            "Every speed that a policy believes, of a model with a plan on a layout, is multiplied by a factor of its "
            "own, exp(N(0, s)), on top of the error of the fit to seven samples; the same point is always off by the "
            "same factor. What is charged stays what was measured. Tiresias believes nothing of speeds, Rubick-N "
            "chooses nothing by them, and Synergy only compares a layout with itself on more CPUs, which is off alike.",
            chance=True,
        ),
        Sweep(
            "unknown",
            "Nobody knows how much is left",
            "how many times as fast jobs arrive",
            (0.5, 0.75, 1.0, 1.5, 2.0),
            _times,
            _at_load,
            f"*{IGNORANT}* is `refold` with `trust_steps=False`: it takes a job to have as long before it as behind "
            "it. Las and Tiresias never ask what is left; Rubick asks only whether a change of a run will pay.",
            also={IGNORANT: _ignorant, "las": _at_load},
        ),
    )
}

HEADING = """# As one thing changes

Mean completion time, in hours, on Rubick's random-plan trace (406 jobs, 64 GPUs), charged as in
[table4.md](table4.md), with 78 s a restart where nothing else is said. Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.scheduling.sweeps --write{options}
```

Where chance has a part (shares of models, errors), figures are those of {seeds}.
"""


def section(sweep: Sweep, lines: Mapping[str, Line], found: Mapping[Point, Figures]) -> str:
    """One sweep: what was done, its picture, its tables."""
    values = {label: means(line, found) for label, line in lines.items()}
    titles = ["policy", *(sweep.text(value) for value in sweep.values)]
    rows = [[label, *(f"{value:.3f}" for value in line)] for label, line in values.items()]
    parts = [f"## {sweep.title}\n", f"{fill(sweep.about, WRAPPED)}\n"]
    parts.append(f"![{sweep.title}: mean completion time of every policy](sweep_{sweep.name}.svg)\n")
    parts.append(markdown(titles, rows) + "\n")
    if sweep.name == "large":
        parts.append(f"{_asked_for(lines)}\n")
    others = {label: line for label, line in values.items() if label not in ("rubick", "refold", IGNORANT)}
    for leader in ("rubick", "refold"):
        if leader in values and others:
            parts.append(f"{lead(leader, values[leader], others)}\n")
    return "\n".join(parts)


def means(line: Line, found: Mapping[Point, Figures]) -> list[float]:
    """The mean completion time at each value, averaged over draws."""
    return [fmean(found[point].mean for point in points) for points in line]


def lead(leader: str, line: Sequence[float], others: Mapping[str, Sequence[float]]) -> str:
    """How many times as long jobs take under each other policy, at the first value and at the last."""
    told = []
    for label, other in others.items():
        first, last = other[0] / line[0], other[-1] / line[-1]
        told.append(f"{label} {first:.2f} → {last:.2f}")
    return fill(f"Lead of `{leader}` from the first value to the last: {', '.join(told)}.", WRAPPED)


def _asked_for(lines: Mapping[str, Line]) -> str:
    """GPU-hours as asked for, at each share: they should stay the same."""
    truth = charge(cluster_for("random-plan"))
    hours = []
    for points in next(iter(lines.values())):
        hours.append(fmean(sum(gpu_seconds(job, truth) for job in jobs_of(point)) / HOUR for point in points))
    return f"GPU-hours as asked for: {', '.join(f'{value:.0f}' for value in hours)}."


def picture(sweep: Sweep, lines: Mapping[str, Line], found: Mapping[Point, Figures]) -> LinesPicture:
    """The means as lines."""
    series = [Series(label, means(line, found)) for label, line in lines.items()]
    about = "mean completion time on Rubick's random-plan trace, 406 jobs on 64 GPUs"
    texts = [sweep.text(value) for value in sweep.values]
    return LinesPicture(sweep.title, about, sweep.x_title, "hours", sweep.values, texts, series)


def quick(sweep: Sweep) -> Sweep:
    """The ends of a sweep and its middle."""
    values = (sweep.values[0], sweep.values[len(sweep.values) // 2], sweep.values[-1])
    return replace(sweep, values=values)


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.scheduling.sweeps", description=__doc__)
    words.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SWEEPS))
    words.add_argument("--write", action="store_true", help="keep the page and the pictures in docs/results")
    words.add_argument("--quick", action="store_true", help="fewer values, and one draw")
    words.add_argument("--all", action="store_true", help=f"with {', '.join(SLOW)} too, which takes long")
    words.add_argument("--seeds", type=int, default=SEEDS, help="how many draws are averaged")
    asked = words.parse_args()
    if data_folder() is None:
        print("the published traces and tables are not here (see benchmarks/README.md)")
        return
    if unknown := [name for name in asked.names if name not in SWEEPS]:
        words.error(f"no sweep {unknown[0]!r} ({', '.join(SWEEPS)})")
    if asked.write and asked.names:
        words.error("--write keeps the whole page: without names")
    policies = POLICIES + (SLOW if asked.all else ())
    seeds = 1 if asked.quick else asked.seeds
    sweeps = [quick(SWEEPS[name]) if asked.quick else SWEEPS[name] for name in asked.names or SWEEPS]
    lines = {sweep.name: sweep.lines(policies, seeds) for sweep in sweeps}
    found = figures_of(point for of in lines.values() for line in of.values() for points in line for point in points)
    options = " --quick" if asked.quick else f" --seeds {seeds}" if seeds != SEEDS else ""
    draws = f"{seeds} draws, averaged" if seeds > 1 else "one draw"
    heading = HEADING.format(options=options + " --all" * asked.all, seeds=draws)
    text = "\n".join([heading, *(section(sweep, lines[sweep.name], found) for sweep in sweeps)])
    print(text)
    if asked.write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        for sweep in sweeps:
            path = FOLDER / f"sweep_{sweep.name}.svg"
            path.write_text(picture(sweep, lines[sweep.name], found).svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
