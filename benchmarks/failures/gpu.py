"""What copies of the state cost a training on one GPU, and how long it takes to load one, by GB.

`python -m benchmarks.failures.gpu --json FILE`; of Refold's dependencies, it needs only PyTorch, NumPy, msgspec and
PyYAML. Steps are timed in turns, with a copy every N steps and without copies.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import refold.train
from refold.model import Plan
from refold.train import process_group
from refold.train.copies import CopySource, CopyToLoad
from refold.train.messages import Change, Copied, CopyOrders
from refold.train.process_group import Rendezvous
from refold.train.session import Session
from refold.train.state_copies import StateCopies

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
EVERY = (5, 20)
"""Steps between two copies."""

TURNS = 4
BATCH = 16


class Mailbox:
    """Stands for the agent: keeps what the rank sends."""

    def __init__(self) -> None:
        self.received: list[tuple[float, Any]] = []

    def send(self, message: Any) -> None:
        """Note a message, and when it came."""
        self.received.append((perf_counter(), message))

    def newest(self) -> Copied:
        """Return the newest complete copy."""
        return next(message for _, message in reversed(self.received) if isinstance(message, Copied))


class Trained:
    """A session, the batches of which are drawn by hand."""

    def __init__(self, size: str) -> None:
        sys.path.insert(0, str(EXAMPLES))
        from gpt import GPT, VOCABULARY, loss  # type: ignore[import-not-found]
        from options import SIZES  # type: ignore[import-not-found]
        from synthetic_data import MarkovText  # type: ignore[import-not-found]

        torch.manual_seed(0)
        model = GPT(SIZES[size], VOCABULARY)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.session: Session = refold.train.start(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-4, fused=torch.cuda.is_available()),
            loss=loss,
            data=MarkovText(VOCABULARY, SIZES[size].length),
            batch=BATCH,
            steps=10**6,
            autocast=torch.bfloat16 if torch.cuda.is_available() else None,
        )
        self._batches = iter(self.session)

    def step(self) -> float:
        """Train a step; return the loss."""
        return self.session.step(next(self._batches)).item()

    def seconds(self, steps: int, copies: StateCopies | None = None, every: int = 0) -> list[float]:
        """Train some steps; return the seconds of each, with those that copies take before and within them."""
        found = []
        self.session._copies = copies
        for number in range(steps):
            began = _now()
            if copies is not None and number % every == 0:
                copies.finish()
                write(copies, self.session)
            self.step()
            found.append(_now() - began)
        if copies is not None:
            copies.finish()
        self.session._copies = None
        return found


def write(copies: StateCopies, session: Session, *, wait: bool = False) -> None:
    """Write a copy, or begin to."""
    copies.write(session._reshaper.state, session._facts(), wait=wait)


def measure(size: str, turns: int) -> dict[str, Any]:
    """Train, with copies and without them."""
    trained, mailbox = Trained(size), Mailbox()
    trained.seconds(5)
    memory = Path("/dev/shm")
    needed = 3.5 * 12 * trained.parameters
    free = os.statvfs(memory).f_bavail * os.statvfs(memory).f_frsize if memory.is_dir() else 0
    with tempfile.TemporaryDirectory(dir=memory if free > needed else None) as folder:
        state = str(Path(folder) / "state")
        copies = _copies(state, mailbox)
        began = _now()
        write(copies, trained.session, wait=True)
        first, began = _now() - began, _now()
        if not copies.fits:
            raise SystemExit(f"benchmarks.failures.gpu: {folder} has no room for copies of {needed / 1e9:.0f} GB")
        write(copies, trained.session, wait=True)
        waiting = _now() - began
        size_bytes = _bytes(trained.session)
        rows = [_compare(trained, copies, every, turns) for every in EVERY]
        before = _sums(trained.session)
        write(copies, trained.session)
        trained.session._copies = copies
        trained.step()
        copies.finish()
        trained.session._copies = None
        load = [_load(trained.session, state, mailbox) for _ in range(3)]
        if _sums(trained.session) != before:
            raise SystemExit("benchmarks.failures.gpu: a copy has parts of another step")
        in_memory = folder.startswith(str(memory))
    gigabytes = size_bytes / 1e9
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "parameters": trained.parameters,
        "gigabytes": gigabytes,
        "shared memory": in_memory,
        "first copy": first,
        "copy while the training waits": waiting,
        "copies": rows,
        "load": load,
        "load per gigabyte": median(load) / gigabytes,
        "loss": trained.step(),
    }


def _compare(trained: Trained, copies: StateCopies, every: int, turns: int) -> dict[str, Any]:
    plain: list[float] = []
    copied: list[float] = []
    for _ in range(turns):
        plain += trained.seconds(every)
        copied += trained.seconds(every, copies, every)
    share = 1 - sum(plain) / sum(copied)
    steps_with_copy = copied[::every]
    return {
        "every": every,
        "step": median(plain),
        "step with a copy": median(steps_with_copy),
        "spread": [min(steps_with_copy), max(steps_with_copy)],
        "share": share,
        "plain": plain,
        "copied": copied,
    }


def _load(session: Session, state: str, mailbox: Mailbox) -> float:
    """Continue from the newest copy in the same process, as after the loss of a host; return the seconds."""
    newest = mailbox.newest()
    source = CopySource("", 0, newest.regions)
    load = CopyToLoad(newest.generation, newest.step, newest.slot, {0: source})
    copies = _copies(state, mailbox, load)
    session._training_step = None
    began = _now()
    process_group.leave()
    session._restore(session._reshaper.join(Plan(), Rendezvous(0, 1), copies.load))
    session._prepare()
    return _now() - began


def _copies(state: str, mailbox: Mailbox, load: CopyToLoad | None = None) -> StateCopies:
    orders = CopyOrders(0 if load is None else 1 - load.slot, load)
    return StateCopies(Change(Plan(), 1, 1, state, False, copies=orders), mailbox)  # type: ignore[arg-type]


def _bytes(session: Session) -> int:
    return sum(box.local.numel() * box.local.element_size() for box in session._reshaper.state.boxes)


def _sums(session: Session) -> list[float]:
    return [box.local.double().sum().item() for box in session._reshaper.state.boxes]


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


def main() -> None:
    """Measure, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failures.gpu", description=__doc__)
    parser.add_argument(
        "--size", default="large", help="size of examples/train (default: large, 1.2 billion parameters)"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"turns with and without copies (default: {TURNS})")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    numbers = measure(options.size, options.turns)
    if options.json:
        options.json.write_text(json.dumps(numbers))
    for row in numbers["copies"]:
        print(
            f"a copy of {numbers['gigabytes']:.2f} GB every {row['every']} steps: {100 * row['share']:.1f} % of the "
            f"time (step {row['step']:.3f} s, with a copy {row['step with a copy']:.3f} s)"
        )
    print(f"a copy for which the training waits: {numbers['copy while the training waits']:.2f} s")
    print(f"loading a copy: {median(numbers['load']):.2f} s, {numbers['load per gigabyte']:.3f} s/GB")


if __name__ == "__main__":
    main()
