"""A training script for the agent. Arguments: a folder, the number of steps, the seconds between checkpoints, and
`own-loop` for a loop that reads its batches itself.

It appends 'STEP LOSS PLAN' to `losses` in the folder. Rank $SLOW_RANK takes a long time to load a sample.
"""

import os
import sys
import time
from pathlib import Path

import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor
from torch.utils.data import default_collate

from refold.train import start

BATCH = 8


class SlowWords(RepeatedWords):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return super().__getitem__(index)


folder, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = SmallGpt()
has_own_loop = "own-loop" in sys.argv
samples = SlowWords() if os.environ.get("SLOW_RANK") == os.environ.get("RANK", "none") else RepeatedWords()
session = start(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-2),
    loss=next_token_loss,
    data=None if has_own_loop else samples,
    batch=BATCH,
    steps=steps,
    save_every=float(sys.argv[3]),
    checkpoint=folder / "checkpoints",
)


def note(loss: Tensor) -> None:
    if session.rank == 0:
        with (folder / "losses").open("a") as file:
            file.write(f"{session.steps_done} {loss.item():.12f} {session.plan}\n")


if has_own_loop:
    while session.steps_done < steps:
        part = BATCH // session.plan.data
        first = session.steps_done * BATCH + session.data_rank * part
        note(session.step(default_collate([samples[i % len(samples)] for i in range(first, first + part)])))
        if session.should_change():
            session.save()
            sys.exit()
else:
    for batch in session:
        note(session.step(batch))
