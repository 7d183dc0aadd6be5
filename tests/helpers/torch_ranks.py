"""Run a function in several processes that form a process group."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 60


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any, form_group: bool = True) -> list[Any]:
    """Return what `function(*arguments)` returns on each rank of a gloo process group.

    Ranks are forked, since importing PyTorch takes seconds. Without `form_group` they are not in a group yet: the first
    argument of the function is then a file where they can meet.
    """
    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        if not form_group:
            arguments = (store, *arguments)
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        processes = [
            context.Process(
                target=_run_rank, args=(rank, count, store if form_group else None, sender, function, arguments)
            )
            for rank, (_, sender) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        try:
            results = [_receive(receiver) for receiver, _ in pipes]
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()
    failures = [text for failed, text in results if failed]
    assert not failures, "\n".join(failures)
    return [value for _, value in results]


def run_in_child(function: Callable[[], Any]) -> None:
    """Run a function in a forked process, and fail if it fails there."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_alone, args=(sender, function))
    process.start()
    failed, text = _receive(receiver)
    process.kill()
    process.join()
    assert not failed, text


def _run_alone(sender: Connection, function: Callable[[], Any]) -> None:
    try:
        function()
        sender.send((False, ""))
    except BaseException:
        sender.send((True, traceback.format_exc()))
    finally:
        sender.close()
        os._exit(0)


def _receive(receiver: Connection) -> tuple[bool, Any]:
    if not receiver.poll(TIMEOUT_SECONDS):
        return True, "no answer from a rank"
    result: tuple[bool, Any] = receiver.recv()
    return result


def _run_rank(
    rank: int,
    count: int,
    store: Path | None,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    try:
        if store is not None:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        sender.send((False, function(*arguments)))
        dist.barrier()
    except BaseException:
        sender.send((True, f"rank {rank}: {traceback.format_exc()}"))
    finally:
        sender.close()
        os._exit(0)
