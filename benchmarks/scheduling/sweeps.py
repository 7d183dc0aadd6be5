"""Sensitivity to single parameters: `python -m benchmarks.scheduling.sweeps [NAME …] [--write] [--quick] [--all]`.

Rubick's random-plan trace with every policy, for varying load, share of large models, restart cost and error of the
performance model, and with unknown remaining work. `--write` writes sweeps.md and a chart for each sweep beside this
file. `--quick` uses fewer values; `--all` adds slow policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from textwrap import fill

from benchmarks.accuracy.tables import data_folder
from benchmarks.charts import LineChart, Series
from benchmarks.result_page import page_parser, publish
from benchmarks.scheduling.ray_runs import simulate_on_ray
from benchmarks.scheduling.runs import Scenario, Summary, cluster_for, jobs_of, summarise_all
from benchmarks.scheduling.testbed import charged_speeds
from benchmarks.scheduling.variants import gpu_seconds
from benchmarks.table import markdown
from refold.model import HOUR

PAGE = Path(__file__).with_name("sweeps.md")
POLICIES = ("refold", "rubick", "rubick-e", "rubick-r", "rubick-n", "sia", "synergy", "antman", "tiresias")
SLOW = ("pollux",)
WORK_UNKNOWN = "refold, work unknown"
LINE_LENGTH = 120
"""Maximum line length of the page."""

SEEDS = 2
"""Number of random draws that are averaged in sweeps with randomness."""

Line = tuple[tuple[Scenario, ...], ...]
"""For each value of a sweep, the scenarios whose results are averaged."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A parameter, its values, and the scenario for each policy, value and seed."""

    name: str
    title: str
    x_title: str
    values: Sequence[float]
    text: Callable[[float], str]
    scenario: Callable[[str, float, int], Scenario]
    description: str
    random: bool = False
    extra_lines: Mapping[str, Callable[[str, float, int], Scenario]] | None = None
    """Lines in addition to those of the policies, by name."""

    def lines(self, policies: Sequence[str], seeds: int) -> dict[str, Line]:
        """Return the scenarios of each line."""
        makers = dict.fromkeys(policies, self.scenario) | dict(self.extra_lines or {})
        draws = range(1, seeds + 1) if self.random else [0]
        return {
            label: tuple(tuple(make(label, value, seed) for seed in draws) for value in self.values)
            for label, make in makers.items()
        }


def _times(value: float) -> str:
    return f"{value:g} ×"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _seconds(value: float) -> str:
    return f"{value:g} s"


def _at_load(policy: str, load: float, _: int) -> Scenario:
    return Scenario(policy, load=load)


def _with_large(policy: str, share: float, seed: int) -> Scenario:
    return Scenario(policy, large=share, seed=seed)


def _at_restart(policy: str, seconds: float, _: int) -> Scenario:
    return Scenario(policy, restart=seconds)


def _with_error(policy: str, spread: float, seed: int) -> Scenario:
    return Scenario(policy, error=spread, seed=seed if spread else 0)


def _work_unknown(_: str, load: float, __: int) -> Scenario:
    return Scenario("refold", load=load, settings=(("trust_steps", False),))


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "load",
            "Load",
            "arrival rate relative to the trace",
            (0.5, 0.75, 1.0, 1.5, 2.0),
            _times,
            _at_load,
            "Submission times are divided by the load. (Rubick, figure 10: its mean completion time is up to 3.5 times "
            "shorter than that of Synergy.)",
        ),
        Sweep(
            "large",
            "Share of large models",
            "share of jobs that train LLaMA-7B or LLaMA-30B",
            (0.0, 0.1, 0.25, 0.4, 0.6),
            _percent,
            _with_large,
            "Randomly chosen jobs get the model, the GPUs and the plan of a random job of the other kind, and the "
            "number of steps (at least one) that takes as many GPU-seconds as originally requested. (Rubick, figure "
            "11: its advantage in mean completion time grows with the share, from 2.6 to 3.4 times.)",
            random=True,
        ),
        Sweep(
            "restart",
            "Restart cost",
            "seconds per restart",
            (0.0, 30.0, 78.0, 150.0, 260.0, 300.0),
            _seconds,
            _at_restart,
            "Policies with a setting for the restart cost know it.",
        ),
        Sweep(
            "error",
            "Error of predicted speeds",
            "standard deviation of the error of predicted speeds",
            (0.0, 0.1, 0.2, 0.3),
            _percent,
            _with_error,
            "Every speed that a policy predicts, for a combination of model, plan and layout, is multiplied by a "
            "factor of exp(N(0, s)), in addition to the error of the fit to seven samples; the factor of a combination "
            "is always the same. Charged speeds are still the measured ones. Tiresias does not predict speeds, "
            "Rubick-N does not base choices on them, and Synergy only compares a layout with itself on more CPUs, "
            "which has the same factor.",
            random=True,
        ),
        Sweep(
            "unknown",
            "Unknown remaining work",
            "arrival rate relative to the trace",
            (0.5, 0.75, 1.0, 1.5, 2.0),
            _times,
            _at_load,
            f"*{WORK_UNKNOWN}* is `refold` with `trust_steps=False`: it assumes that the remaining work of a job "
            "equals the work done. Las and Tiresias never use the remaining work; Rubick uses it only to decide "
            "whether a reconfiguration pays off.",
            extra_lines={WORK_UNKNOWN: _work_unknown, "las": _at_load},
        ),
    )
}

