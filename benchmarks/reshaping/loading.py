"""Whether a training waits for its data: the time from step to step with a data set that takes time to read.

`python -m benchmarks.reshaping.loading`, on one GPU or on CPU; of Refold's dependencies, it needs only PyTorch, NumPy,
msgspec and PyYAML. A batch of 64 samples is read by eight workers of a DataLoader, in the background.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import refold.train

BATCH, WORKERS, STEPS, WARM_UP = 64, 8, 120, 40


class SlowSamples(Dataset[dict[str, Tensor]]):  # type: ignore[misc]
    """Random vectors and their sums, each of which takes a while to read."""

    def __init__(self, seconds: float, length: int) -> None:
        self._seconds = seconds
        self._length = length

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self._seconds)
        values = torch.randn(self._length, 256, generator=torch.Generator().manual_seed(index))
        return {"values": values, "sums": values.sum(-1, keepdim=True)}


class Perceptron(nn.Module):  # type: ignore[misc]
    """Layers of some width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = [part for _ in range(6) for part in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(nn.Linear(256, width), nn.GELU(), *hidden, nn.Linear(width, 1))

    def forward(self, values: Tensor) -> Any:
        """Return the estimated sums."""
        return self.layers(values)


def step_seconds(reading: float, width: int, length: int) -> float:
    """Return the mean time from one step to the next."""
    torch.manual_seed(0)
    model, data = Perceptron(width), SlowSamples(reading, length)
    session = refold.train.start(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        loss=lambda output, batch: nn.functional.mse_loss(output.float(), batch["sums"]),
        data=DataLoader(data, BATCH, num_workers=WORKERS, pin_memory=torch.cuda.is_available()),
        steps=STEPS,
        autocast=torch.bfloat16,
    )
    times = []
    for batch in session:
        session.step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
    return (times[-1] - times[WARM_UP]) / (STEPS - 1 - WARM_UP)


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reshaping.loading", description=__doc__)
    parser.add_argument("--reading", type=float, default=0.004, help="seconds to read a sample (default: 0.004)")
    parser.add_argument("--width", type=int, default=4096, help="width of the layers (default: 4096)")
    parser.add_argument("--length", type=int, default=512, help="vectors of a sample (default: 512)")
    options = parser.parse_args()
    seconds = step_seconds(options.reading, options.width, options.length)
    reading = 1000 * options.reading * BATCH / WORKERS
    print(f"reading {reading:.0f} ms per batch: {1000 * seconds:.1f} ms from one step to the next")


if __name__ == "__main__":
    main()
