"""Training jobs that change shape: equal losses, and the time without training.

`--quick` compares one sequence of plans and one random one, and measures one round of changes: a few minutes. Exits
with 1 if losses differ. Nothing else should run on the machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.reshaping.equality import (
    TOLERANCE,
    Comparison,
    compare_named_sequence,
    compare_random_sequence,
)
from benchmarks.reshaping.times import WAYS, Pause, measure
from benchmarks.result_page import FOLDER, measurement_parser, publish
from benchmarks.table import Row, as_markdown, at_least, at_most, markdown

RANDOM_SEQUENCES = 20
ROUNDS = 3
H200 = Path(__file__).with_name("h200.json")


def main() -> int:
    """Measure, and print the page."""
    parser = measurement_parser("benchmarks.reshaping", __doc__, "fewer sequences and rounds: a few minutes")
    parser.add_argument("--only", choices=["equality", "times"], help="measure one part only")
    parser.add_argument(
        "--long", type=int, default=0, metavar="STEPS", help="compare one long training too, such as 3000"
    )
    options = parser.parse_args()
    if find_spec("torch") is None:
        print("skipped: PyTorch is not installed (pip install 'refold[train]')")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        comparisons = [] if options.only == "times" else _compare(Path(folder), options.quick, options.long)
        pauses = [] if options.only == "equality" else _measure(Path(folder), options.quick)
    numbers = {"comparisons": [*map(_as_dict, comparisons)], "pauses": [*map(_as_dict, pauses)]}
    publish(options, FOLDER / "reshaping.md", _page(comparisons, pauses), numbers)
    return 0 if all(comparison.is_equal for comparison in comparisons) else 1


def _as_dict(value: Comparison | Pause) -> dict[str, Any]:
    return value._asdict()


def _compare(folder: Path, quick: bool, long: int) -> list[Comparison]:
    comparisons: list[Comparison] = []
    for dtype in TOLERANCE:
        comparisons.append(_show(compare_named_sequence(folder, dtype, 60 if quick else 200)))
    for seed in range(1 if quick else RANDOM_SEQUENCES):
        comparisons.append(_show(compare_random_sequence(folder, seed, "float64", 60, 5)))
    if long:
        comparisons.append(_show(compare_named_sequence(folder, "float32", long)))
    return comparisons


def _show(comparison: Comparison) -> Comparison:
    print(comparison, file=sys.stderr, flush=True)
    return comparison


def _measure(folder: Path, quick: bool) -> list[Pause]:
    pauses: list[Pause] = []
    for way in WAYS:
        pauses += measure(folder, way, 1 if quick else ROUNDS)
        values = [f"{pause.seconds:.2f}" for pause in pauses if pause.way == way]
        print(f"{way}: {', '.join(values)} s", file=sys.stderr, flush=True)
    return pauses


def _page(comparisons: list[Comparison], pauses: list[Pause]) -> str:
    parts = [_HEAD]
    if comparisons:
        parts.append(_equality_part(comparisons))
    if pauses:
        parts.append(_times_part(pauses))
    if H200.exists():
        parts.append(_gpu_part(json.loads(H200.read_text())))
    return "\n\n".join(parts) + "\n"


_HEAD = """# Training jobs that change shape

How exactly and how fast jobs of [`refold.train`](../train.md) change their plan and their number of ranks. Made by

<!-- not run: takes an hour -->
```sh
python -m benchmarks.reshaping --write --long 3000       # --quick takes a few minutes
```

on two cores (x86-64, PyTorch 2.13 for CPU, gloo) without other load."""


def _equality_part(comparisons: list[Comparison]) -> str:
    named = [comparison for comparison in comparisons if comparison.name == "named"]
    drawn = [comparison for comparison in comparisons if comparison.name != "named"]
    rows = [
        (
            f"DP2 → TP2 → PP2 → ZeRO-3 → one rank → DP4, {comparison.steps} steps, {comparison.dtype}",
            comparison.losses,
            comparison.weights,
            TOLERANCE[comparison.dtype],
        )
        for comparison in named
    ]
    if drawn:
        worst = max(comparison.losses for comparison in drawn)
        steps = drawn[0].steps
        rows.append(
            (
                f"{len(drawn)} random sequences of {drawn[0].changes} changes, {steps} steps, {drawn[0].dtype}",
                worst,
                max(comparison.weights for comparison in drawn),
                TOLERANCE[drawn[0].dtype],
            )
        )
    table = markdown(
        ("training", "largest difference of losses", "of weights", "goal", ""),
        [
            (name, f"{losses:.1e}", f"{weights:.1e}", f"≤ {goal:.0e}", "met" if losses <= goal else "**missed**")
            for name, losses, weights, goal in rows
        ],
    )
    return f"""## The same losses

