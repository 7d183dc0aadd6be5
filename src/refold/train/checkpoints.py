"""Checkpoints of a training job, which any other layout of the same model can load.

A checkpoint is a folder `step-N`, on disk or at an address, in the format of `torch.distributed.checkpoint`, with the
facts about the training in `facts.json`. PyTorch is imported when a checkpoint is written or read, not before.
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.errors import BadFile, CheckpointNotWritten
from refold.train.checkpoint_folders import FACTS_FILE, PREFIX, checkpoint_folder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint import FileSystemReader

    from refold.train.checkpoint_writer import CheckpointWriter

__all__ = ["KEPT", "CheckpointNotWritten", "Checkpoints"]

log = logging.getLogger("refold.train")

KEPT = 2
"""How many checkpoints are kept: the newest ones."""


class Checkpoints:
    """The checkpoints in a folder. `save` and `load` are collective: every rank of the process group calls them.

    Tensors are named by the whole model. A rank passes the tensors that it has: plain tensors, which are equal on every
    rank that has them, and DTensors. Errors are the same on every rank. Call `finish` before the process group is
    destroyed.
    """

    def __init__(self, folder: Path | str, keep: int = KEPT) -> None:
        """`folder`: a path, or an address of fsspec, such as `s3://bucket/run`."""
        self._folder = checkpoint_folder(folder)
        self._keep = keep
        self._groups: tuple[Any, Any] = (None, None)  # the default group, and a gloo group of the same ranks
        self._in_flight: tuple[int, Future[None]] | None = None

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        return max(self._steps(), default=None)

    def facts(self, step: int) -> dict[str, Any]:
        """Return the facts that were saved with a checkpoint."""
        try:
            facts: dict[str, Any] = json.loads(self._folder.facts(_name(step)))
        except (OSError, ValueError) as error:
            path = f"{self._folder.path(_name(step))}/{FACTS_FILE}"
            raise BadFile(path, f"cannot be read as facts of a checkpoint: {error}") from None
        return facts

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: dict[str, Any], *, wait: bool = True) -> None:
        """Write a checkpoint; with `wait` until it is complete, else in the background, from a copy of the tensors.

        At most one checkpoint is written at a time. `facts`, as JSON, are those of rank 0. Raises
        `CheckpointNotWritten`; in the background, `finish` does.
        """
        try:
            self.finish()
        except CheckpointNotWritten as error:
            log.warning("%s", error)
        writer = self._folder.writer(_name(step), {FACTS_FILE: json.dumps(facts)})
        group = self._group()
        if wait:
            self._write(step, dict(tensors), writer, group)
            return
        copies = _copy_to_host(tensors)
        future: Future[None] = Future()
        self._in_flight = (step, future)
        thread = threading.Thread(
            target=self._write_in_background, args=(step, copies, writer, group, future), daemon=True
        )
        thread.start()

    def finish(self, *, wait: bool = True) -> int | None:
        """Return the step of the checkpoint in the background when it is complete; None if there is none.

        Without `wait`, None also if it is not complete yet. Raises `CheckpointNotWritten`.
        """
        if self._in_flight is None:
            return None
        step, future = self._in_flight
        if not wait and not future.done():
            return None
        try:
            future.result()
        finally:
            self._in_flight = None
        return step

    def abandon(self) -> None:
        """Forget the checkpoint in the background: ranks that have to write a part of it are lost."""
        self._in_flight, self._groups = None, (None, None)

    def load(self, step: int, tensors: Mapping[str, Tensor], unused: Set[str] = frozenset()) -> dict[str, Any]:
        """Fill the tensors from a checkpoint of the same model, saved under any layout; return its facts.

        `unused`: names of tensors that the checkpoint may have, and this rank does not need.
        """
        import torch.distributed.checkpoint as dcp

        path = self._folder.path(_name(step))
        group = self._group()
        problem = _agree(_first_difference(self._folder.reader(_name(step)), tensors, unused, group), group)
        if problem:
            raise BadFile(path, problem)
        try:
            with _without_warning():
                dcp.load(dict(tensors), storage_reader=self._folder.reader(_name(step)), **_members(group))
        except dcp.CheckpointException as error:
            raise BadFile(path, f"cannot be loaded: {_cause(error)}") from None
        return self.facts(step)

    def _steps(self) -> list[int]:
        names = self._folder.names()
        return [int(number) for name in names if (number := name.removeprefix(PREFIX)).isdecimal() and number != name]

    def _steps_if_known(self) -> list[int]:
        """Return the steps of the checkpoints after one was written, or not: that must not fail for another reason."""
        try:
            return sorted(self._steps())
        except BadFile as error:
            log.warning("%s", error)
            return []

    def _group(self) -> Any:
        """Return a gloo group of all ranks that only checkpoints use; None outside of a process group."""
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            return None
        world = dist.group.WORLD
        if self._groups[0] is not world:
            self._groups = (world, dist.new_group(backend="gloo"))
        return self._groups[1]

    def _write_in_background(
        self, step: int, tensors: dict[str, Tensor], writer: CheckpointWriter, group: Any, future: Future[None]
    ) -> None:
        try:
            self._write(step, tensors, writer, group)
        except BaseException as error:  # raised again by `finish`
            future.set_exception(error)
        else:
            future.set_result(None)

    def _write(self, step: int, tensors: dict[str, Tensor], writer: CheckpointWriter, group: Any) -> None:
        import torch.distributed.checkpoint as dcp

        try:
            with _without_warning():
                dcp.save(tensors, storage_writer=writer, **_members(group))
        except dcp.CheckpointException as error:
            latest = max(self._steps_if_known(), default=None)
            remains = "there is no earlier one" if latest is None else f"the one of step {latest} is intact"
            if _is_first(group):
                writer.remove_partial()
            raise CheckpointNotWritten(
                f"the checkpoint of step {step} was not written to {self._folder} ({_cause(error)}); {remains}"
            ) from None
        if _is_first(group):
            for old in self._steps_if_known()[: -self._keep]:
                self._folder.remove(_name(old))


def _name(step: int) -> str:
    return f"{PREFIX}{step}"


def _members(group: Any) -> dict[str, Any]:
    return {"no_dist": True} if group is None else {"process_group": group}


@contextmanager
def _without_warning() -> Iterator[None]:
    """Do not warn that there is no process group: training on one rank is normal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _is_first(group: Any) -> bool:
    if group is None:
        return True
    import torch.distributed as dist

    return dist.get_rank(group) == 0


