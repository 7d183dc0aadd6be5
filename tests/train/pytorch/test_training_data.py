"""Every kind of training data gives the same samples under every plan, after changes, and after a restart."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadInput
from refold.model import Plan, parse_plan
from refold.train import process_group, streamed_batches
from refold.train.batches import global_batch, make_batches
from refold.train.layout import Position
from refold.train.process_group import Rendezvous
from refold.train.session import Session

BATCH = 8
Words = tuple[Tensor, Tensor]


class Stream(IterableDataset[Words]):
    """Thirty samples per epoch, divided among workers."""

    def __iter__(self) -> Iterator[Words]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 30, step):
            yield RepeatedWords()[index]


class CountingStream(Stream):
    """A stream with a position. It tells how many samples it has read."""

    def __init__(self) -> None:
        self.position = self.read = 0

    def __iter__(self) -> Iterator[Words]:
        while self.position < 100:
            self.position += 1
            self.read += 1
            yield RepeatedWords()[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class NoisyWords(RepeatedWords):
    """Samples with random augmentation by each of the global generators."""

    def __getitem__(self, index: int) -> Words:
        words, targets = super().__getitem__(index)
        place, word = random.randrange(len(words)), int(torch.randint(64, ()))
        return words.index_fill(0, torch.tensor(place), word), targets


def collate(samples: Sequence[Words]) -> dict[str, Tensor]:
    return {
        "tokens": torch.stack([words for words, _ in samples]),
        "next": torch.stack([words for _, words in samples]),
    }


def loss_of_dict(logits: Tensor, batch: Any) -> Tensor:
    words: Any = (batch["tokens"], batch["next"]) if isinstance(batch, dict) else batch
    return next_token_loss(logits, words)


def plain() -> Any:
    return RepeatedWords()


def weighted() -> Any:
    sampler = WeightedRandomSampler(torch.arange(1.0, 201.0).tolist(), 44)
    return DataLoader(RepeatedWords(), BATCH, sampler=sampler)


def in_batches() -> Any:
    return DataLoader(RepeatedWords(), batch_sampler=BatchSampler(SequentialSampler(range(44)), BATCH, drop_last=False))


def workers() -> Any:
    return DataLoader(NoisyWords(), BATCH, shuffle=True, num_workers=2, collate_fn=collate)


def stream() -> Any:
    return DataLoader(Stream(), BATCH, num_workers=2)


def own_batches() -> Any:
    return BatchesOfFour()


class BatchesOfFour:
    """An iterable of whole batches: four per epoch, with an order that depends on the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for number in range(4):
            first = 40 * (self.epoch % 3) + number * BATCH
            yield collate([RepeatedWords()[first + index] for index in range(BATCH)])


def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(CountingStream(), batch_size=BATCH)


def stateful_indexed() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(RepeatedWords(), batch_size=BATCH, shuffle=True, num_workers=1)


def begin(meeting: Path, data: Any, steps: int, checkpoint: Path | None = None) -> Session:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    process_group.from_environment = lambda: Rendezvous(rank, ranks, meeting)  # type: ignore[assignment]
    model = SmallGpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return refold.train.start(
        model, optimizer, loss=loss_of_dict, data=data, batch=BATCH, steps=steps, checkpoint=checkpoint
    )


