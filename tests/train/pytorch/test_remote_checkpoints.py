"""Checkpoints in an object store, and at other addresses that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from object_store import BUCKET, object_store
from small_models import RepeatedWords, SmallGpt, next_token_loss
from torch_ranks import run_ranks

import refold.train
from refold.errors import BadFile, BadInput, CheckpointNotWritten
from refold.train.checkpoints import Checkpoints

FACTS = {"step": 3}


@pytest.fixture(scope="module")
def store() -> Iterator[None]:
    with object_store() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def address(store: None, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').strip(']')}"


def sharded(dimension: int, tensor: Any) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(tensor, mesh, [Shard(dimension)])


def save_by_rows(address: str, wait: bool) -> None:
    checkpoints = Checkpoints(address)
    tensors = {"weight": sharded(0, torch.arange(24.0).reshape(6, 4))}
    checkpoints.save(3, tensors, FACTS, wait=wait)
    if not wait:
        tensors["weight"].to_local().zero_()
        assert checkpoints.finish() == 3


def load_by_columns(address: str) -> tuple[Any, Any]:
    tensors = {"weight": sharded(1, torch.zeros(6, 4))}
    return Checkpoints(address).load(3, tensors), tensors["weight"].full_tensor().tolist()


@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_in_an_object_store_loads_under_another_layout(address: str, wait: bool) -> None:
    run_ranks(2, save_by_rows, address, wait)
    assert run_ranks(3, load_by_columns, address) == [(FACTS, torch.arange(24.0).reshape(6, 4).tolist())] * 3


def save_and_lose(address: str) -> tuple[list[int | None], list[str], float]:
    import s3fs

    files, root = s3fs.S3FileSystem(use_listings_cache=False), address.removeprefix("s3://")
    checkpoints, seen = Checkpoints(address), [Checkpoints(address).latest()]
    for step in (1, 2, 3):
        checkpoints.save(step, {"weight": torch.full((2,), float(step))}, {"step": step})
        seen.append(checkpoints.latest())
    files.rm(f"{root}/step-3/facts.json")  # as if the run had been killed before it wrote this
    seen.append(checkpoints.latest())
    checkpoints.save(2, {"weight": torch.full((2,), 7.0)}, {"step": 2})
    weight = torch.zeros(2)
    checkpoints.load(2, {"weight": weight})
    return seen, sorted(path.split("/")[-1] for path in files.ls(root)), weight[0].item()


def test_two_complete_checkpoints_are_kept_and_incomplete_ones_do_not_count(address: str) -> None:
    ((seen, left, value),) = run_ranks(1, save_and_lose, address)
    assert seen == [None, 1, 2, 3, 2]
    assert left == ["step-2"], "the newest two are kept, and step 3 was incomplete"
    assert value == 7.0


def fail_to_save() -> None:
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    checkpoints = Checkpoints(f"s3://{BUCKET}/nowhere")
    with pytest.raises(BadFile, match=rf"s3://{BUCKET}/nowhere: cannot be read: "):
        checkpoints.latest()
    with pytest.raises(CheckpointNotWritten, match=rf"of step 1 was not written to s3://{BUCKET}/nowhere "):
        checkpoints.save(1, {"weight": torch.zeros(2)}, {})


def test_a_store_that_cannot_be_reached_is_named(store: None) -> None:
    run_ranks(1, fail_to_save)


def test_an_address_that_nobody_knows_is_bad_input() -> None:
    with pytest.raises(BadInput, match="checkpoints cannot be at nothing://x: Protocol not known: nothing"):
        Checkpoints("nothing://x").latest()


def train(meeting: Path, address: str, steps: int) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallGpt(layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = refold.train.start(
        model, optimizer, loss=next_token_loss, data=RepeatedWords(), batch=4, steps=steps, checkpoint=address
    )
    return [session.step(batch).item() for batch in session]


def test_a_training_resumes_from_an_address(address: str, tmp_path: Path) -> None:
    (expected,) = run_ranks(1, train, f"file://{tmp_path}/whole", 6, form_group=False)
    assert (tmp_path / "whole" / "step-6" / "facts.json").exists()
    (first,) = run_ranks(1, train, address, 3, form_group=False)
    (second,) = run_ranks(1, train, address, 6, form_group=False)
    assert [*first, *second] == pytest.approx(expected)