HEADING = """# Sensitivity to single parameters

Mean completion time in hours on Rubick's random-plan trace (406 jobs, 64 GPUs), with the method of
[table4.md](../../docs/results/table4.md) and 78 s per restart unless stated otherwise. All jobs may be stopped and
reshaped. Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.scheduling.sweeps --write{options}
```

Sweeps with randomness (share of large models, errors) show {seeds}.
"""


def section(sweep: Sweep, lines: Mapping[str, Line], found: Mapping[Scenario, Summary]) -> str:
    """Format one sweep: description, chart and table."""
    values = {label: means(line, found) for label, line in lines.items()}
    titles = ["policy", *(sweep.text(value) for value in sweep.values)]
    rows = [[label, *(f"{value:.3f}" for value in line)] for label, line in values.items()]
    parts = [f"## {sweep.title}\n", f"{fill(sweep.description, LINE_LENGTH)}\n"]
    parts.append(f"![{sweep.title}: mean completion time of every policy](sweep_{sweep.name}.svg)\n")
    parts.append(markdown(titles, rows) + "\n")
    if sweep.name == "large":
        parts.append(f"{_requested_gpu_hours(lines)}\n")
    return "\n".join(parts)


def means(line: Line, found: Mapping[Scenario, Summary]) -> list[float]:
    """Return the mean completion time at each value, averaged over draws."""
    return [fmean(found[scenario].mean for scenario in scenarios) for scenarios in line]


def _requested_gpu_hours(lines: Mapping[str, Line]) -> str:
    """Format the requested GPU-hours at each share of large models, which should be equal."""
    charge = charged_speeds(cluster_for("random-plan"))
    hours = []
    for scenarios in next(iter(lines.values())):
        hours.append(fmean(sum(gpu_seconds(job, charge) for job in jobs_of(scenario)) / HOUR for scenario in scenarios))
    return f"Requested GPU-hours: {', '.join(f'{value:.0f}' for value in hours)}."


def chart(sweep: Sweep, lines: Mapping[str, Line], found: Mapping[Scenario, Summary]) -> LineChart:
    """Return the chart of mean completion times."""
    series = [Series(label, means(line, found)) for label, line in lines.items()]
    subtitle = "mean completion time on Rubick's random-plan trace, 406 jobs on 64 GPUs"
    x_labels = [sweep.text(value) for value in sweep.values]
    return LineChart(sweep.title, subtitle, sweep.x_title, "hours", sweep.values, x_labels, series)


def quick(sweep: Sweep) -> Sweep:
    """Return the sweep with only its first, middle and last value."""
    values = (sweep.values[0], sweep.values[len(sweep.values) // 2], sweep.values[-1])
    return replace(sweep, values=values)


def main() -> None:
    """Print the page; write it with --write."""
    parser = page_parser("benchmarks.scheduling.sweeps", __doc__, "the page and its charts beside this file")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SWEEPS))
    parser.add_argument("--quick", action="store_true", help="use fewer values and one random draw")
    parser.add_argument("--all", action="store_true", help=f"include slow policies: {', '.join(SLOW)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of random draws to average [{SEEDS}]")
    parser.add_argument("--workers", choices=("ray",), help="simulate on a Ray cluster (default: in two processes)")
    options = parser.parse_args()
    if data_folder() is None:
        print("the published traces and tables are not available (see benchmarks/README.md)")
        return
    if unknown := [name for name in options.names if name not in SWEEPS]:
        parser.error(f"unknown sweep {unknown[0]!r}; expected one of {', '.join(SWEEPS)}")
    if options.write and options.names:
        parser.error("--write needs the complete page: omit the names")
    policies = POLICIES + (SLOW if options.all else ())
    seeds = 1 if options.quick else options.seeds
    sweeps = [quick(SWEEPS[name]) if options.quick else SWEEPS[name] for name in options.names or SWEEPS]
    lines = {sweep.name: sweep.lines(policies, seeds) for sweep in sweeps}
    scenarios = [
        scenario
        for by_label in lines.values()
        for line in by_label.values()
        for averaged in line
        for scenario in averaged
    ]
    if options.workers == "ray":
        simulate_on_ray(scenarios)
    found = summarise_all(scenarios)
    arguments = " --quick" if options.quick else f" --seeds {seeds}" if seeds != SEEDS else ""
    draws = f"the mean of {seeds} random draws" if seeds > 1 else "one random draw"
    heading = HEADING.format(options=arguments + " --all" * options.all, seeds=draws)
    text = "\n".join([heading, *(section(sweep, lines[sweep.name], found) for sweep in sweeps)])
    charts = {f"sweep_{sweep.name}.svg": chart(sweep, lines[sweep.name], found).svg() for sweep in sweeps}
    publish(options, PAGE, text, charts=charts)


if __name__ == "__main__":
    main()