def train(
    meeting: Path, make: Callable[[], Any], plans: list[str], steps: int, checkpoint: Path | None = None
) -> list[float]:
    """Train with a change of plan after every second step."""
    session, losses = begin(meeting, make(), steps, checkpoint), []
    for batch in session:
        losses.append(session.step(batch).item())
        if session.steps_done % 2 == 0 and session.plan.gpus > 1:
            session.change(parse_plan(plans[session.steps_done // 2 % len(plans)]))
    return losses


SOURCES = [plain, weighted, in_batches, workers, stream, own_batches, stateful, stateful_indexed]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("make", SOURCES)
def test_samples_are_the_same_under_every_plan_and_after_a_restart(make: Callable[[], Any], tmp_path: Path) -> None:
    if "stateful" in make.__name__:
        pytest.importorskip("torchdata")
    [expected] = run_ranks(1, train, make, [], 9, form_group=False)
    assert len(set(expected)) == 9
    plans = ["dp2", "tp2", "dp2 zero3", "pp2 accumulate 4"]
    first = run_ranks(2, train, make, plans, 5, tmp_path, form_group=False)
    second = run_ranks(2, train, make, plans, 9, tmp_path, form_group=False)
    for losses in map(list.__add__, first, second):
        assert losses == pytest.approx(expected, rel=1e-9)


def read_on(state: Any, steps: int) -> tuple[list[int], Any, int]:
    """Return the first word of each batch, the state after the last one, and how many samples were read."""
    pytest.MonkeyPatch().setattr(streamed_batches, "SNAPSHOT_SECONDS", 0.0)
    data = stateful()
    source = make_batches(data, BATCH, 0, shuffle=False)
    first = state["step"] if state else 0
    if state:
        source.restore(state)
    words = [int(source.read(step, OneRank)[0][0, 0]) for step in range(first, first + steps)]  # type: ignore[arg-type]
    after = source.state(first + steps)
    source.close()
    return words, after, data.dataset.read


class OneRank:
    position = Position(0, 0, 0)
    plan = Plan()
    device = torch.device("cpu")


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stream_with_a_state_is_not_read_again() -> None:
    pytest.importorskip("torchdata")
    [(expected, _, _)] = run_ranks(1, read_on, None, 30)
    [(first, state, read)] = run_ranks(1, read_on, None, 12)
    assert read <= (12 + 4) * BATCH, "a few batches are read ahead"
    [(second, _, read)] = run_ranks(1, read_on, state, 18)
    assert first + second == expected
    assert read <= (18 + 4) * BATCH


def evaluate_loader(meeting: Path) -> float:
    session = begin(meeting, DataLoader(RepeatedWords(), BATCH), 1)
    data = DataLoader(RepeatedWords(), collate_fn=collate, num_workers=1)
    with pytest.raises(BadInput, match="the data to evaluate has no length"):
        session.evaluate(DataLoader(Stream(), BATCH))
    return session.evaluate(data, loss_of_dict)


def test_a_loader_is_evaluated_with_its_collate_function() -> None:
    [one] = run_ranks(1, evaluate_loader, form_group=False)
    assert run_ranks(2, evaluate_loader, form_group=False) == pytest.approx([one] * 2, rel=1e-9)


class Shuffled(IterableDataset[Words]):
    def __iter__(self) -> Iterator[Words]:
        order = [*range(100)]
        random.Random(os.getpid()).shuffle(order)
        return (RepeatedWords()[index] for index in order)


def test_ranks_that_shuffle_a_stream_differently_are_an_error() -> None:
    assert len(set(run_ranks(2, read_shuffled, form_group=False))) == 1


def read_shuffled(meeting: Path) -> str:
    session = begin(meeting, Shuffled(), 1)
    with pytest.raises(BadInput, match="the ranks read different batches") as error:
        next(iter(session))
    return str(error.value)


@pytest.mark.parametrize(
    ("data", "batch", "message"),
    [
        (lambda: DataLoader(RepeatedWords(), 4), 8, "the loader has batch_size=4, and the global batch is 8"),
        (lambda: DataLoader(Stream(), None), None, "pass batch="),
        (RepeatedWords, None, "pass batch="),
        (lambda: 3, 8, "data is a int, expected a data set, a DataLoader or an iterable of batches"),
        (lambda: DataLoader(RepeatedWords(), 8, sampler=distributed()), 8, "has a DistributedSampler"),
        (lambda: DataLoader(RepeatedWords(), 8, sampler=(i for i in range(9))), 8, "has no length"),
        (lambda: DataLoader(RepeatedWords(), 8, sampler=[]), 8, "the data set has 0 samples"),
    ],
)
def test_data_that_cannot_be_divided_is_an_error(data: Callable[[], Any], batch: int | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_batches(data(), global_batch(data(), batch), 0, shuffle=True)


def distributed() -> Any:
    return DistributedSampler(RepeatedWords(), num_replicas=2, rank=0)  # type: ignore[arg-type,type-var]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: iter([collate([RepeatedWords()[0]] * 4)]), "a batch of 4 samples, expected whole batches of 8"),
        (lambda: iter([collate([RepeatedWords()[0]] * 16)]), "a batch of 16 samples, expected whole batches of 8"),
        (lambda: iter([collate([RepeatedWords()[0]] * 8)]), "can be iterated only once"),
        (lambda: DataLoader([1, "no number"], 8), "invalid data type"),
    ],
)
def test_batches_that_cannot_be_used_are_an_error_of_the_step(data: Callable[[], Any], message: str) -> None:
    errors = run_ranks(1, read_until_error, data)
    assert any(re.search(message, error) for error in errors), errors


def read_until_error(data: Callable[[], Any]) -> str:
    source = make_batches(data(), BATCH, 0, shuffle=False)
    try:
        for step in range(3):
            source.read(step, OneRank)  # type: ignore[arg-type]
    except Exception as error:
        return f"{error}"
    return "no error"
