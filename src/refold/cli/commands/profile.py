"""`refold profile`: measure training steps of a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import argument, option, switch
from refold.cli.views import AsJson, Column, Table, plural, print_json, print_line, print_notes, print_tables, progress
from refold.errors import BadFile, BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from refold.planning.perf import Measurement, ModelShape
    from refold.train import ProfileConfig

DEFAULT_OUTPUT = Path("samples.csv")

DEFAULT_MAX_SIZES = {"cpu": (4, 64), "cuda": (32, 1_000_000)}
"""Limits on the default batch size and sequence length, so that a profile takes a few minutes."""


def profile(
    model: Annotated[str, argument("MODEL", "Model name (see 'refold models') or YAML file.")],
    batch: Annotated[
        int | None, option("N", "Batch size in samples (default: the model's, at most 32).", min=1)
    ] = None,
    seq: Annotated[int | None, option("N", "Sequence length in tokens (default: the model's).", min=1)] = None,
    samples: Annotated[int, option("N", "Number of configurations to measure.", min=1, max=500)] = 7,
    measure_all: Annotated[
        bool, switch("--all", "Measure all configurations that fit, not only the most informative.")
    ] = False,
    steps: Annotated[int, option("N", "Steps to measure per configuration; the median is used.", min=1)] = 5,
    layers: Annotated[
        int | None, option("N", "Reduce the model to this number of layers, for a quick test.", min=1)
    ] = None,
    device: Annotated[str | None, option("cuda|cpu", "Device (default: a GPU if available).")] = None,
    threads: Annotated[str | None, option("N,…", "CPU threads to try for offload (default: 16,4,8,2 of 16).")] = None,
    out: Annotated[Path, option("FILE", "Output file.")] = DEFAULT_OUTPUT,
    as_json: AsJson = False,
) -> None:
    """Measure training steps of a model on this machine: step time, its parts, and memory.

    The model is initialised with random weights and trained for a few steps under different plans: micro-batch sizes,
    recomputation, offload to the CPU. Configurations that run out of memory are recorded as such. `refold fit` fits
    the performance model to the samples. Needs PyTorch: pip install '.[train]' in the source folder

    Example: refold profile gpt2-xl --batch 16 --out gpt2.csv

    Example: refold profile my-model.yaml --layers 2 --device cpu --batch 2 --seq 64
    """
    from refold.planning.catalogue import read_model
    from refold.train import check_device, choose_configs, default_device, require_torch, truncate_layers

    require_torch("refold profile")
    shape = read_model(model)
    device = device or default_device()
    check_device(device)
    shape = truncate_layers(shape, layers) if layers else shape
    batch, seq = _sizes(shape, device, batch, seq)
    trials = choose_configs(shape, batch=batch, sequence=seq, threads=_parse_threads(threads), count=samples)
    _check_writable(out)
    notes = [f"{shape.name} on this machine's {device}: {batch} samples of {seq} tokens per step"]
    if not as_json:
        print_notes(notes)
    measurements = _measure(shape, trials, device, None if measure_all else samples, steps)
    found = _write_measurements(out, measurements, quiet=as_json)
    fitting = sum(one.status == "ok" for one in found)
    if fitting < samples and not measure_all:
        notes.append(f"only {fitting} of {plural(samples, 'sample')} fit into memory; try a smaller --seq or --layers")
    if as_json:
        print_json({"model": shape.name, "device": device, "samples": found, "notes": notes, "written": str(out)})
    else:
        print_notes(notes[1:])
        print_tables(_table(shape.name, found))
        print_line(f"samples: {out}")
    if not fitting:
        raise typer.Exit(1)
    if not (layers or as_json):
        print_line(f"next: refold fit {out}")


def _write_measurements(out: Path, measurements: Iterator[Measurement], *, quiet: bool) -> list[Measurement]:
    """Write the samples to the file after each one, so that an interrupt does not lose them; return all of them."""
    from refold.planning.catalogue import write_samples

    found: list[Measurement] = []
    for measured in measurements:
        found.append(measured)
        write_samples(out, found)
        if not quiet:
            result = f"{measured.step_seconds:.3g} s per step" if measured.step_seconds else "out of memory"
            print_notes([f"{len(found)}: {measured.plan}, batch {measured.batch}: {result}"])
    return found


def _sizes(shape: ModelShape, device: str, batch: int | None, seq: int | None) -> tuple[int, int]:
    samples, tokens = DEFAULT_MAX_SIZES[device]
    return batch or min(shape.batch, samples), seq or min(shape.sequence, tokens)


def _parse_threads(given: str | None) -> list[int]:
    if given is None:
        return []
    numbers = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 4096 for word in numbers):
        raise BadInput(f"--threads {given}: expected numbers ≥ 1, such as --threads 2,4,8")
    return [*dict.fromkeys(map(int, numbers))]


def _check_writable(path: Path) -> None:
    """Check that the output file can be written before anything is measured."""
    if path.is_dir() or not path.parent.is_dir():
        raise BadFile(path, "is a folder" if path.is_dir() else "the folder does not exist; create it first")
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None


def _measure(
    shape: ModelShape, trials: Sequence[ProfileConfig], device: str, max_fitting: int | None, steps: int
) -> Iterator[Measurement]:
    from refold.train import profiling

    budget = profiling.StepBudget(steps)
    total = (len(trials) if max_fitting is None else max_fitting) * (budget.warm_up + steps)
    with progress(f"measuring {shape.name}", total) as advance:
        yield from profiling.profile(
            shape, trials, device=device, max_fitting=max_fitting, budget=budget, on_step=advance
        )


def _table(name: str, found: Sequence[Measurement]) -> Table:
    columns: list[Column[Measurement]] = [
        Column("plan", lambda one: str(one.plan)),
        Column("micro-batch", lambda one: f"{one.micro_batch:.0f}", number=True),
        Column("CPU threads", lambda one: f"{one.cpus:.0f}" if one.plan.offload else "", number=True),
        Column("step", lambda one: _format_milliseconds(one.step_seconds), number=True),
        Column("forward", lambda one: _format_milliseconds(one.forward_seconds), number=True),
        Column("backward", lambda one: _format_milliseconds(one.backward_seconds), number=True),
        Column("optimiser", lambda one: _format_milliseconds(one.optimizer_seconds), number=True),
        Column("samples/s", lambda one: f"{one.samples_per_second:,.4g}" if one.status == "ok" else "", number=True),
        Column("memory", _format_memory, number=True),
    ]
    fitting = sum(one.status == "ok" for one in found)
    title = f"{name} on {found[0].gpu}: {plural(fitting, 'sample')}" if found else f"{name}: no samples"
    return Table(title, columns, found)


def _format_memory(sample: Measurement) -> str:
    return f"{sample.memory_gib:,.1f} GiB" if sample.memory_gib is not None else "out of memory"


def _format_milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"
