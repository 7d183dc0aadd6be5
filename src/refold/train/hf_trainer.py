"""The `Trainer` of Hugging Face Transformers.

refold = RefoldTrainerCallback(args)
trainer = Trainer(model, refold.arguments, train_dataset=data, callbacks=[refold])
trainer.train(resume_from_checkpoint=refold.checkpoint)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from refold.errors import BadInput
from refold.planning.plans import LaunchSettings
from refold.train.own_loop import OwnLoop, checkpoints_in, is_sharded


class RefoldTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a `Trainer` follow the scheduler: its plan, its requests to change or stop, and its progress."""

    def __init__(self, args: TrainingArguments, batch: int | None = None) -> None:
        """`args`: of the script. `batch`: the global batch size (default: that of `args` on one process).

        The number of samples per rank and micro-batch is at most `args.per_device_train_batch_size`.
        """
        if args.save_only_model:
            raise BadInput("with save_only_model, training cannot continue after a change of its plan")
        complete = checkpoints_in(Path(args.output_dir), "checkpoint-", "trainer_state.json")
        newest = complete[max(complete)] if complete else None
        self._run = OwnLoop(
            batch or args.per_device_train_batch_size * args.gradient_accumulation_steps,
            engine="trainer",
            largest_micro_batch=args.per_device_train_batch_size,
            is_sharded=is_sharded(newest),
            preload="transformers.trainer",
        )
        self.checkpoint: str | None = None if newest is None else str(newest)
        """The newest complete checkpoint."""
        self.arguments: TrainingArguments = dataclasses.replace(args, **_changes(args, self._run.settings()))
        """The arguments under the plan: micro-batch, accumulation, sharding, recomputation."""
        self._run.check_ranks(self.arguments.world_size)
        self._loss: float | None = None

    def on_train_begin(self, _args: Any, state: TrainerState, _control: TrainerControl, **_kwargs: Any) -> None:
        """Note that all ranks are about to train."""
        self._run.begin(state.global_step)

    def on_log(
        self, _args: Any, _state: TrainerState, _control: TrainerControl, logs: Mapping[str, Any], **_kwargs: Any
    ) -> None:
        """Note the loss."""
        self._loss = logs.get("loss", self._loss)

    def on_step_end(self, _args: Any, state: TrainerState, control: TrainerControl, **_kwargs: Any) -> None:
        """Let the trainer save if requested, and not evaluate before that: the time until the end may be short."""
        if self._run.should_save(state.global_step, self._loss):
            control.should_save, control.should_evaluate = True, False

    def on_save(self, _args: Any, state: TrainerState, _control: TrainerControl, **_kwargs: Any) -> None:
        """Report the checkpoint, and exit if requested."""
        self._run.saved(state.global_step)

    def on_train_end(self, _args: Any, state: TrainerState, _control: TrainerControl, **_kwargs: Any) -> None:
        """Report that all steps are done."""
        self._run.finished(state.global_step)


def _changes(args: TrainingArguments, settings: LaunchSettings) -> dict[str, Any]:
    """Return the fields of the arguments that a plan sets, as if they were on the command line."""
    names = [word.removeprefix("--") for word in settings.arguments if word.startswith("--")]
    parsed, _ = HfArgumentParser(type(args)).parse_known_args(["--output_dir", args.output_dir, *settings.arguments])
    changes = {name: getattr(parsed, name) for name in names}
    if "fsdp_config" in changes:
        changes["fsdp_config"] = json.loads(settings.files[changes["fsdp_config"]])
    if "gradient_checkpointing" in changes and hasattr(args, "activation_checkpointing"):  # its new name
        changes["activation_checkpointing"] = changes.pop("gradient_checkpointing")
    if not torch.accelerator.is_available():
        changes["use_cpu"] = True  # else the processes of CPU slots would not find each other
    return changes
