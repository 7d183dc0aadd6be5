"""What a question about plans leaves open: the training framework, the batch and the sequence length."""

from __future__ import annotations

from typing import NamedTuple

from refold.model import Plan
from refold.planning.catalogue import GENERAL_ENGINE, find_engine
from refold.planning.perf import Engine, GpuSpec, ModelShape, Precision, Tuning, plans_to_columns
from refold.planning.plans.space import Pins, cannot_run

LORA_BATCH, LORA_SEQUENCE = 16, 2048
"""Samples per step and tokens per sample of fine-tuning, unless given. Pretraining has those of the model."""

MAX_ROUNDED = 1.25
"""A model's batch is rounded up by at most this factor; on more GPUs, tensor and pipeline parallelism divide them."""

MAX_ROUNDING = 4
"""A default batch is rounded up to a multiple of up to so many samples per GPU, so that micro-batches can be chosen."""


class Task(NamedTuple):
    """What is trained, and what its plans need. `offload`: options were given that matter only to plans with it."""

    tuning: Tuning = Tuning()
    precision: Precision | None = None
    pinned: Pins = Pins()
    offload: bool = False


ANY_TASK = Task()
"""All weights are trained, without further wishes."""


class DefaultEngine(NamedTuple):
    """An engine that was chosen, and what for."""

    engine: Engine
    reason: str


def default_engine(model: ModelShape, gpu: GpuSpec, gpus: int, task: Task = ANY_TASK) -> DefaultEngine:
    """Return the engine for a model on so many GPUs: the general one where the usual one cannot run what was asked."""
    name, reason = _usual_engine(model, gpu, gpus, task)
    engine = find_engine(name)
    asked = Plan(**{**task.pinned.to_dict(), **({"offload": True} if task.offload else {})})
    if cannot_run(engine, plans_to_columns([asked]))[0]:
        return DefaultEngine(find_engine(GENERAL_ENGINE), f"plans that {name} does not have")
    return DefaultEngine(engine, reason)


def _usual_engine(model: ModelShape, gpu: GpuSpec, gpus: int, task: Task) -> tuple[str, str]:
    if model.traced:
        return "pytorch-bf16", "PyTorch modules"
    if model.kind != "decoder":
        return GENERAL_ENGINE, "models other than language models"
    if task.precision in (None, "bf16"):
        if task.tuning.lora_rank:
            return "transformers-bf16", "LoRA"
        if gpus == 1:
            return "transformers-bf16", "one GPU"
        if gpu.link.gigabytes_per_second <= gpu.pcie_gigabytes_per_second:
            return "transformers-bf16", "GPUs that PCIe connects"
    if task.precision == "mxfp8" and model.experts > 1 and model.gated and gpu.fp4_tflops:
        return "megatron-core-graphs", "mixtures of experts in MXFP8, as recipes run them"
    return "megatron-core", "language models on several GPUs" if gpus > 1 else "products in low precision"


class DefaultSizes(NamedTuple):
    """Samples per step and tokens per sample, and whose defaults they are."""

    batch: int
    sequence: int
    reason: str


def default_sizes(model: ModelShape, gpus: int = 1, tuning: Tuning = ANY_TASK.tuning) -> DefaultSizes:
    """Return the batch and the sequence length of a task: the model's, or those of fine-tuning.

    The batch is one that the GPUs divide, unless they are more than the samples.
    """
    if tuning.lora_rank and not model.opaque:
        batch, sequence, reason = LORA_BATCH, min(LORA_SEQUENCE, model.sequence), "LoRA"
        batch = max(batch, gpus)
    else:
        batch, sequence, reason = model.batch, model.sequence, model.name
    rounded = dividing_batch(batch, gpus)
    if rounded > MAX_ROUNDED * batch and not tuning.lora_rank:
        rounded = batch
    return DefaultSizes(
        rounded, sequence, reason if rounded == batch else f"{reason} (batch {batch}, rounded up for {gpus} GPUs)"
    )


def dividing_batch(batch: int, gpus: int) -> int:
    """Return a batch rounded up to a multiple of the GPUs where these have an odd factor that it does not have.

    The multiple has several samples per GPU: otherwise there may be no sizes of micro-batches to choose from.
    """
    odd = gpus // (gpus & -gpus)
    if batch < gpus or batch % odd == 0:
        return batch
    multiple = gpus * min(MAX_ROUNDING, 1 << (batch // gpus).bit_length() - 1)
    return -(-batch // multiple) * multiple
