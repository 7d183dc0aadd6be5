"""Measure training steps of Rubick's models on this machine's GPU.

`python -m benchmarks.accuracy.measure_device --out DIR --minutes 9` writes DIR/measured.csv, a row as soon as it is
measured, and DIR/machine.json. It needs PyTorch, msgspec and PyYAML, and no other part of Refold's dependencies. Each
model has a process of its own, and a share of the time; what is most telling is measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from time import monotonic

import msgspec

from refold.catalogue import read_model, read_samples, write_samples
from refold.model import Plan
from refold.perf import Measurement, ModelShape
from refold.train import ProfileConfig, StepBudget, default_device, device_name, measure, needs_at_least_memory_of

SHARE_OF_TIME = {
    "vit-base-16": 6,
    "roberta-large": 11,
    "bert-large": 11,
    "t5-1.2b": 17,
    "gpt2-xl": 20,
    "llama-2-7b": 35,
}
"""Models, and parts of the time that each gets; what one leaves, the next ones have."""

STARTS = "trial "
"""How a line begins that says which trial comes next: `trial 3: DP1 …`."""

ATTEMPTS = 3
"""Processes that a model gets, if they break off."""

GRACE_SECONDS = 30.0
"""How long a process may take over its time: what it has begun ends by itself, as a rule."""

TRIAL_SECONDS = 2.0
"""After so long, and one step at least, a trial has been measured well enough."""


def main() -> None:
    """Measure all models, or one of them in this process."""
    asked = _arguments()
    if asked.only_here:
        measure_model(asked)
    else:
        measure_models(asked)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.measure_device", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all models together")
    parser.add_argument("--models", default=",".join(SHARE_OF_TIME), help="which, by name, in this order")
    parser.add_argument("--tiny", action="store_true", help="toy models, one step of each trial: does it run?")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="else a GPU, if there is one")
    parser.add_argument("--only-here", action="store_true", help="one model, in this process")
    parser.add_argument("--skip", type=int, default=0, help="trials that were begun before")
    return parser.parse_args()


# All models: a process for each.


def measure_models(asked: argparse.Namespace) -> None:
    """One after the other, each with its share of the time that is left; another process where one has broken off."""
    asked.out.mkdir(parents=True, exist_ok=True)
    end = monotonic() + 60 * asked.minutes
    names = asked.models.split(",")
    for place, name in enumerate(names):
        share = SHARE_OF_TIME.get(name, 10) / sum(SHARE_OF_TIME.get(other, 10) for other in names[place:])
        until = monotonic() + share * (end - monotonic())
        begun = 0
        for _ in range(ATTEMPTS):
            begun, ended_well = _measure_apart(asked, name, begun, until, end)
            if ended_well or monotonic() > until:
                break
    rows = read_samples(asked.out / "measured.csv") if (asked.out / "measured.csv").exists() else []
    for name in dict.fromkeys(one.model for one in rows):
        ended = [one.status for one in rows if one.model == name]
        print(f"{name}: {len(ended)} rows, {ended.count('oom')} of them out of memory")


def _measure_apart(asked: argparse.Namespace, name: str, skip: int, until: float, end: float) -> tuple[int, bool]:
    """How many trials were begun in all, and whether the process ended by itself and well."""
    minutes = max(0.0, until - monotonic()) / 60
    command = [sys.executable, "-m", "benchmarks.accuracy.measure_device", "--only-here", "--models", name]
    command += ["--out", str(asked.out), "--minutes", f"{minutes:.3f}", "--skip", str(skip)]
    command += ["--tiny"] if asked.tiny else []
    command += ["--device", asked.device] if asked.device else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        late = Timer(max(1.0, min(until + GRACE_SECONDS, end) - monotonic()), process.kill)
        late.start()
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith(STARTS):
                skip = int(line.removeprefix(STARTS).partition(":")[0])
        ended_well = process.wait() == 0
        late.cancel()
    return skip, ended_well


def machine() -> dict[str, object]:
    """What it was measured on. Whoever asks holds some memory of the GPU from then on."""
    import torch

    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "gpu": gpu and gpu.name,
        "gpu_memory_gib": gpu and round(gpu.total_memory / 2**30, 2),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


# One model, in a process of its own.


def measure_model(asked: argparse.Namespace) -> None:
    """Its trials, as far as the time goes. Ends badly if a trial fails for another reason than memory."""
    until = monotonic() + 60 * asked.minutes
    device = asked.device or default_device()
    (asked.out / "machine.json").write_text(json.dumps(machine(), indent=2) + "\n")
    shape = read_model(asked.models)
    shape = toy_of(shape) if asked.tiny else shape
    path = asked.out / "measured.csv"
    rows = read_samples(path) if path.exists() else []
    for measured in _measured(shape, device, 0.0 if asked.tiny else TRIAL_SECONDS, asked.skip, until):
        rows.append(measured)
        _write(path, rows)
        _say(measured)


def _measured(shape: ModelShape, device: str, seconds: float, skip: int, until: float) -> Iterator[Measurement]:
    from refold.train import Trainer

    trials = [*dict.fromkeys(trials_of(shape, os.cpu_count() or 1))]
    print(f"{shape.name}: {len(trials) - skip} trials on {device}", flush=True)
    gpu = device_name(device)
    trainer = Trainer(shape, device)
    failed: list[ProfileConfig] = []
    warm_up = 3  # what is compiled or loaded when it is first used is so before the second trial
    for number, trial in enumerate(trials[skip:], start=skip + 1):
        if monotonic() > until:
            return
        if any(needs_at_least_memory_of(trial, other) for other in failed):
            continue
        print(f"{STARTS}{number}: {trial}", flush=True)
        measured = measure(trainer, trial, gpu, StepBudget(7, warm_up, seconds))
        if measured.status == "oom":
            failed.append(trial)
        else:
            warm_up = 1
        yield measured


def _write(path: Path, rows: list[Measurement]) -> None:
    """All rows, or all those before, whenever this is broken off."""
    beside = path.with_suffix(".part")
    write_samples(beside, rows)
    beside.replace(path)


def _say(measured: Measurement) -> None:
    if measured.step_seconds is None:
        print("  out of memory", flush=True)
        return
    parts = (measured.forward_seconds, measured.backward_seconds, measured.optimizer_seconds)
    of_them = " + ".join(f"{seconds:.3f}" for seconds in parts if seconds is not None)
    print(f"  {measured.step_seconds:.3f} s ({of_them}), {measured.memory_gib:.1f} GiB", flush=True)


def trials_of(shape: ModelShape, cpus: int) -> Iterator[ProfileConfig]:
    """At least 25 where there are CPUs enough, and perhaps some twice; the most telling first.

    Those that offload stand together, since to change over takes time.
    """
    usual, sequence = max(shape.batch, 4), shape.sequence

    def trial(plan: Plan, batch: int = usual, threads: int = 16, tokens: int = sequence) -> ProfileConfig:
        return ProfileConfig(plan, batch, tokens, min(threads, cpus))

    for accumulation in (1, 4, 2):
        yield trial(Plan(accumulation=accumulation))
        yield trial(Plan(accumulation=accumulation, recompute="full"))
    yield trial(Plan(recompute="selective"))
    yield trial(Plan(), usual // 2)
    yield trial(Plan(accumulation=2), usual * 2)

    for threads in (16, 4, 8, 2):
        yield trial(Plan(offload=True), threads=threads)
    yield trial(Plan(offload=True, accumulation=4), threads=8)
    yield trial(Plan(offload=True, recompute="full"), threads=8)
    yield trial(Plan(offload=True), usual // 2)

    yield trial(Plan(), usual // 4)
    yield trial(Plan(recompute="full"), usual // 2)
    yield trial(Plan(), tokens=sequence // 2)
    yield trial(Plan(accumulation=usual // 2))
    yield trial(Plan(recompute="selective", accumulation=2))
    yield trial(Plan(accumulation=usual))
    yield trial(Plan(recompute="full"), tokens=sequence // 2)
    yield trial(Plan(), usual * 2)
    yield trial(Plan(recompute="full"), usual * 2)
    yield trial(Plan(accumulation=4), usual * 2)
    yield trial(Plan(recompute="selective"), usual * 2)
    yield trial(Plan(), usual * 4)
    yield trial(Plan(recompute="full"), usual * 4)
    yield trial(Plan(accumulation=4), usual * 4)


def toy_of(shape: ModelShape) -> ModelShape:
    """The same kind of model, so small that any machine runs it."""
    return msgspec.structs.replace(
        shape,
        layers=1,
        encoder_layers=min(1, shape.encoder_layers),
        hidden=32,
        heads=4,
        kv_heads=0,
        head_size=0,
        ffn=64,
        vocabulary=64,
        positions=min(32, shape.positions),
        sequence=16,
        batch=4,
        parameters_stated=0,
    )


if __name__ == "__main__":
    main()
