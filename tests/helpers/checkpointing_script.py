"""A training script without PyTorch: it counts its steps in a checkpoint, saves it on SIGTERM, and continues from it.

The first run trains until it is stopped, the second one a number of further steps. Each step is written to the file
`steps` of the checkpoint folder, with the number of GPUs.
"""

import os
import sys
import time
from itertools import count
from pathlib import Path

from refold.train import progress
from refold.train.run_settings import read_settings

PAUSE_SECONDS = 0.05


def main(further: int) -> None:
    """Train; `further`: the number of steps of the second run."""
    gpus = read_settings(os.environ).plan.gpus
    folder = Path(os.environ["REFOLD_CHECKPOINT"])
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"continues at step {first} on {gpus} GPUs", flush=True)
    for step in range(first + 1, first + 1 + further) if first else count(1):
        time.sleep(PAUSE_SECONDS)
        with (folder / "steps").open("a") as trained:
            print(step, gpus, file=trained)
        print(f"step {step} on {gpus} GPUs", flush=True)
        if progress.checkpoint_requested():
            checkpoint.write_text(str(step))
            sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]))
