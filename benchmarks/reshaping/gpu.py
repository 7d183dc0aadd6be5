"""Change the plan of a model with more than a billion parameters on one GPU, while it trains.

`python -m benchmarks.reshaping.gpu --json FILE`; of Refold's dependencies, it needs only PyTorch, msgspec and PyYAML.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import refold.train
from refold.model import parse_plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"

PLANS = (
    "dp1",
    "accumulate 4",
    "accumulate 4 recompute full",
    "recompute full",
    "recompute selective",
    "recompute selective offload",
    "accumulate 2 offload",
    "accumulate 2",
    "dp1",
)
STEPS = 6
"""Steps with each plan."""

BATCH = 16


def main() -> None:
    """Measure, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reshaping.gpu", description=__doc__)
    parser.add_argument(
        "--size", default="large", help="size of examples/train (default: large, 1.2 billion parameters)"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps with each plan (default: {STEPS})")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    numbers = measure(options.size, options.steps)
    for row in numbers["changes"]:
        first = row["first step"] - row["step"]
        print(f"{row['plan']:32}{row['change']:8.3f} s {first:+8.3f} s {row['step']:8.3f} s/step")
    if options.json:
        options.json.write_text(json.dumps(numbers))


def measure(size: str, steps: int) -> dict[str, Any]:
    """Train with one plan after another; return times, memory and losses."""
    sys.path.insert(0, str(EXAMPLES))
    from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
    from options import SIZES  # type: ignore[import-not-found]
    from synthetic_data import MarkovText  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = GPT(SIZES[size], VOCABULARY)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    session = refold.train.start(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4, fused=torch.cuda.is_available()),
        loss=loss,
        data=MarkovText(VOCABULARY, SIZES[size].length),
        batch=BATCH,
        steps=steps * len(PLANS),
        autocast=torch.bfloat16,
    )
    rows: list[dict[str, Any]] = []
    times: list[float] = []
    change = 0.0
    for batch in session:
        began = _now()
        value = session.step(batch)
        times.append(_now() - began)
        if len(times) == 1 and len(rows) + 1 < len(PLANS):
            session.prepare(parse_plan(PLANS[len(rows) + 1]))
        if len(times) == steps:
            rows.append(
                {
                    "plan": str(session.plan),
                    "change": change,
                    "phases": session.phases,
                    "first step": times[0],
                    "step": median(times[1:]),
                    "memory": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
                    "loss": value.item(),
                }
            )
            times = []
            if len(rows) < len(PLANS):
                began = _now()
                session.change(parse_plan(PLANS[len(rows)]))
                change = _now() - began
                if torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": torch.__version__, "parameters": parameters, "batch": BATCH, "changes": rows}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


if __name__ == "__main__":
    main()
