"""Table 4 of Rubick, with our policies: `python -m benchmarks.scheduling.table4 [--write] [--restart 78|260]
[--policies rubick,sia,…]`.

Three traces of 406 jobs on 64 GPUs, each under every policy, at what a restart costs by the paper (78 s) and by its
simulator (260 s). `--write` keeps the page docs/results/table4.md and its picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import REPOSITORY
from benchmarks.scheduling import world
from benchmarks.scheduling.pictures import BarsPicture, Pair, Panel
from benchmarks.scheduling.runs import Figures, Point, figures_of
from benchmarks.table import Row, as_markdown, at_most, markdown

PAGE = REPOSITORY / "docs" / "results" / "table4.md"
PICTURE = PAGE.with_suffix(".svg")
RESTARTS = (78.0, 260.0)
COMPARED = ("rubick", "rubick-e", "rubick-r", "rubick-n", "sia", "synergy", "antman", "refold")
FURTHER = ("tiresias", "pollux", "gavel", "optimus", "las", "fifo-skip")
TITLES = {"random-plan": "Base", "best-plan": "BP", "multi-tenant": "MT"}
"""As the paper calls the traces."""


class Published(NamedTuple):
    """Hours in the paper's table; of each class where there are two."""

    mean: float
    p99: float
    makespan: float
    guaranteed: float | None = None
    best_effort: float | None = None


PAPER: dict[str, dict[str, Published]] = {
    "random-plan": {
        "rubick": Published(0.96, 7.1, 15.3),
        "sia": Published(2.5, 12.2, 18.8),
        "synergy": Published(3.1, 13.5, 21.5),
        "rubick-e": Published(2.4, 10.9, 20.2),
        "rubick-r": Published(1.6, 9.9, 19.8),
        "rubick-n": Published(3.1, 12.8, 22.0),
    },
    "best-plan": {
        "rubick": Published(0.96, 7.1, 15.3),
        "sia": Published(1.8, 9.0, 16.5),
        "synergy": Published(2.3, 10.8, 20.5),
    },
    "multi-tenant": {
        "rubick": Published(1.1, 11.4, 17.9, 0.85, 1.34),
        "antman": Published(1.75, 13.4, 19.6, 1.41, 2.1),
    },
}
"""Table 4 of the paper (testbed)."""

ARTIFACT = {
    "random-plan": Published(1.011, 8.10, 16.30),
    "best-plan": Published(1.011, 8.10, 16.30),
    "multi-tenant": Published(1.116, 7.93, 16.88, 0.647, 1.545),
}
"""The authors' own simulator, replayed with its defaults. Without guarantees it does not look at the plan that a job
asked for, so that it does the same on both traces."""

GOALS = {"mean": 0.16, "p99": 2.5, "makespan": 15.3}
"""Hours, for refold on the random-plan trace at 78 s, all in one run."""

HEADING = """# Rubick's evaluation, run again

Table 4 of *Rubick: Exploiting Job Reconfigurability for Deep Learning Cluster Scheduling* (MLSys 2025) with our
policies: three traces of 406 jobs, 64 GPUs. Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.scheduling.table4 --write
```

which takes about {minutes} of two cores, and seconds once its simulations are kept under `build/`. It reads the
published traces and measurements, which are not part of this repository (benchmarks/README.md).

![Mean completion time of each policy on each trace, ours beside the paper's](table4.svg)

## Goals

For `refold`, on the random-plan trace, with 78 s a restart, all in one run; and on the multi-tenant trace.
"""

