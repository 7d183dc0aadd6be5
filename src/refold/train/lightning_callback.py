"""PyTorch Lightning, with data parallelism.

refold = RefoldLightningCallback(batch=32, checkpoint="out")
trainer = Trainer(max_epochs=3, callbacks=[refold], **refold.arguments)
trainer.fit(module, refold.loader(data, collate_fn=collate), ckpt_path=refold.checkpoint)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from refold.model import Seconds
from refold.train.batches import Data
from refold.train.checkpoints import KEPT
from refold.train.own_loop import OwnLoop, checkpoint_folder, checkpoints_in
from refold.train.process_group import own_rank
from refold.train.samples import SampleOrder
from refold.train.training_options import SAVE_EVERY

_PREFIX, _STEPS = "step-", "refold_steps"


class RefoldLightningCallback(Callback):  # type: ignore[misc]
    """Lets a `Trainer` of Lightning follow the scheduler: its plan, requests to change or stop, and its progress."""

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
        self._run = OwnLoop(batch, largest_micro_batch=largest_micro_batch, preload="lightning.pytorch")
        self._save_every = save_every
        self._seed = seed
        self._step = self._updates = 0
        self._steps_per_epoch = 1
        newest = max(checkpoints_in(self._folder, _PREFIX).items(), default=None)
        self.checkpoint: str | None = None if newest is None else str(newest[1])
        """The newest complete checkpoint."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the `Trainer` under the plan."""
        ranks = self._run.plan.gpus
        return {
            "devices": ranks,
            "strategy": "ddp" if ranks > 1 else "auto",
            "accumulate_grad_batches": self._run.plan.accumulation,
            "use_distributed_sampler": False,
        }

    def loader(self, data: Data, *, shuffle: bool = True, **options: Any) -> Any:
        """Return the batches of this rank; `options` are those of `DataLoader`. An epoch has whole batches only."""
        self._steps_per_epoch = max(1, len(data) // self._run.batch)
        return _EpochLoader(self, SampleOrder(len(data), self._run.batch, self._seed, shuffle=shuffle), data, options)

    def on_train_start(self, trainer: Trainer, _module: LightningModule) -> None:
        """Note that all ranks are about to train."""
        self._run.check_ranks(trainer.world_size)
        self._updates = trainer.global_step
        self._run.begin(self._step, self._save_every)

    def on_train_batch_end(
        self, trainer: Trainer, _module: LightningModule, outputs: Any, _batch: Any, _batch_idx: int
    ) -> None:
        """After the last micro-batch of a step, write a checkpoint if requested."""
        if trainer.global_step == self._updates:
            return
        self._updates = trainer.global_step
        self._step += 1
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self._run.should_save(self._step, loss):
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, _module: LightningModule) -> None:
        """Write a checkpoint, and report that all steps are done."""
        self._save(trainer)
        self._run.finished(self._step)

    def on_save_checkpoint(self, _trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the number of steps to a checkpoint."""
        checkpoint[_STEPS] = self._step

    def on_load_checkpoint(self, _trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Continue after the steps of a checkpoint. Lightning counts micro-batches, which may be larger or smaller."""
        self._step = checkpoint[_STEPS]
        counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        ended = counts["processed"] - counts["completed"]  # 1 if it was written at the end of a batch
        done = self._step % self._steps_per_epoch * self._run.plan.accumulation
        counts.update(ready=done, started=done, processed=done, completed=done - ended)

    def micro_batches(self, order: SampleOrder) -> Iterator[list[int]]:
        """Yield the samples of the micro-batches of this rank until the end of the epoch."""
        plan, size, epoch = self._run.plan, self._run.micro_batch, self._step // self._steps_per_epoch
        for step in range(self._step, (epoch + 1) * self._steps_per_epoch):
            samples = order.of_step(step, own_rank(), plan.data)
            yield from (samples[i : i + size] for i in range(0, len(samples), size))

    def _save(self, trainer: Trainer) -> None:
        path = self._folder / f"{_PREFIX}{self._step}"
        partial = path.with_name(f"{path.name}.partial")
        trainer.save_checkpoint(partial)  # all ranks wait for its end
        if trainer.is_global_zero:
            partial.replace(path)
            for _, old in sorted(checkpoints_in(self._folder, _PREFIX).items())[:-KEPT]:
                old.unlink(missing_ok=True)
        self._run.saved(self._step)


class _EpochLoader:
    """The rest of an epoch, from the step on that the training has reached. Its length is not known to Lightning."""

    def __init__(
        self, position: RefoldLightningCallback, order: SampleOrder, data: Data, options: dict[str, Any]
    ) -> None:
        self._position = position
        self._order = order
        self._data = data
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        batches = [*self._position.micro_batches(self._order)]
        return iter(DataLoader(self._data, batch_sampler=batches, **self._options))  # type: ignore[arg-type]
