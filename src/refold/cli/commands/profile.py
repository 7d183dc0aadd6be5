"""`refold profile`: measure training steps of a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.views import AsJson, Column, Table, plural, print_json, print_tables, progress, say, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from refold.perf import Measurement, ModelShape
    from refold.train import ProfileConfig

SAMPLES = Path("samples.csv")

LARGEST = {"cpu": (4, 64), "cuda": (32, 1_000_000)}
"""Samples of a step and tokens of a sample, at most, where nothing is said: a few minutes should do for all of it."""


def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model (see 'refold models'), or a YAML file.")],
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Samples of a step [the model's, but ≤ 32].")
    ] = None,
    seq: Annotated[int | None, typer.Option("--seq", min=1, help="Tokens of a sample [the model's].")] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, max=500, help="How many configurations to measure.")] = 7,
    every: Annotated[bool, typer.Option("--all", help="Measure all that fit, not only the most telling.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to measure of each; the median counts.")] = 5,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Cut the model to so many layers, for a trial.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="cuda|cpu", help="Where [a GPU, if any].")] = None,
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="N,…", help="CPU threads to try for offload [16,4,8,2 of 16].")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the samples.")] = SAMPLES,
    as_json: AsJson = False,
) -> None:
    """Measure training steps of a model on this machine: time, its parts, and memory.

    The model is built with random weights and trained for a few steps under different plans: larger and smaller
    micro-batches, recomputation, offload to the CPU. What does not fit into memory is noted as such. `refold fit`
    turns the samples into a model of the time. Needs PyTorch: pip install 'refold[train]'

    Example: refold profile gpt2-xl --batch 16 --out gpt2.csv

    Example: refold profile my-model.yaml --layers 2 --device cpu --batch 2 --seq 64
    """
    from refold.catalogue import read_model, write_samples
    from refold.train import check_device, need_torch, samples_to_take, usual_device, with_layers

    need_torch("refold profile")
    shape = read_model(model)
    device = device or usual_device()
    check_device(device)
    shape = with_layers(shape, layers) if layers else shape
    batch, seq = _sizes(shape, device, batch, seq)
    trials = samples_to_take(shape, batch=batch, sequence=seq, threads=_threads(threads), count=samples)
    _check_writable(out)
    notes = [f"{shape.name} on this machine's {device}: steps of {batch} samples, {seq} tokens each"]
    if not as_json:
        tell(notes)
    found: list[Measurement] = []
    for measured in _measured(shape, trials, device, None if every else samples, steps):
        found.append(measured)
        write_samples(out, found)  # at once: who interrupts this keeps what there is
        if not as_json:
            took = f"{measured.step_seconds:.3g} s a step" if measured.step_seconds else "out of memory"
            tell([f"{len(found)}: {measured.plan}, batch {measured.batch}: {took}"])
    fitted = sum(one.status == "ok" for one in found)
    if fitted < samples and not every:
        notes.append(
            f"only {fitted} of {plural(samples, 'sample')} fit into memory; a smaller --seq or --layers may help"
        )
    if as_json:
        print_json({"model": shape.name, "device": device, "samples": found, "notes": notes, "written": str(out)})
    else:
        tell(notes[1:])
        print_tables(_table(shape.name, found))
        say(f"samples: {out}")
    if not fitted:
        raise typer.Exit(1)
    if not (layers or as_json):
        say(f"next: refold fit {out}")


def _sizes(shape: ModelShape, device: str, batch: int | None, seq: int | None) -> tuple[int, int]:
    samples, tokens = LARGEST[device]
    return batch or min(shape.batch, samples), seq or min(shape.sequence, tokens)


def _threads(given: str | None) -> list[int]:
    from refold.errors import BadInput

    if given is None:
        return []
    numbers = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 4096 for word in numbers):
        raise BadInput(f"--threads {given}: expected numbers ≥ 1, such as --threads 2,4,8")
    return [*dict.fromkeys(map(int, numbers))]


def _check_writable(path: Path) -> None:
    """Complain now, not after minutes of work, if the samples have no place to go."""
    from refold.errors import BadFile

    if path.is_dir() or not path.parent.is_dir():
        raise BadFile(path, "is a folder" if path.is_dir() else "has no folder to be in; make it first")
    beside = path.with_name(path.name + ".part")
    try:
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None


def _measured(
    shape: ModelShape, trials: Sequence[ProfileConfig], device: str, wanted: int | None, steps: int
) -> Iterator[Measurement]:
    from refold.train import profiling

    effort = profiling.Effort(steps)
    total = (len(trials) if wanted is None else wanted) * (effort.warm_up + steps)
    with progress(f"measuring {shape.name}", total) as advance:
        yield from profiling.profile(shape, trials, device=device, wanted=wanted, effort=effort, on_step=advance)


def _table(name: str, found: Sequence[Measurement]) -> Table:
    columns = {
        "plan": Column("plan"),
        "micro_batch": Column("micro-batch", number=True),
        "threads": Column("CPU threads", number=True),
        "step": Column("step", _milliseconds, number=True),
        "forward": Column("forward", _milliseconds, number=True),
        "backward": Column("backward", _milliseconds, number=True),
        "optimizer": Column("optimiser", _milliseconds, number=True),
        "rate": Column("samples/s", number=True),
        "memory": Column("memory", number=True),
    }
    rows = [
        {
            "plan": str(one.plan),
            "micro_batch": f"{one.micro_batch:.0f}",
            "threads": f"{one.cpus:.0f}" if one.plan.offload else "",
            "step": one.step_seconds,
            "forward": one.forward_seconds,
            "backward": one.backward_seconds,
            "optimizer": one.optimizer_seconds,
            "rate": f"{one.samples_per_second:,.4g}" if one.status == "ok" else "",
            "memory": f"{one.memory_gib:,.1f} GiB" if one.memory_gib is not None else "too much",
        }
        for one in found
    ]
    fitted = sum(one.status == "ok" for one in found)
    title = f"{name} on {found[0].gpu}: {plural(fitted, 'sample')}" if found else f"{name}: no samples"
    return Table(title, columns, rows)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"
