"""A training loop with Hugging Face Accelerate.

run = AccelerateRun(batch=32, checkpoint="out")
accelerator = run.accelerator(mixed_precision="bf16")
loader = DataLoader(data, batch_size=run.loader_batch, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for batch in run.batches(loader, epochs=3):
    with accelerator.accumulate(model):
        ...
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor

from refold.errors import BadInput
from refold.model import Seconds
from refold.train.checkpoints import KEPT
from refold.train.own_loop import OwnLoop, checkpoint_folder, checkpoints_in, is_sharded
from refold.train.training_options import SAVE_EVERY

_PREFIX = "step-"


class AccelerateRun:
    """Lets a loop follow the scheduler: its plan, its requests to change or stop, and its progress.

    Checkpoints are those of `accelerator.save_state`: model, optimizer, scheduler, and what is registered with
    `accelerator.register_for_checkpointing`.
    """

    def __init__(
        self,
        batch: int,
        checkpoint: Path | str | None = None,
        *,
        largest_micro_batch: int | None = None,
        save_every: Seconds = SAVE_EVERY,
        seed: int = 0,
    ) -> None:
        """`batch`: the global batch size. `checkpoint`: folder of the checkpoints (default: $REFOLD_CHECKPOINT).

        `largest_micro_batch`: largest number of samples per rank and micro-batch. `save_every`: time between
        checkpoints. `seed`: of the order of the samples.
        """
        self._folder = checkpoint_folder(checkpoint)
        self._newest = max(checkpoints_in(self._folder, _PREFIX).items(), default=None)
        self._run = OwnLoop(
            batch,
            engine="accelerate",
            largest_micro_batch=largest_micro_batch,
            is_sharded=is_sharded(self._newest[1] if self._newest else None),
            preload="accelerate",
        )
        self._save_every = save_every
        self._seed = seed
        self._accelerator: Accelerator | None = None
        self._step = self._last_of_epoch = 0
        self.loss: Tensor | float | None = None
        """The loss of the last step, if it is to be reported."""

    @property
    def loader_batch(self) -> int:
        """The batch size of the data loader: a micro-batch of all ranks, which Accelerate divides between them."""
        return self._run.batch // self._run.plan.accumulation

    def accelerator(self, **options: Any) -> Accelerator:
        """Return the accelerator for the plan; `options` are those of `Accelerator`."""
        os.environ.update(_variables(self._run.settings().launcher))
        loading = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=self._seed)
        accumulation = self._run.plan.accumulation
        if not torch.accelerator.is_available():
            options["cpu"] = True  # else the processes of CPU slots would not find each other
        self._accelerator = Accelerator(
            gradient_accumulation_steps=accumulation, **{"dataloader_config": loading, **options}
        )
        self._run.check_ranks(self._accelerator.num_processes)
        return self._accelerator

    def epochs(self, loader: Any, count: int) -> Iterator[int]:
        """Yield the epochs from the one on in which an earlier run has stopped; write a checkpoint at the end."""
        accelerator = self._accelerator
        if accelerator is None:
            raise BadInput("use the accelerator that run.accelerator(…) returns")
        self._step = self._restore(accelerator)
        self._run.begin(self._step, self._save_every)
        per_epoch = -(-len(loader) // self._run.plan.accumulation)
        while (epoch := self._step // per_epoch) < count:
            self._last_of_epoch = (epoch + 1) * per_epoch
            yield epoch
            if self._step == self._last_of_epoch:
                self._follow(accelerator)
            elif epoch + 1 < count:
                raise BadInput(f"only the last epoch may end early, before all of its {per_epoch} steps")
            else:
                break
        self._save(accelerator)
        self._run.finished(self._step)

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of an epoch, without those with which an earlier run has trained."""
        accelerator, accumulation = self._accelerator, self._run.plan.accumulation
        assert accelerator is not None
        epoch, done = divmod(self._step, -(-len(loader) // accumulation))
        rest = accelerator.skip_first_batches(loader, done * accumulation) if done else loader
        rest.set_epoch(epoch)
        for batch in rest:
            try:
                yield batch
            finally:  # also if the script leaves the loop after this step
                if accelerator.sync_gradients:
                    self._step += 1
            if accelerator.sync_gradients and self._step < self._last_of_epoch:  # at its end, the script may evaluate
                self._follow(accelerator)

    def _follow(self, accelerator: Accelerator) -> None:
        if self._run.should_save(self._step, self.loss):
            self._save(accelerator)

    def _restore(self, accelerator: Accelerator) -> int:
        """Load the newest checkpoint, if there is one; return its step."""
        if self._newest is None:
            return 0
        step, path = self._newest
        accelerator.load_state(str(path))
        accelerator.step = 0  # of the accumulation, which begins anew
        return step

    def _save(self, accelerator: Accelerator) -> None:
        step = self._step
        path = self._folder / f"{_PREFIX}{step}"
        if self._newest != (step, path):
            partial = path.with_name(f"{path.name}.partial")
            if accelerator.is_main_process:
                shutil.rmtree(partial, ignore_errors=True)
            accelerator.wait_for_everyone()
            accelerator.save_state(str(partial))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                partial.rename(path)
                for old in sorted(checkpoints_in(self._folder, _PREFIX).items())[:-KEPT]:
                    shutil.rmtree(old[1], ignore_errors=True)
            self._newest = step, path
        self._run.saved(step)


def _variables(launcher: tuple[str, ...]) -> dict[str, str]:
    """Return what `accelerate launch` would set for these options, for the process group that exists."""
    variables: dict[str, str] = {}
    for name, value in zip(launcher, (*launcher[1:], ""), strict=True):
        if name.startswith("--use_"):
            variables[f"ACCELERATE_{name.removeprefix('--').upper()}"] = "true"
        elif name.startswith(("--fsdp_", "--parallelism_config_")):
            variables[name.removeprefix("--").upper()] = value
    return variables
