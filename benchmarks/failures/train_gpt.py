"""A small GPT on hosts that fail, trained by `refold.train`: under agents, or under torchrun.

Arguments: the folder of the host, that of checkpoints, seconds between them, the number of steps, and milliseconds to
load a sample, which stand for the work of a GPU: hosts that share the cores of one machine compute at the same time.

Rank 0 appends 'TIME STEP LOSS' to `steps` in the folder, and each rank the seconds that a copy of its state takes to
`copies`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train"))

import torch
from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
from options import SIZES  # type: ignore[import-not-found]
from synthetic_data import MarkovText, SlowData  # type: ignore[import-not-found]

import refold.train
from refold.train.state_copies import StateCopies

BATCH = 12  # divisible by as many hosts as there are, with one fewer, and with two fewer

folder, checkpoints = Path(sys.argv[1]), sys.argv[2]
save_every, steps, load_milliseconds = float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])


def write_timed(copies: StateCopies, *arguments: Any, **options: Any) -> float | None:
    """Write a copy, and note how long it took."""
    seconds = write(copies, *arguments, **options)
    with (folder / "copies").open("a") as file:
        file.write(f"{seconds or 0.0:.6f}\n")
    return seconds


write = StateCopies.write
StateCopies.write = write_timed  # type: ignore[method-assign,assignment]

torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
size = SIZES["tiny"]
model = GPT(size, VOCABULARY)
session = refold.train.start(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-3),
    loss=lambda logits, batch: loss(logits, batch).double(),
    data=SlowData(MarkovText(VOCABULARY, size.length), load_milliseconds),
    batch=BATCH,
    steps=steps,
    checkpoint=checkpoints,
    save_every=save_every,
)
with (folder / "steps").open("a", buffering=1) as file:
    for batch in session:
        value = session.step(batch)
        if session.rank == 0:
            file.write(f"{time.time():.3f} {session.steps_done} {value.item():.15g}\n")
