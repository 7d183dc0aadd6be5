"""`start`: begin or resume the training of a model."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from refold.model import Plan, Seconds
from refold.train import process_group
from refold.train.batches import Batches, global_batch
from refold.train.channel import RankChannel, connect
from refold.train.checkpoints import Checkpoints
from refold.train.fused_layers import replace_fused_layers
from refold.train.local_model import SplittableModel, is_hugging_face
from refold.train.losses import Batch, InputReader, Loss, model_loss
from refold.train.messages import Change, Ready
from refold.train.pipeline_stages import PipelineRule
from refold.train.reshaper import Reshaper
from refold.train.run_settings import CHANGE_VARIABLE, SECRET_VARIABLE, read_plan
from refold.train.session import Session
from refold.train.tensor_rules import Split
from refold.train.training_options import SAVE_EVERY, LearningRateScheduler, TrainingOptions
from refold.train.training_state import TrainingState

MAX_TRIED_PARAMETERS = 10**8
"""Up to this size, pipeline stages are compared with the whole model at the start: two forward passes of a sample."""

_OF_INSTANCES = (("RANK", "REFOLD_INSTANCE"), ("WORLD_SIZE", "REFOLD_INSTANCES"))
"""Variables that are equal in an instance of a run, and differ in ranks that a launcher has started there."""

NEXT_TOKEN_LOSSES = (None, "ForCausalLM")
"""Losses of models of Hugging Face that predict the next token; theirs if nothing else is said."""


def start(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss | None = None,
    data: Any = None,
    batch: int | None = None,
    steps: int,
    seed: int = 0,
    shuffle: bool = True,
    inputs: Callable[[Batch], Any] | None = None,
    scheduler: LearningRateScheduler | None = None,
    clip: float | None = None,
    ema: float | None = None,
    autocast: torch.dtype | None = None,
    compile_layers: bool = False,
    tensor: Mapping[str, Split] | None = None,
    pipeline: PipelineRule | None = None,
    shard_group: int | None = None,
    checkpoint: Path | str | None = None,
    save_every: Seconds = SAVE_EVERY,
) -> Session:
    """Begin or resume the training of a model, under the plan that the scheduler has chosen.

    The model is an ordinary module, the same on every rank; use `session.model` from now on. `loss(output, batch)`
    returns the mean loss of a micro-batch, or, if samples have different numbers of tokens, the sum of their losses and
    the number of tokens. Without it, the model gets the labels, and its output has the loss. `data` is a data set with
    a length, a DataLoader, or an iterable of whole batches (None: you pass each rank's part of a batch to
    `session.step` yourself), `batch` the global batch size (default: that of the loader), `steps` the total number of
    steps. `inputs(batch)` returns what the model gets: a tensor, or tensors by parameter
    (default: what the batch has for the parameters of the model, or its first part).

    `clip`: largest norm of the gradients. `ema`: decay of the average of the weights, such as 0.999. `autocast`: type
    of mixed precision; the loss is scaled for torch.float16. `compile_layers`: compile each layer with torch.compile.
    `tensor` and `pipeline` say how to split a model whose names are not known. `shard_group`: ZeRO shards over groups
    of so many ranks, which are replicas of each other. `checkpoint`: folder for checkpoints, or an address such as
    `s3://bucket/run` (default: $REFOLD_CHECKPOINT, if set), written every `save_every` seconds, when the run is
    stopped, and at the end.

    Without an agent, the plan is that of $REFOLD_PLAN, or data parallelism over the ranks of torchrun. A script that
    was started as a single process by the scheduler is replaced by `python -m refold.train script.py`.
    """
    channel = connect()
    if channel is None:
        become_agent_if_needed(os.environ)
    else:
        faulthandler.register(signal.SIGQUIT)  # sent to ranks that hang, whose stacks are then in the log
    reader = InputReader(model, inputs, with_labels=loss is None)
    batch = global_batch(data, batch)
    options = TrainingOptions(
        batch=batch,
        steps=steps,
        inputs=reader.read,
        seed=seed,
        shuffle=shuffle,
        scheduler=scheduler,
        clip=clip,
        ema=ema,
        autocast=autocast,
        save_every=save_every,
    )
    replacements = replace_fused_layers(model, optimizer)
    splittable = SplittableModel(model, tensor=tensor, pipeline=pipeline, compile_layers=compile_layers)
    batches = None if data is None else options.batches_of(data)
    if pipeline is None and batches:
        _try_pipeline(splittable, model, batches, reader)
    state = TrainingState(model, optimizer, splittable, replacements)
    state.optimizer.is_averaged = ema is not None
    reshaper = Reshaper(state, batch, process_group.choose_device(), shard_group)
    session = Session(reshaper, loss or _loss_of(model), batches, options, channel, _checkpoints(checkpoint))
    if channel is None:
        session.begin_alone(read_plan(os.environ), process_group.from_environment())
    else:
        session.enter(wait_for_first_change(channel, Ready(process_group.own_rank(), state.estimated_bytes(), batch)))
    return session


def _try_pipeline(splittable: SplittableModel, model: nn.Module, batches: Batches, reader: InputReader) -> None:
    """Find out from a sample how the model can be divided into pipeline stages, unless it is too large to try."""
    sample = batches.first_sample() if _count_parameters(model) <= MAX_TRIED_PARAMETERS else None
    if sample is not None:
        splittable.try_pipeline(model, reader.read(sample))


def _loss_of(model: nn.Module) -> Loss:
    """Return the loss that a model computes itself."""
    kind = getattr(model, "loss_type", None) if is_hugging_face(model) else "own"
    return model_loss(is_shifted=kind in NEXT_TOKEN_LOSSES)


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _checkpoints(folder: Path | str | None) -> Checkpoints | None:
    chosen = folder or os.environ.get("REFOLD_CHECKPOINT")
    return Checkpoints(chosen) if chosen else None


def wait_for_first_change(channel: RankChannel, ready: Ready) -> Change:
    """Tell the agent that this rank is ready; return what it is to enter."""
    channel.send(ready)
    message: Any = None
    while not isinstance(message, Change):
        message = channel.wait()
    return message


def become_agent_if_needed(environment: Mapping[str, str]) -> None:
    """Replace this process by an agent if the plan needs more ranks than were started.

    Also if the plan may change, or instances may be lost: only the ranks of an agent can follow.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return
    may_change = "RANK" not in environment and CHANGE_VARIABLE in environment  # whether or not it has a plan yet
    is_instance = all(environment.get(name) == environment.get(own) for name, own in _OF_INSTANCES)
    plan = read_plan(environment) or Plan()
    if (
        may_change
        or (is_instance and environment.get(SECRET_VARIABLE))
        or plan.gpus > int(environment.get("WORLD_SIZE", "1"))
    ):
        arguments = sys.orig_argv[1:]
        options = arguments[: len(arguments) - len(sys.argv[1:]) - (2 if _is_module() else 1)]
        os.execv(sys.executable, [sys.executable, *options, "-m", "refold.train", *arguments[len(options) :]])


def _is_module() -> bool:
    """Whether the script was started with `python -m`."""
    return sys.modules["__main__"].__spec__ is not None
