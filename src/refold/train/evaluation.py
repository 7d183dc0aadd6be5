"""Evaluate a model on a data set, under any plan: forward passes only, whose results are added up over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from refold.errors import BadInput
from refold.train.batches import Data, load
from refold.train.layout import check_batch
from refold.train.local_model import LocalModel
from refold.train.losses import IGNORED_LABEL, LABELS, Batch, Loss, LossRecorder, ModelInputs
from refold.train.micro_batches import Context, make_schedule, take
from refold.train.prefetch import BatchShare, Prefetcher, Read


class EvaluatedSamples(NamedTuple):
    """Samples that a rank evaluates at once. Behind the `used` ones they are repeated: all ranks take equal steps."""

    samples: list[int]
    used: int


def shares(samples: int, batch: int, part: int, parts: int) -> Iterator[EvaluatedSamples]:
    """Yield what one of `parts` data-parallel ranks evaluates, in rounds of at most `batch` samples for all of them."""
    size = batch // parts
    for start in range(0, samples, batch):
        first = start + part * size
        used = min(max(samples - first, 0), size)
        yield EvaluatedSamples([position % samples for position in range(first, first + size)], used)


class ModelEvaluation:
    """Computes the mean of a metric over a data set. Collective."""

    def __init__(
        self, model: LocalModel, metric: Loss, inputs: Callable[[Batch], ModelInputs], context: Context
    ) -> None:
        """`metric`: returns a mean, or a sum and a count. `inputs`: returns what the model gets of a batch."""
        self._model = model
        self._metric = metric
        self._inputs = inputs
        self._context = context
        self._results = LossRecorder(self._sum_and_count, model.layout.device)
        self._share = EvaluatedSamples([], 0)
        self._batch: Batch = None

    def run(self, data: Data | DataLoader[Any], batch: int) -> float:
        """Return the mean over all samples, read in global batches of this size."""
        if isinstance(getattr(data, "dataset", data), IterableDataset) or not hasattr(data, "__len__"):
            raise BadInput("the data to evaluate has no length; pass a data set with one, or its DataLoader")
        if not len(data):
            raise BadInput("the data set to evaluate is empty")
        layout = self._model.layout
        check_batch(layout.plan, batch)
        run = self._pipeline() if layout.plan.pipeline > 1 else self._run_micro_batches
        totals = torch.zeros(2, dtype=torch.float64, device=layout.device)
        with torch.no_grad(), _evaluation_mode(self._model):
            for share, read in self._read(data, batch):
                self._share, self._batch = share, read
                _ignore_labels(self._batch, self._share.used)
                run(torch.arange(len(self._share.samples), device=layout.device))
                result = self._results.take()
                totals += torch.stack([result.value, result.count])
        if dist.get_world_size() > 1:
            dist.all_reduce(totals)
        total, count = totals.tolist()
        return total / count if count else float("nan")

    def _read(self, data: Data | DataLoader[Any], batch: int) -> Iterator[tuple[EvaluatedSamples, Batch]]:
        """Yield what this rank evaluates; it is read in the background."""
        loader = data if isinstance(data, DataLoader) else DataLoader(data)  # type: ignore[arg-type]
        layout, parts = (
            self._model.layout,
            BatchShare(0, self._model.layout.position.data, self._model.layout.plan.data),
        )
        own = list(shares(len(loader.dataset), batch, parts.part, parts.parts))  # type: ignore[arg-type]
        batches = iter(load(loader, ([(index, index) for index in share.samples] for share in own), seed=0))
        prefetcher = Prefetcher((Read(parts, each) for each in batches), layout.device)
        try:
            for share in own:
                item = prefetcher.next()
                assert item is not None, "as many batches as lists of samples"
                yield share, item.batch
        finally:
            prefetcher.close()

    def _run_micro_batches(self, rows: Tensor) -> None:
        (chunk,) = self._model.chunks
        for part in rows.chunk(self._model.layout.plan.accumulation):
            inputs = self._inputs(take(self._batch, slice(int(part[0]), int(part[-1]) + 1)))
            with self._context():
                self._add(chunk.model(inputs.main, **inputs.named), part)

    def _pipeline(self) -> Callable[[Tensor], None]:
        schedule = make_schedule(self._model, self._add)
        is_first = self._model.layout.position.stage == 0

        def run(rows: Tensor) -> None:
            inputs = self._inputs(self._batch)
            with self._context(), self._model.pipeline_run():
                schedule.eval(
                    *([inputs.main] if is_first else []),
                    target=rows if self._model.has_last_stage else None,
                    **inputs.named,
                )

        return run

    def _add(self, output: Any, rows: Tensor) -> Tensor:
        return self._results.compute(output, rows, int(rows[0]))

    def _sum_and_count(self, output: Any, rows: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the sum of the metric over the samples of a micro-batch that are used, and their count."""
        first = int(rows[0])
        used = min(max(self._share.used - first, 0), len(rows))
        if not used:
            return self._number(0.0), 0.0
        part = take(self._batch, slice(first, first + used))
        result = self._metric(take(output, slice(0, used)), part)
        total, count = result if isinstance(result, tuple) else (result * used, float(used))
        return self._number(total), count

    def _number(self, value: Tensor | float) -> Tensor:
        found = torch.as_tensor(value, dtype=torch.float64, device=self._model.layout.device)
        if found.numel() != 1:
            raise BadInput(f"the metric returned {tuple(found.shape)} numbers, expected one, or a sum and a count")
        return found.reshape(())


def _ignore_labels(batch: Batch, used: int) -> None:
    """Let repeated samples have no part in losses that the model computes itself."""
    labels = batch.get(LABELS) if isinstance(batch, Mapping) else None
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        labels[used:] = IGNORED_LABEL


@contextmanager
def _evaluation_mode(model: LocalModel) -> Iterator[None]:
    """Switch off dropout and the like; modules that the script has switched off stay so."""
    training = [module for chunk in model.chunks for module in chunk.model.modules() if module.training]
    for chunk in model.chunks:
        chunk.model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
