"""`start`: begin or resume the training of a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from refold.model import Plan, Seconds
from refold.train import process_group
from refold.train.batches import Data, first_tensor
from refold.train.channel import RankChannel, connect
from refold.train.checkpoints import Checkpoints
from refold.train.fused_layers import replace_fused_layers
from refold.train.local_model import SplittableModel
from refold.train.messages import Change, Ready
from refold.train.micro_batches import Batch, Loss
from refold.train.pipeline_stages import PipelineRule
from refold.train.reshaper import Reshaper
from refold.train.run_settings import CHANGE_VARIABLE, read_plan
from refold.train.session import SAVE_EVERY, LearningRateScheduler, Session, TrainingOptions
from refold.train.tensor_rules import Split
from refold.train.training_state import TrainingState

MAX_TRIED_PARAMETERS = 10**8
"""Up to this size, pipeline stages are compared with the whole model at the start: two forward passes of a sample."""


def start(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss,
    data: Data | None = None,
    batch: int,
    steps: int,
    seed: int = 0,
    shuffle: bool = True,
    inputs: Callable[[Batch], Tensor] = first_tensor,
    scheduler: LearningRateScheduler | None = None,
    clip: float | None = None,
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
    returns the mean loss of a micro-batch. `data` is a data set with a length (None: you pass each rank's part of a
    batch to `session.step` yourself), `batch` the global batch size, `steps` the total number of steps.
    `inputs(batch)` returns what the model gets (default: the batch, its first part, or its `input_ids`).

    `clip`: largest norm of the gradients. `autocast`: type of mixed precision. `compile_layers`: compile each layer
    with torch.compile. `tensor` and `pipeline` say how to split a model whose names are not known. `shard_group`: ZeRO
    shards over groups of so many ranks, which are replicas of each other. `checkpoint`: folder for checkpoints
    (default: $REFOLD_CHECKPOINT, if set), written every `save_every` seconds, when the run is stopped, and at the end.

    Without an agent, the plan is that of $REFOLD_PLAN, or data parallelism over the ranks of torchrun. A script that
    was started as a single process by the scheduler is replaced by `python -m refold.train script.py`.
    """
    channel = connect()
    if channel is None:
        _become_agent_if_needed(os.environ)
    options = TrainingOptions(
        batch=batch,
        steps=steps,
        inputs=inputs,
        seed=seed,
        shuffle=shuffle,
        scheduler=scheduler,
        clip=clip,
        autocast=autocast,
        save_every=save_every,
    )
    replacements = replace_fused_layers(model, optimizer)
    splittable = SplittableModel(model, tensor=tensor, pipeline=pipeline, compile_layers=compile_layers)
    if pipeline is None and data and _count_parameters(model) <= MAX_TRIED_PARAMETERS:
        splittable.try_pipeline(model, inputs(default_collate([data[0]])))
    state = TrainingState(model, optimizer, splittable, replacements)
    reshaper = Reshaper(state, batch, process_group.choose_device(), shard_group)
    session = Session(reshaper, loss, data, options, channel, _checkpoints(checkpoint))
    if channel is None:
        session.begin_alone(read_plan(os.environ), process_group.from_environment())
    else:
        session.enter(_wait_for_first_change(channel, state))
    return session


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _checkpoints(folder: Path | str | None) -> Checkpoints | None:
    chosen = folder or os.environ.get("REFOLD_CHECKPOINT")
    return Checkpoints(Path(chosen)) if chosen else None


def _wait_for_first_change(channel: RankChannel, state: TrainingState) -> Change:
    channel.send(Ready(process_group.own_rank(), state.estimated_bytes()))
    message: Any = None
    while not isinstance(message, Change):
        message = channel.wait()
    return message


def _become_agent_if_needed(environment: Mapping[str, str]) -> None:
    """Replace this process by an agent if the plan needs more ranks than were started.

    Also if the plan may change: only the ranks of an agent can change live.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return
    may_change = "RANK" not in environment and CHANGE_VARIABLE in environment  # whether or not it has a plan yet
    plan = read_plan(environment) or Plan()
    if may_change or plan.gpus > int(environment.get("WORLD_SIZE", "1")):
        arguments = sys.orig_argv[1:]
        options = arguments[: len(arguments) - len(sys.argv[1:]) - (2 if _is_module() else 1)]
        os.execv(sys.executable, [sys.executable, *options, "-m", "refold.train", *arguments[len(options) :]])


def _is_module() -> bool:
    """Whether the script was started with `python -m`."""
    return sys.modules["__main__"].__spec__ is not None
