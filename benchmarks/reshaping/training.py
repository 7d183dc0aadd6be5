"""The training script of the benchmark: a GPT of examples/train that writes loss and times of every step to a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import sleep, time

import torch

import refold.train

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train"))

from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
from options import Size  # type: ignore[import-not-found]
from synthetic_data import MarkovText  # type: ignore[import-not-found]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for losses, weights and checkpoints")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--save-every", type=float, default=1e9)
    parser.add_argument("--pace", type=float, default=0.0, help="smallest time of a step, in seconds")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, options.dtype))
    torch.manual_seed(0)
    size = Size(options.layers, options.hidden, 4, 32)
    model = GPT(size, VOCABULARY)
    session = refold.train.start(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5),
        loss=loss_in_double_precision if options.dtype == "float64" else loss,
        data=MarkovText(VOCABULARY, size.length),
        batch=options.batch,
        steps=options.steps,
        checkpoint=options.folder / "checkpoints",
        save_every=options.save_every,
    )
    with (options.folder / "steps").open("a") as file:
        for batch in session:
            began = time()
            value = session.step(batch).item()
            sleep(max(0.0, began + options.pace - time()))
            if session.rank == 0:
                print(session.steps_done, repr(value), began, time(), session.plan, file=file, flush=True)
    weights = session.full_state_dict()
    if session.rank == 0:
        torch.save(weights, options.folder / "weights")


def loss_in_double_precision(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss without conversion to float32."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())


if __name__ == "__main__":
    main()
