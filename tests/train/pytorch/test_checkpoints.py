"""Checkpoints on disk: any layout loads what another has saved, and a checkpoint is complete or does not exist."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_ranks import run_ranks

from refold.errors import BadFile, CheckpointNotWritten
from refold.train.checkpoints import Checkpoints

FACTS = {"step": 3, "data": {"epoch": 1}}


def whole(name: str) -> Any:
    """Return a tensor that depends on the name: 6 × 4."""
    return torch.arange(24.0).reshape(6, 4) + len(name)


def sharded(dimension: int, tensor: Any) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(tensor, mesh, [Shard(dimension)])


def save_by_rows(folder: Path, wait: bool) -> None:
    checkpoints = Checkpoints(folder)
    tensors = {"model.weight": sharded(0, whole("model.weight")), "optimizer.step": torch.tensor(3.0)}
    checkpoints.save(3, tensors, FACTS, wait=wait)
    if not wait:
        tensors["model.weight"].to_local().zero_()
        assert checkpoints.finish() == 3


def load_by_columns(folder: Path) -> tuple[Any, Any, float]:
    tensors = {"model.weight": sharded(1, torch.zeros(6, 4)), "optimizer.step": torch.tensor(0.0)}
    facts = Checkpoints(folder).load(3, tensors)
    return facts, tensors["model.weight"].full_tensor().tolist(), tensors["optimizer.step"].item()


@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_loads_under_another_layout(tmp_path: Path, wait: bool) -> None:
    run_ranks(2, save_by_rows, tmp_path, wait)
    assert run_ranks(3, load_by_columns, tmp_path) == [(FACTS, whole("model.weight").tolist(), 3.0)] * 3
    alone = {"model.weight": torch.zeros(6, 4), "optimizer.step": torch.tensor(0.0)}
    assert Checkpoints(tmp_path).load(3, alone) == FACTS
    assert torch.equal(alone["model.weight"], whole("model.weight"))


def save_stage(folder: Path) -> None:
    name = f"model.layers.{torch.distributed.get_rank()}"
    Checkpoints(folder).save(3, {name: whole(name)}, FACTS)


def test_pipeline_stages_save_only_their_own_tensors(tmp_path: Path) -> None:
    run_ranks(2, save_stage, tmp_path)
    tensors = {f"model.layers.{stage}": torch.zeros(6, 4) for stage in range(2)}
    Checkpoints(tmp_path).load(3, tensors)
    assert all(torch.equal(tensor, whole(name)) for name, tensor in tensors.items())


def test_the_newest_two_are_kept_and_leftovers_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    (tmp_path / "step-5.partial").mkdir()
    for step in (1, 2, 10):
        checkpoints.save(step, {"weight": torch.full((2,), float(step))}, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-2"]
    assert (checkpoints.latest(), checkpoints.facts(10)) == (10, {"step": 10})


def test_a_torn_checkpoint_does_not_count(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {"weight": torch.zeros(2)}, {})
    (tmp_path / "step-1").rename(tmp_path / "step-2.partial")
    assert Checkpoints(tmp_path).latest() is None


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        Checkpoints(tmp_path).save(7, {"weight": torch.tensor(value)}, {"value": value})
    weight = torch.tensor(0.0)
    assert Checkpoints(tmp_path).load(7, {"weight": weight}) == {"value": 2.0}
    assert weight.item() == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"a": (2,), "c": (3,)}, "it has no 'c'"),
        ({"a": (2,)}, "it has 'b', which this model has not"),
        ({"a": (2,), "b": (4,)}, "'b' is float32 of shape [3], expected float32 of shape [4]"),
    ],
)
def test_a_checkpoint_of_another_model_is_not_loaded(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], problem: str
) -> None:
    Checkpoints(tmp_path).save(1, {"a": torch.ones(2), "b": torch.ones(3)}, {})
    loaded = {name: torch.zeros(shape) for name, shape in tensors.items()}
    with pytest.raises(BadFile) as error:
        Checkpoints(tmp_path).load(1, loaded)
    assert str(error.value) == f"{tmp_path}/step-1: is a checkpoint of another model: {problem}"
    assert not any(tensor.any() for tensor in loaded.values())


def load_different_stages(folder: Path) -> str:
    """Only rank 1 has a tensor of another shape."""
    rank = torch.distributed.get_rank()
    with pytest.raises(BadFile) as error:
        Checkpoints(folder).load(3, {f"model.layers.{rank}": torch.zeros(6, 4 + rank)})
    return error.value.problem


def test_all_ranks_agree_that_a_checkpoint_is_of_another_model(tmp_path: Path) -> None:
    run_ranks(2, save_stage, tmp_path)
    problem = (
        "is a checkpoint of another model: "
        "'model.layers.1' is float32 of shape [6, 4], expected float32 of shape [6, 5]"
    )
    assert run_ranks(2, load_different_stages, tmp_path) == [problem, problem]


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {"a": torch.ones(2)}, {})
    next((tmp_path / "step-1").glob("*.distcp")).write_bytes(b"")
    with pytest.raises(BadFile, match="cannot be loaded: rank 0"):
        Checkpoints(tmp_path).load(1, {"a": torch.ones(2)})


def save_to_full_disk(folder: Path, wait: bool) -> list[str]:
    """The disk of rank 1 takes files of at most 64 kB."""
    checkpoints = Checkpoints(folder)
    tensors = {"weight": sharded(0, torch.ones(4, 16000))}
    checkpoints.save(1, tensors, {})
    if torch.distributed.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    with pytest.raises(CheckpointNotWritten) as error:
        checkpoints.save(2, tensors, {}, wait=wait)
        checkpoints.finish()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    left = sorted(path.name for path in folder.iterdir())
    torch.distributed.barrier()
    checkpoints.save(3, tensors, {})
    return [str(error.value), *left]


@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_leaves_the_old_checkpoint_and_all_ranks_know(tmp_path: Path, wait: bool) -> None:
    for message, *left in run_ranks(2, save_to_full_disk, tmp_path, wait):
        assert message.startswith(f"the checkpoint of step 2 was not written to {tmp_path} (rank 1: ")
        assert message.endswith("; the one of step 1 is intact")
        assert [name for name in left if not name.endswith(".partial")] == ["step-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"]
    assert Checkpoints(tmp_path).load(3, {"weight": torch.zeros(4, 16000)}) == {}