METHOD = """## How it was charged

- **Steps** take as long as they were measured on the paper's testbed, by model, plan and placement (the tables of its
  artifact). A placement that was not measured takes as long as the performance model says, times how far that model is
  off at the nearest point that was: the same way of computing first, then similar degrees, then a similar layout
  (`refold.simulator.measured_speeds`).
- **Policies** see none of these but seven for each model, to which the performance model is fitted; they may choose the
  plans that were measured for the model, and know how many steps a job wants. What a restart costs is told to those who
  take it as a setting.
- **Restarts** take 78 s (the paper's mean) or 260 s (what its simulator charges), with the GPUs held; a job's first
  start takes nothing. Runs say every 60 s how far they are.
- **Guarantees**: tenant A has a quota of 64 GPUs. A promise is broken if a guaranteed job within the quota is slower
  than what it asked for, or waits for what others could spare, for longer than a restart and one round of the policy
  (docs/measures.md). *Believed*: by the speeds that policies know; *measured*: by those that were charged. Jobs are
  counted. The other traces promise nothing: all their jobs are best-effort.
- **Changes** are runs that were stopped before their end, for each job, whether the job went on at once in another
  shape or waited; GPU time **lost** is what was held while starting again. Times are those of finished jobs; who left
  jobs unfinished is marked.

## What differs from the paper

- The paper's figures are from a testbed, ours from a simulator. Compare ratios, not hours: in the columns × each
  figure is divided by that of Rubick in the same source.
- Here a policy that is not bound to rounds is asked at every event, and a job's first start is free. The median job of
  the traces lasts 8 s, so that a minute of waiting for a round, or for containers to start, is most of its completion
  time. So whoever starts jobs at once has lower means here than on a testbed, and Synergy, which has jobs wait in the
  order of arrival, for rounds of 300 s, is further behind than there.
- The artifact looks every 60 s, charges 260 s, takes LLaMA's placements from a hand-written table, and never shrinks a
  running job. `rubick` follows the paper's algorithm, which does (`refold.policies.reshaping.rubick`).
- Which file has random plans is not said clearly: the two files look swapped, and were taken for what they contain.
- Sia, Synergy and AntMan are our readings of their papers (docs/policies/), with the plan that a job asked for where
  they do not choose one. In the paper Sia trains to a target accuracy, here for as many steps as all others.
- The paper has no figures for `refold` and the policies after it, and left others out of some traces.
"""


def key(policy: str, trace: str, restart: float) -> Point:
    """The simulation behind a row."""
    return Point(policy, trace, restart)


def page(found: Mapping[Point, Figures], policies: Sequence[str], restarts: Sequence[float]) -> str:
    """The page that is kept."""
    minutes = sum(figures.cpu_seconds for figures in found.values()) / 60 / 2
    parts = [HEADING.format(minutes=f"{max(1, round(minutes))} minutes")]
    refold = {trace: found.get(key("refold", trace, 78.0)) for trace in world.TRACES}
    rows = goals(refold["random-plan"], refold["multi-tenant"])
    parts.append(as_markdown(rows) + "\n" if rows else "`refold` was not among the policies.\n")
    for restart in restarts:
        parts.append(f"## Restarts of {restart:g} s\n")
        for trace in world.TRACES:
            parts.append(f"### {trace} ({TITLES[trace]} in the paper), {restart:g} s\n")
            parts.append(table(found, trace, restart, policies) + "\n")
    return "\n".join([*parts, METHOD])


def goals(random_plan: Figures | None, multi_tenant: Figures | None) -> list[Row]:
    """Whether refold's goals were met."""
    if random_plan is None or multi_tenant is None:
        return []
    names = {"mean": "mean completion time", "p99": "99th percentile", "makespan": "makespan"}
    rows = [
        at_most(f"random-plan: {text}", value, GOALS[what], f"{value:.3f} h", "h")
        for what, text in names.items()
        for value in [float(getattr(random_plan, what))]
    ]
    for text, value in {"believed": multi_tenant.broken_believed, "measured": multi_tenant.broken_measured}.items():
        rows.append(at_most(f"multi-tenant: guarantees broken, {text}", value, 0, str(value), "jobs"))
    return rows


