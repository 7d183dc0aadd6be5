"""Points at which a daemon kills itself, put into its own process from here: the product knows nothing of them.

It also writes down where it stands at each step, for those who compare that with what the next daemon recovers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from refold.backends.local import backend as local_backend, gang, instance, process_tree, run_files, shim
from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.server import daemon, loop, recovery
from refold.server.store import store

Die = Callable[[], None]

CHECKPOINT_EVERY = 7
"""So that there are some in a short life."""


def arm(point: str, nth: int, witness: str, epochs: bool) -> None:
    """Let the daemon write down where it stands at each step; kill it when it comes to a point for the n-th time."""
    loop.CHECKPOINT_EVERY = CHECKPOINT_EVERY
    if epochs:
        recovery.MOST_REPLAYED = 0
    _bear_witness(Path(witness))
    if point:
        POINTS[point](_Countdown(nth))


class _Countdown:
    """Kills the process the n-th time that it is called."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Stand(msgspec.Struct, frozen=True):
    """Where a daemon stands after an entry; `after`: it was written, read again, or both in one (a new epoch)."""

    after: str
    entry: int
    waiting: list[str]
    held: list[str]
    running: list[tuple[str, int]]
    started: list[str]
    records: str

    def same_as(self, other: Stand) -> bool:
        """Whether both say the same of who waits, in which order, who is held, who runs, and all that is known."""
        return _told(self) == _told(other)


def _told(stand: Stand) -> tuple[object, ...]:
    return stand.entry, stand.waiting, stand.held, stand.running, stand.records


def _stand(after: str, entry: int, of: Any, started: Sequence[str] = ()) -> Stand:
    view = of.scheduler.view if after == "read" else of.view
    records = msgspec.json.encode(sorted(of.job_table.of.values(), key=lambda record: record.job.id))
    runs = sorted((run.job, run.number) for run in view.runs.values())
    digest = hashlib.sha256(records).hexdigest()
    return Stand(after, entry, list(view.waiting), sorted(view.held), runs, list(started), digest)


def _bear_witness(path: Path) -> None:
    def write(stand: Stand) -> None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(stand) + b"\n")

    commit_of, recover = loop.Loop._commit_of, recovery.recover

    def witnessed(self: loop.Loop, step: loop.LoopStep, *more: Any) -> store.Commit:
        commit = commit_of(self, step, *more)
        started = [order.job for order in step.entry.orders if isinstance(order, StartRun)]
        write(_stand("epoch" if commit.epoch else "written", commit.entry, self, started))
        return commit

    def recovered(*arguments: Any) -> recovery.RecoveredState:
        stand = recover(*arguments)
        if stand.snapshot is None:
            write(_stand("read", stand.entry, stand))
        return stand

    _put(loop.Loop, "_commit_of", witnessed)
    _put(daemon, "recover", recovered)


def _put(owner: Any, name: str, instead: object) -> None:
    setattr(owner, name, instead)


def _before(owner: Any, name: str, wanted: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    return lambda die: _wrap(owner, name, die, wanted, before=True)


def _after(owner: Any, name: str, wanted: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    return lambda die: _wrap(owner, name, die, wanted, before=False)


def _wrap(owner: Any, name: str, die: Die, wanted: Callable[..., bool], before: bool) -> None:
    work = getattr(owner, name)

    def around(*arguments: Any, **named: Any) -> Any:
        if before and wanted(*arguments):
            die()
        answer = work(*arguments, **named)
        if not before and wanted(*arguments):
            die()
        return answer

    async def around_coroutine(*arguments: Any, **named: Any) -> Any:
        if before and wanted(*arguments):
            die()
        answer = await work(*arguments, **named)
        if not before and wanted(*arguments):
            die()
        return answer

    setattr(owner, name, around_coroutine if asyncio.iscoroutinefunction(work) else around)


def _between_statements(die: Die) -> None:
    prepare = store.Store._prepare

    def prepared(self: store.Store) -> None:
        prepare(self)
        self._writer.set_trace_callback(lambda statement: die() if not statement.startswith("BEGIN") else None)

    _put(store.Store, "_prepare", prepared)


def _after_acknowledging(die: Die) -> None:
    carry_out = loop.Loop._carry_out

    async def acknowledged(self: loop.Loop, backend: Any, orders: Any) -> None:
        if orders:
            await asyncio.sleep(0.01)  # the answers go out
            die()
        await carry_out(self, backend, orders)

    _put(loop.Loop, "_carry_out", acknowledged)


def _a_moment_after_spawning(die: Die) -> None:
    start = shim.start_shim

    def spawned(*arguments: Any) -> Any:
        started = start(*arguments)
        time.sleep(0.01)  # it claims its instance and runs the command
        die()
        return started

    _put(instance, "start_shim", spawned)


def _is_end(_: object, event: object) -> bool:
    return isinstance(event, RunFinished | RunFailed | RunStopped)


def _begins_a_epoch(_: object, commit: store.Commit) -> bool:
    return commit.epoch is not None


POINTS: dict[str, Callable[[Die], None]] = {
    "before a commit": _before(store.Store, "commit"),
    "between two statements of a commit": _between_statements,
    "after a commit": _after(store.Store, "commit"),
    "after a commit that ends a job": _after(store.Store, "commit", lambda _, commit: bool(commit.ended)),
    "acknowledged, before acting": _after_acknowledging,
    "before an order": _before(local_backend.LocalBackend, "carry_out"),
    "after an order": _after(local_backend.LocalBackend, "carry_out"),
    "noted, before a spawn": _before(instance, "start_shim"),
    "right after a spawn": _after(instance, "start_shim"),
    "a moment after a spawn": _a_moment_after_spawning,
    "before an end is decided": _before(run_files.RunFiles, "decide"),
    "after an end is decided": _after(run_files.RunFiles, "decide"),
    "while stopping": _after(process_tree, "_signal", lambda groups, _: bool(groups)),
    "an end was seen, not reported": _after(gang.Gang, "see_through"),
    "an end was reported, not written": _after(loop.Loop, "report", _is_end),
    "before a checkpoint": _before(store.Store, "_write_checkpoint"),
    "after a checkpoint": _after(store.Store, "_write_checkpoint"),
    "before a epoch": _before(store.Store, "commit", _begins_a_epoch),
    "after a epoch": _after(store.Store, "commit", _begins_a_epoch),
    "before recovery": _before(daemon, "recover"),
    "after recovery": _after(daemon, "recover"),
    "before strays are ended": _before(local_backend.LocalBackend, "keep_only"),
    "after strays are ended": _after(local_backend.LocalBackend, "keep_only"),
    "after runs are taken up": _after(loop.Loop, "_take_up"),
}

AT_THE_START = {
    "before a epoch",
    "after a epoch",
    "before recovery",
    "after recovery",
    "before strays are ended",
    "after strays are ended",
    "after runs are taken up",
}
"""Points that a daemon comes to once, when it starts."""