def _agree(problem: str, group: Any) -> str:
    """Return the problem of the lowest rank that has one, on every rank; empty if there is none."""
    if group is None:
        return problem
    import torch.distributed as dist

    problems: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group)
    return next(filter(None, problems), "")


def _cause(error: Any) -> str:
    """Return the first error that a rank reported."""
    rank, (exception, _) = min(error.failures.items())
    text = str(exception).splitlines() or [type(exception).__name__]
    return f"rank {rank}: {text[0]}"


def _copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy that the training does not change."""
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    copies: dict[str, Tensor] = BlockingAsyncStager().stage(dict(tensors))
    return copies


def _first_difference(reader: FileSystemReader, tensors: Mapping[str, Tensor], unused: Set[str], group: Any) -> str:
    """Describe the first difference between a checkpoint and the model of all ranks; empty if there is none."""
    names, known = _all_names(tensors, group), _all_names({*tensors, *unused}, group)
    try:
        saved = reader.read_metadata().state_dict_metadata
    except Exception as error:
        return f"is not a checkpoint: {error}"
    if missing := sorted(names - set(saved)):
        return f"is a checkpoint of another model: it has no {missing[0]!r}"
    if extra := sorted(set(saved) - known):
        return f"is a checkpoint of another model: it has {extra[0]!r}, which this model has not"
    for name in sorted(tensors):
        found, expected = _describe(saved[name].size, saved[name].properties.dtype), _describe_tensor(tensors[name])
        if found != expected:
            return f"is a checkpoint of another model: {name!r} is {found}, expected {expected}"
    return ""


def _all_names(own: Iterable[str], group: Any) -> set[str]:
    if group is None:
        return set(own)
    import torch.distributed as dist

    names: list[list[str]] = [[]] * dist.get_world_size(group)
    dist.all_gather_object(names, list(own), group)
    return {name for part in names for name in part}


def _describe_tensor(tensor: Tensor) -> str:
    return _describe(tensor.shape, tensor.dtype)


def _describe(shape: Any, dtype: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {list(shape)}"
