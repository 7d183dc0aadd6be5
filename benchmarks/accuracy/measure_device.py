"""Measure training steps of Rubick's models on the GPU of this machine.

`python -m benchmarks.accuracy.measure_device --out DIR --minutes 9` writes DIR/measured.csv, row by row, and
DIR/machine.json. Of Refold's dependencies, it needs only PyTorch, msgspec and PyYAML. Each model has its own process
and a share of the time; the most informative configurations are measured first.
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

from refold.model import Plan
from refold.planning.catalogue import read_model, read_samples, write_samples
from refold.planning.perf import Measurement, ModelShape
from refold.train import ProfileConfig, StepBudget, default_device, device_name, measure, needs_at_least_memory_of

SHARE_OF_TIME = {
    "vit-base-16": 6,
    "roberta-large": 11,
    "bert-large": 11,
    "t5-1.2b": 17,
    "gpt2-xl": 20,
    "llama-2-7b": 35,
}
"""Relative shares of the time by model; unused time goes to the models that follow."""

CONFIG_PREFIX = "configuration "
"""Prefix of the output line that announces the next configuration: `configuration 3: DP1 …`."""

MAX_ATTEMPTS = 3
"""Maximum number of processes per model, if they fail."""

GRACE_SECONDS = 30.0
"""Time after its deadline at which a process is killed; normally it finishes its last measurement by itself."""

MAX_SECONDS_PER_CONFIG = 2.0
"""The measurement of a configuration ends after this time, and at least one step."""


def main() -> None:
    """Measure all models, or one of them in this process."""
    options = _parse_options()
    if options.only_here:
        measure_model(options)
    else:
        measure_models(options)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.measure_device", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--minutes", type=float, default=9.0, help="total time for all models [9]")
    parser.add_argument("--models", default=",".join(SHARE_OF_TIME), help="comma-separated model names, in order")
    parser.add_argument("--tiny", action="store_true", help="use toy models and single steps, to check that it works")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU if available")
    parser.add_argument("--only-here", action="store_true", help="measure one model in this process")
    parser.add_argument("--skip", type=int, default=0, help="skip this many configurations")
    return parser.parse_args()


# --- all models, each in its own process --------------------------------------------------------------------


def measure_models(options: argparse.Namespace) -> None:
    """Measure models one after the other, each for its share of the remaining time; restart failed processes."""
    options.out.mkdir(parents=True, exist_ok=True)
    end = monotonic() + 60 * options.minutes
    names = options.models.split(",")
    for index, name in enumerate(names):
        share = SHARE_OF_TIME.get(name, 10) / sum(SHARE_OF_TIME.get(other, 10) for other in names[index:])
        deadline = monotonic() + share * (end - monotonic())
        started = 0
        for _ in range(MAX_ATTEMPTS):
            started, succeeded = _measure_in_process(options, name, started, deadline, end)
            if succeeded or monotonic() > deadline:
                break
    rows = read_samples(options.out / "measured.csv") if (options.out / "measured.csv").exists() else []
    for name in dict.fromkeys(one.model for one in rows):
        statuses = [one.status for one in rows if one.model == name]
        print(f"{name}: {len(statuses)} rows, {statuses.count('oom')} of them out of memory")


def _measure_in_process(
    options: argparse.Namespace, name: str, skip: int, deadline: float, end: float
) -> tuple[int, bool]:
    """Return the number of configurations started so far, and whether the process succeeded."""
    minutes = max(0.0, deadline - monotonic()) / 60
    command = [sys.executable, "-m", "benchmarks.accuracy.measure_device", "--only-here", "--models", name]
    command += ["--out", str(options.out), "--minutes", f"{minutes:.3f}", "--skip", str(skip)]
    command += ["--tiny"] if options.tiny else []
    command += ["--device", options.device] if options.device else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        timeout = Timer(max(1.0, min(deadline + GRACE_SECONDS, end) - monotonic()), process.kill)
        timeout.start()
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith(CONFIG_PREFIX):
                skip = int(line.removeprefix(CONFIG_PREFIX).partition(":")[0])
        succeeded = process.wait() == 0
        timeout.cancel()
    return skip, succeeded


def describe_machine() -> dict[str, object]:
    """Return the hardware and software versions. The calling process holds GPU memory afterwards."""
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


# --- one model, in this process -----------------------------------------------------------------------------


def measure_model(options: argparse.Namespace) -> None:
    """Measure configurations of a model until the time is up. Any failure except out of memory raises."""
    deadline = monotonic() + 60 * options.minutes
    device = options.device or default_device()
    (options.out / "machine.json").write_text(json.dumps(describe_machine(), indent=2) + "\n")
    shape = read_model(options.models)
    shape = toy_of(shape) if options.tiny else shape
    path = options.out / "measured.csv"
    rows = read_samples(path) if path.exists() else []
    seconds = 0.0 if options.tiny else MAX_SECONDS_PER_CONFIG
    for measured in _measure_configs(shape, device, seconds, options.skip, deadline):
        rows.append(measured)
        _write(path, rows)
        _print_measurement(measured)


def _measure_configs(
    shape: ModelShape, device: str, seconds: float, skip: int, deadline: float
) -> Iterator[Measurement]:
    from refold.train import Trainer

    configs = [*dict.fromkeys(configs_of(shape, os.cpu_count() or 1))]
    print(f"{shape.name}: {len(configs) - skip} configurations on {device}", flush=True)
    gpu = device_name(device)
    trainer = Trainer(shape, device)
    failed: list[ProfileConfig] = []
    warm_up = 3  # steps; the first configuration includes compilation and loading on first use
    for number, config in enumerate(configs[skip:], start=skip + 1):
        if monotonic() > deadline:
            return
        if any(needs_at_least_memory_of(config, other) for other in failed):
            continue
        print(f"{CONFIG_PREFIX}{number}: {config}", flush=True)
        measured = measure(trainer, config, gpu, StepBudget(7, warm_up, seconds))
        if measured.status == "oom":
            failed.append(config)
        else:
            warm_up = 1
        yield measured


def _write(path: Path, rows: list[Measurement]) -> None:
    """Write atomically, so that an interruption leaves the previous file intact."""
    temporary = path.with_suffix(".part")
    write_samples(temporary, rows)
    temporary.replace(path)


def _print_measurement(measured: Measurement) -> None:
    if measured.step_seconds is None:
        print("  out of memory", flush=True)
        return
    phases = (measured.forward_seconds, measured.backward_seconds, measured.optimizer_seconds)
    text = " + ".join(f"{seconds:.3f}" for seconds in phases if seconds is not None)
    print(f"  {measured.step_seconds:.3f} s ({text}), {measured.memory_gib:.1f} GiB", flush=True)


def configs_of(shape: ModelShape, cpus: int) -> Iterator[ProfileConfig]:
    """Yield at least 25 different configurations if there are enough CPUs, the most informative first.

    Some may repeat. Configurations with offload are adjacent, because switching takes time.
    """
    default, sequence = max(shape.batch, 4), shape.sequence

    def config(plan: Plan, batch: int = default, threads: int = 16, tokens: int = sequence) -> ProfileConfig:
        return ProfileConfig(plan, batch, tokens, min(threads, cpus))

    for accumulation in (1, 4, 2):
        yield config(Plan(accumulation=accumulation))
        yield config(Plan(accumulation=accumulation, recompute="full"))
    yield config(Plan(recompute="selective"))
    yield config(Plan(), default // 2)
    yield config(Plan(accumulation=2), default * 2)

    for threads in (16, 4, 8, 2):
        yield config(Plan(offload=True), threads=threads)
    yield config(Plan(offload=True, accumulation=4), threads=8)
    yield config(Plan(offload=True, recompute="full"), threads=8)
    yield config(Plan(offload=True), default // 2)

    yield config(Plan(), default // 4)
    yield config(Plan(recompute="full"), default // 2)
    yield config(Plan(), tokens=sequence // 2)
    yield config(Plan(accumulation=default // 2))
    yield config(Plan(recompute="selective", accumulation=2))
    yield config(Plan(accumulation=default))
    yield config(Plan(recompute="full"), tokens=sequence // 2)
    yield config(Plan(), default * 2)
    yield config(Plan(recompute="full"), default * 2)
    yield config(Plan(accumulation=4), default * 2)
    yield config(Plan(recompute="selective"), default * 2)
    yield config(Plan(), default * 4)
    yield config(Plan(recompute="full"), default * 4)
    yield config(Plan(accumulation=4), default * 4)


def toy_of(shape: ModelShape) -> ModelShape:
    """Return a model of the same kind that is small enough for any machine."""
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
