"""A training script for the agent. Arguments: a folder, the number of steps, and the seconds between checkpoints.

It appends 'STEP LOSS PLAN' to `losses` in the folder.
"""

import sys
from pathlib import Path

import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss

from refold.train import start

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = SmallGpt()
session = start(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-2),
    loss=next_token_loss,
    data=RepeatedWords(),
    batch=8,
    steps=steps,
    save_every=float(sys.argv[3]),
    checkpoint=folder / "checkpoints",
)
for batch in session:
    loss = session.step(batch)
    if session.rank == 0:
        with (folder / "losses").open("a") as file:
            file.write(f"{session.steps_done} {loss.item():.12f} {session.plan}\n")
