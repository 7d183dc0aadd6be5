"""Training jobs that change shape: equal losses, and the time without training.

`--quick` compares one sequence of plans and one random one, and measures one round of changes: a few minutes. `--write`
keeps the numbers in cpu.json, and makes the page of all that is there: parts that were not measured now are of earlier
runs. Exits with 1 if losses differ. Nothing else should run on the machine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.reshaping.equality import (
    TOLERANCE,
    Comparison,
    compare_named_sequence,
    compare_random_sequence,
)
from benchmarks.reshaping.times import PLANS, WAYS, Pause, measure
from benchmarks.result_page import FOLDER, measurement_parser, publish
from benchmarks.table import Row, as_markdown, at_least, at_most, markdown

RANDOM_SEQUENCES = 20
ROUNDS = 3
CPU = Path(__file__).with_name("cpu.json")
H200 = Path(__file__).with_name("h200.json")

Numbers = dict[str, dict[str, Any]]
"""What was measured by part of the page (equality, long, times), with the machine it was measured on."""


def main() -> int:
    """Measure, and print the page."""
    parser = measurement_parser("benchmarks.reshaping", __doc__, "fewer sequences and rounds: a few minutes")
    parser.add_argument("--only", choices=["equality", "times"], help="measure one part only")
    parser.add_argument(
        "--long", type=int, default=0, metavar="STEPS", help="compare one long training too, such as 3000"
    )
    options = parser.parse_args()
    if find_spec("torch") is None:
        print("skipped: PyTorch is not installed (pip install '.[train]')")
        return 0
    earlier: Numbers = json.loads(CPU.read_text()) if options.write and CPU.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        measured = _measure(Path(folder), options.only, options.quick, options.long)
    numbers = earlier | measured
    if options.write:
        CPU.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    publish(options, FOLDER / "reshaping.md", _page(numbers), numbers)
    compared = [comparison for part in ("equality", "long") for comparison in _comparisons(measured, part)]
    return 0 if all(comparison.is_equal for comparison in compared) else 1


def _measure(folder: Path, only: str | None, quick: bool, long: int) -> Numbers:
    numbers: Numbers = {}
    if only in (None, "equality"):
        machine = _machine()
        numbers["equality"] = machine | {"comparisons": _compare(folder, quick)}
    if long:
        machine = _machine()
        numbers["long"] = machine | {"comparisons": [_show(compare_named_sequence(folder, "float32", long))._asdict()]}
    if only in (None, "times"):
        machine = _machine()
        numbers["times"] = machine | {"pauses": _measure_pauses(folder, quick)}
    return numbers


def _machine() -> dict[str, Any]:
    return {"torch": version("torch"), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}


def _comparisons(numbers: Numbers, part: str) -> list[Comparison]:
    return [Comparison(**row) for row in numbers.get(part, {}).get("comparisons", ())]


def _compare(folder: Path, quick: bool) -> list[dict[str, Any]]:
    comparisons: list[Comparison] = []
    for dtype in TOLERANCE:
        comparisons.append(_show(compare_named_sequence(folder, dtype, 60 if quick else 200)))
    for seed in range(1 if quick else RANDOM_SEQUENCES):
        comparisons.append(_show(compare_random_sequence(folder, seed, "float64", 60, 5)))
    return [comparison._asdict() for comparison in comparisons]


def _show(comparison: Comparison) -> Comparison:
    print(comparison, file=sys.stderr, flush=True)
    return comparison


def _measure_pauses(folder: Path, quick: bool) -> list[dict[str, Any]]:
    pauses: list[Pause] = []
    for way in WAYS:
        pauses += measure(folder, way, 1 if quick else ROUNDS)
        values = [f"{pause.seconds:.2f}" for pause in pauses if pause.way == way]
        print(f"{way}: {', '.join(values)} s", file=sys.stderr, flush=True)
    return [pause._asdict() for pause in pauses]


def _page(numbers: Numbers) -> str:
    parts = [_HEAD]
    if comparisons := [*_comparisons(numbers, "equality"), *_comparisons(numbers, "long")]:
        parts.append(_equality_part(comparisons))
    if "times" in numbers:
        parts.append(_times_part(numbers["times"]))
    if H200.exists():
        parts.append(_gpu_part(json.loads(H200.read_text())))
    return "\n\n".join(parts) + "\n"


_HEAD = """# Training jobs that change shape

How exactly and how fast jobs of [`refold.train`](../train.md) change their plan and their number of ranks. Made by

<!-- not run: takes an hour -->
```sh
python -m benchmarks.reshaping --write --long 3000       # --quick takes a few minutes
```"""


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


def _times_part(numbers: dict[str, Any]) -> str:
    pauses = [Pause(**row) for row in numbers["pauses"]]
    seconds = {way: [pause.seconds for pause in pauses if pause.way == way] for way in WAYS}
    relaunch = median(seconds["torchrun"])
    table = markdown(
        ("way", "median", "range", "changes", "of that, the first step", "relaunch takes"),
        [
            (
                way,
                f"{median(values):.2f} s",
                f"{min(values):.2f}–{max(values):.2f} s",
                str(len(values)),
                f"{median(max(pause.first_step, 0.0) for pause in pauses if pause.way == way):.2f} s",
                f"{relaunch / median(values):.1f} ×",
            )
            for way, values in seconds.items()
        ],
    )
    live, warm = relaunch / median(seconds["live"]), relaunch / median(seconds["warm"])
    goals: list[Row] = [
        at_least("live against relaunch", live, 20, f"{live:.1f} ×"),
        at_least("warm against relaunch", warm, 3, f"{warm:.1f} ×"),
    ]
    return f"""## The time without training

A GPT with 51 million parameters (0.6 GB of state) on two ranks, moved around between DP2 ZeRO-3, TP2, DP2 and PP2, on
{numbers["cores"]} cores (PyTorch {numbers["torch"]}, gloo; load average of the machine before: {numbers["load"]:.1f}).
*torchrun* is the usual way: a checkpoint, exit, `torchrun` with another plan, resume. *cold* is the same with our
agent. The time is that between the last step with the old plan and the first with the new one, plus what the first
step takes longer than the others.

{table}

{as_markdown(goals)}

Live changes one by one (medians; the phases are those of rank 0):

{_live_table(pauses)}

Mean of all live changes: {mean(seconds["live"]):.2f} s."""


def _live_table(pauses: list[Pause]) -> str:
    phases = [*dict.fromkeys(name for pause in pauses if pause.way == "live" for name in pause.phases)]
    rows: list[tuple[str, ...]] = []
    for before, after in pairwise([*map(str, PLANS), str(PLANS[0])]):
        same = [pause for pause in pauses if (pause.before, pause.after) == (before, after)]
        live = [pause for pause in same if pause.way == "live"]
        total, first = median(pause.seconds for pause in live), median(max(pause.first_step, 0.0) for pause in live)
        relaunch = median(pause.seconds for pause in same if pause.way == "torchrun")
        times = [*(median(pause.phases[name] for pause in live) for name in phases), first, total]
        rows.append((f"{before} → {after}", *(f"{time:.2f} s" for time in times), f"{relaunch / total:.1f} ×"))
    return markdown(("change", *phases, "first step", "in all", "relaunch takes"), rows)


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
