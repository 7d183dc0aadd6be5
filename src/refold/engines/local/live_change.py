"""Live changes: the processes of a run become the next run of its job, on another allocation and with another plan.

Only an agent (`python -m refold.train`) can do that. The protocol consists of files, so that either side may be killed
at any moment:

- The agent creates `$REFOLD_CHANGE.agent` when it can accept requests.
- The back end writes a `ChangeRequest` to `$REFOLD_CHANGE`.
- The agent changes the plan, and writes a `ChangeAnswer` to `$REFOLD_CHANGE.done`. From then on, only processes of the
  new plan use GPUs.

Every file is written at once (under another name, then renamed). A request is repeated unchanged until it is answered,
possibly by another back end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import msgspec

from refold.core import RunStopped
from refold.engines.local.process_tree import ProcessTree
from refold.engines.local.shim import read_claim
from refold.model import WHOLE, Allocation, ChangeAnswer, ChangeRequest, Seconds
from refold.server.output import (
    SHARED_FILE,
    UNREADABLE,
    ResourceShortage,
    RunFiles,
    continue_log,
    is_regular,
    raise_if_shortage,
    read_regular,
    write_atomically,
)

ANSWER_TIMEOUT: Seconds = 120.0
"""How long an agent has to answer. Meanwhile it trains: joining processes have to import PyTorch."""

POLL_SECONDS: Seconds = 0.02


def has_agent(files: RunFiles) -> bool:
    return is_regular(files.agent)


def has_same_nodes(old: Allocation, new: Allocation) -> bool:
    """Whether both allocations have whole GPUs of the same nodes, instance by instance."""
    shares = (*old.placement, *new.placement)
    same_nodes = [share.node for share in old.placement] == [share.node for share in new.placement]
    return same_nodes and all(share.gpus and share.gpu_milli == WHOLE for share in shares)


async def change_live(files: RunFiles, request: ChangeRequest) -> ChangeAnswer | None:
    """Request a change and wait for the answer. None: there is no answer in time, or it is an error."""
    content = msgspec.json.encode(request)
    if _read(files, files.change.name) != content:
        try:
            write_atomically(files.change, content, SHARED_FILE)
        except OSError:
            return None
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT):
            while (answer := read_answer(files, request.run)) is None:
                await asyncio.sleep(POLL_SECONDS)
            return None if answer.error else answer
    return None


def withdraw_request(files: RunFiles) -> None:
    """Remove a request that was not answered."""
    with suppress(OSError):
        files.change.unlink(missing_ok=True)


def read_answer(files: RunFiles, run: int) -> ChangeAnswer | None:
    """Return the answer to the request for a run, if there is one."""
    try:
        answer = msgspec.json.decode(_read(files, files.answer.name), type=ChangeAnswer)
    except UNREADABLE:
        return None
    return answer if answer.run == run else None


def take_over(files: RunFiles, instances: int) -> bool:
    """Let a run that was prepared claim its processes; return whether they are alive. Its logs begin here."""
    claims = [read_claim(files.earlier_claim(instance)) for instance in range(instances)]
    if not all(claim is not None and claim.is_alive() for claim in claims):
        return False
    try:
        for instance in reversed(range(instances)):  # the first claim says that the run was taken over
            with suppress(FileNotFoundError):
                if not is_regular(files.log(instance)):
                    continue_log(files.of_run(files.run - 1).log(instance), files.log(instance))
            with suppress(FileExistsError):
                os.link(files.earlier_claim(instance), files.claim(instance), follow_symlinks=False)
    except OSError as error:
        raise_if_shortage(error)
        return False
    return True


async def discard(files: RunFiles, instances: int, tree: ProcessTree, grace: Seconds, first: signal.Signals) -> None:
    """End the processes that were prepared for a run, which does not need them. Another start of it will be a new one.

    The records are changed first: a back end that is started meanwhile must not take the processes over.
    """
    previous = files.of_run(files.run - 1)
    claims = [read_claim(files.earlier_claim(instance)) for instance in range(instances)]
    answer = read_answer(files, files.run)
    with suppress(OSError):
        previous.record_end(RunStopped(files.job, previous.run, steps=answer.step if answer else None))
    files.remove_start()
    for claim in claims:
        if claim is not None and claim.is_alive():
            tree.add_leader(claim.process)
    await tree.end(grace, first)
    await tree.release()


def _read(files: RunFiles, name: str) -> bytes:
    try:
        return read_regular(files.folder / name)
    except (OSError, ResourceShortage):
        return b""