A GPT (4 layers, width 64, AdamW) is trained with plans that change at arbitrary steps, and once on one rank with one
plan. Losses are compared step by step, relative to the undisturbed ones; final weights relative to the largest
weight. In the random sequences the plans are drawn from twelve (on one, two and four ranks); three of five changes
are live, one is warm (new processes, state in shared memory), one is cold (checkpoint, new processes). Rubick's
authors report losses up to 0.1 apart over 3,000 mini-batches.

{table}"""


def _times_part(pauses: list[Pause]) -> str:
    seconds = {way: [pause.seconds for pause in pauses if pause.way == way] for way in WAYS}
    relaunch = median(seconds["torchrun"])
    table = markdown(
        ("way", "median", "range", "changes", "relaunch takes"),
        [
            (
                way,
                f"{median(values):.2f} s",
                f"{min(values):.2f}–{max(values):.2f} s",
                str(len(values)),
                f"{relaunch / median(values):.1f} ×",
            )
            for way, values in seconds.items()
        ],
    )
    phases = [pause.phases for pause in pauses if pause.way == "live"]
    names = [*dict.fromkeys(name for phase in phases for name in phase)]
    stopped = {way: median(pause.stopped for pause in pauses if pause.way == way) for way in WAYS}
    first = {way: median(pause.first_step for pause in pauses if pause.way == way) for way in WAYS}
    live = ", ".join(f"{name} {median(phase.get(name, 0.0) for phase in phases):.3f} s" for name in names)
    split = "; ".join(f"{way} {stopped[way]:.2f} + {first[way]:+.2f} s" for way in WAYS)
    goals: list[Row] = [
        at_least(
            "live against relaunch",
            relaunch / median(seconds["live"]),
            20,
            f"{relaunch / median(seconds['live']):.1f} ×",
        ),
        at_least(
            "warm against relaunch",
            relaunch / median(seconds["warm"]),
            3,
            f"{relaunch / median(seconds['warm']):.1f} ×",
        ),
    ]
    return f"""## The time without training

A GPT with 51 million parameters (0.6 GB of state) on two ranks, moved around between DP2 ZeRO-3, TP2, DP2 and PP2.
*torchrun* is the usual way: a checkpoint, exit, `torchrun` with another plan, resume. *cold* is the same with our
agent. The time is that between the last step with the old plan and the first with the new one, plus what the first
step takes longer than the others (median over changes: {split}).

{table}

{as_markdown(goals)}

Phases of a live change (medians): {live}. Mean of all live changes: {mean(seconds["live"]):.2f} s."""


def _gpu_part(numbers: dict[str, Any]) -> str:
    rows = numbers["changes"]
    table = markdown(
        ("plan", "change", "first step takes longer by", "step", "GPU memory"),
        [
            (
                row["plan"],
                f"{row['change']:.3f} s",
                f"{max(row['first step'] - row['step'], 0):.3f} s",
                f"{row['step']:.2f} s",
                f"{row['memory'] / 2**30:.0f} GiB",
            )
            for row in rows[1:]
        ],
    )
    slowest = max(row["change"] + max(row["first step"] - row["step"], 0) for row in rows[1:])
    goal = as_markdown([at_most("slowest change, first step included", slowest, 2, f"{slowest:.2f} s", "s")])
    return f"""## On one GPU

A GPT with {numbers["parameters"] / 1e9:.1f} billion parameters on one {numbers["device"]} (PyTorch
{numbers["torch"]}, batch {numbers["batch"]}, sequences of 1,024 tokens), measured by `python -m
benchmarks.reshaping.gpu`. Each row is a change from the plan in the row before. Page-locked memory for offloading is
allocated while the old plan still trains.

{table}

{goal}"""


if __name__ == "__main__":
    sys.exit(main())