def table(found: Mapping[Point, Figures], trace: str, restart: float, policies: Sequence[str]) -> str:
    """One trace at one cost: a row for each policy, and one for the artifact."""
    tenants = trace == "multi-tenant"
    ours = ["policy", "mean h", "×", "p99 h", "makespan h"]
    ours += ["guaranteed h", "best-effort h", "broken: believed", "broken: measured"] if tenants else []
    ours += ["changes/job", "GPU time lost", "GPU-hours"]
    titles = [
        *ours,
        "paper: mean h",
        "×",
        "p99 h",
        "makespan h",
        *(["guaranteed h", "best-effort h"] if tenants else []),
    ]
    baseline = found.get(key("rubick", trace, restart))
    rows = []
    for policy in policies:
        figures = found[key(policy, trace, restart)]
        rows.append([*_ours(policy, figures, baseline, tenants), *_paper(PAPER[trace].get(policy), trace, tenants)])
    empty = [""] * (len(ours) - 1)
    rows.append(["*Rubick's artifact, replayed*", *empty, *_paper(ARTIFACT[trace], trace, tenants)])
    return markdown(titles, rows)


def _ours(policy: str, figures: Figures, baseline: Figures | None, tenants: bool) -> list[str]:
    unfinished = figures.jobs - figures.finished
    cells = [
        policy + (f" ({unfinished} unfinished)" if unfinished else ""),
        f"{figures.mean:.3f}",
        f"{figures.mean / baseline.mean:.2f}" if baseline else "",
        f"{figures.p99:.2f}",
        f"{figures.makespan:.2f}",
    ]
    if tenants:
        cells += [_hours(figures.guaranteed), _hours(figures.best_effort)]
        cells += [str(figures.broken_believed), str(figures.broken_measured)]
    return [*cells, f"{figures.changes:.2f}", f"{figures.lost:.1%}", f"{figures.gpu_hours:.0f}"]


def _paper(figures: Published | None, trace: str, tenants: bool) -> list[str]:
    if figures is None:
        return [""] * (6 if tenants else 4)
    ratio = figures.mean / PAPER[trace]["rubick"].mean
    cells = [f"{figures.mean:g}", f"{ratio:.2f}", f"{figures.p99:g}", f"{figures.makespan:g}"]
    return cells + ([f"{figures.guaranteed:g}", f"{figures.best_effort:g}"] if tenants else [])


def _hours(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def picture(found: Mapping[Point, Figures], policies: Sequence[str], restart: float) -> BarsPicture:
    """Mean completion times, ours beside the paper's."""
    panels = []
    for trace in world.TRACES:
        published = {policy: figures.mean for policy, figures in PAPER[trace].items()}
        pairs = [Pair(found[key(policy, trace, restart)].mean, published.get(policy)) for policy in policies]
        panels.append(Panel(f"{trace} ({TITLES[trace]})", pairs))
    about = (
        f"406 jobs on 64 GPUs; {restart:g} s a restart; ours simulated with measured steps, the paper's on a testbed"
    )
    return BarsPicture("Mean completion time", about, policies, panels, ("ours", "Rubick's paper"), "h")


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.scheduling.table4", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page and the picture in docs/results")
    words.add_argument("--restart", type=float, choices=RESTARTS, help="only at this cost")
    words.add_argument("--policies", default=",".join((*COMPARED, *FURTHER)), help="only these, with commas between")
    asked = words.parse_args()
    if data_folder() is None:
        print("the published traces and tables are not here (see benchmarks/README.md)")
        return
    policies = asked.policies.split(",")
    restarts = RESTARTS if asked.restart is None else (asked.restart,)
    if asked.write and (asked.restart or policies != [*COMPARED, *FURTHER]):
        words.error("--write keeps whole tables only: without --restart and --policies")
    wanted = [key(policy, trace, restart) for restart in restarts for trace in world.TRACES for policy in policies]
    found = figures_of(wanted)
    text = page(found, policies, restarts)
    print(text)
    if asked.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        PICTURE.write_text(picture(found, policies, RESTARTS[0]).svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
