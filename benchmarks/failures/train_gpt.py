"""A small GPT on hosts that fail. Arguments: the folder of the host, that of checkpoints, and seconds between them.

Rank 0 appends 'TIME STEP' to `steps` in the folder. Loading a sample takes a time that stands for the work of a GPU, so
that hosts which share the cores of one machine compute at the same time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train"))

import torch
from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
from options import SIZES  # type: ignore[import-not-found]
from synthetic_data import MarkovText, SlowData  # type: ignore[import-not-found]

import refold.train

BATCH = 12  # divisible by as many hosts as there are, with one fewer, and with two fewer
LOAD_MILLISECONDS = 60.0
STEPS = 10**6

torch.manual_seed(0)
torch.set_num_threads(1)
size = SIZES["tiny"]
model = GPT(size, VOCABULARY)
session = refold.train.start(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-3),
    loss=loss,
    data=SlowData(MarkovText(VOCABULARY, size.length), LOAD_MILLISECONDS),
    batch=BATCH,
    steps=STEPS,
    checkpoint=sys.argv[2],
    save_every=float(sys.argv[3]),
)
with (Path(sys.argv[1]) / "steps").open("a", buffering=1) as file:
    for batch in session:
        session.step(batch)
        if session.rank == 0:
            file.write(f"{time.time():.3f} {session.steps_done}\n")
