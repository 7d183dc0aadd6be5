"""Measure training steps of the modules of modules.py on the GPU of this machine: PyTorch and transformers alone.

`python benchmarks/accuracy/measure_modules.py --out FILE.csv` measures. A step is that of a plain script: everything in
bfloat16, forward pass, backward pass, fused AdamW, one synchronisation. `--trace FILE.json` writes the totals of the
traced modules instead, for which no GPU but Refold is needed.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import sys
import traceback
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from modules import MODULES, loss_of  # type: ignore[import-not-found]

WARM_UP, STEPS, MAX_SECONDS = 3, 7, 2.0
"""Steps before the measured ones; measured steps; no further step begins after so many seconds."""


def main() -> None:
    """Measure or trace all modules."""
    parser = argparse.ArgumentParser(description="Measure or trace PyTorch modules.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file of measured steps")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="JSON file of traced modules")
    parser.add_argument("--only", nargs="*", default=list(MODULES), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=500.0, help="no module is measured after this")
    options = parser.parse_args()
    if options.trace:
        shapes = {name: trace(name) for name in options.only}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(totals)}" for name, totals in shapes.items())
        options.trace.write_text(f'{{"torch": "{torch.__version__}", "modules": {{\n{lines}\n}}}}\n', encoding="utf-8")
    if options.out:
        measure_all(options.only, options.out, monotonic() + options.seconds)


def measure_all(names: list[str], path: Path, end: float) -> None:
    """Measure modules until the time is over, and write each row at once."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["module", "batch", "step_s", "memory_gib"])
        for name in names:
            if monotonic() > end:
                break
            try:
                for batch, seconds, gib in measure(name):
                    rows.writerow([name, batch, f"{seconds:.6g}", f"{gib:.6g}"])
                    print(name, batch, f"{seconds * 1e3:.2f} ms {gib:.2f} GiB", flush=True)
            except Exception:  # one module must not end the others
                traceback.print_exc(limit=-3)
            file.flush()


def trace(name: str) -> Any:
    """Return the totals of a module."""
    import msgspec

    from refold.train.tracing import trace_totals

    build, batches = MODULES[name]
    with torch.device("meta"):
        module, inputs = build(batches[0])
    begin = perf_counter()
    totals = trace_totals(module, inputs, loss_of)
    print(f"{name}: traced in {perf_counter() - begin:.1f} s", flush=True)
    return msgspec.to_builtins(totals)


def measure(name: str) -> list[tuple[int, float, float]]:
    """Return batch, median seconds of a step and GiB for each batch that fits."""
    build, batches = MODULES[name]
    found = []
    for batch in batches:
        try:
            found.append((batch, *_measure(*_on_gpu(build, batch))))
        except torch.OutOfMemoryError:
            print(name, batch, "out of memory", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return found


def _on_gpu(build: Any, batch: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    with torch.device("cuda"):
        module, inputs = build(batch)
    module.to(torch.bfloat16).train()
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            inputs[key] = value.to(torch.bfloat16)
    return module, inputs


def _measure(module: torch.nn.Module, inputs: dict[str, Any]) -> tuple[float, float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)

    def step() -> float:
        begin = perf_counter()
        loss = loss_of(module(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return perf_counter() - begin

    for _ in range(WARM_UP):
        step()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    begin = perf_counter()
    while len(times) < STEPS and (len(times) < 3 or perf_counter() - begin < MAX_SECONDS):
        times.append(step())
    return statistics.median(times), torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
