"""Named points at which a daemon kills itself, patched into its process from here.

The daemon also records its queue state at each step, to be compared with what the next daemon recovers.
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

from refold.core.events import RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.engines.local import backend as local_backend, gang, instance, process_host, shim
from refold.server import daemon_parts, inbox, loop, recovery
from refold.server.output import run_files
from refold.server.store import store
from refold.server.subscribers import LoopStep

Die = Callable[[], None]

CHECKPOINT_INTERVAL = 7
"""Small, so that a short test has several checkpoints."""


def arm(point: str, nth: int, states_file: str, new_epochs: bool) -> None:
    """Record the queue state at each step; kill the process when it reaches a point for the n-th time."""
    loop.CHECKPOINT_INTERVAL_ENTRIES = CHECKPOINT_INTERVAL
    if new_epochs:
        recovery.MAX_REPLAYED_ENTRIES = 0
    _record_states(Path(states_file))
    if point:
        POINTS[point](_Countdown(nth))


class _Countdown:
    """Kills the process at the n-th call."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class QueueState(msgspec.Struct, frozen=True):
    """State of a daemon after an entry. `after`: the entry was `written`, `read` again, or begins an `epoch`."""

    after: str
    entry: int
    waiting: list[str]
    held: list[str]
    running: list[tuple[str, int]]
    started: list[str]
    records: str

    def same_as(self, other: QueueState) -> bool:
        """Whether both have the same queue order, held jobs, runs and records."""
        return _compared_fields(self) == _compared_fields(other)


def _compared_fields(state: QueueState) -> tuple[object, ...]:
    return state.entry, state.waiting, state.held, state.running, state.records


def _queue_state(after: str, entry: int, source: Any, started: Sequence[str] = ()) -> QueueState:
    view = source.scheduler.view if after == "read" else source.view
    records = msgspec.json.encode(sorted(source.job_table.records.values(), key=lambda record: record.job.id))
    runs = sorted((run.job, run.number) for run in view.runs.values())
    digest = hashlib.sha256(records).hexdigest()
    return QueueState(after, entry, list(view.waiting), sorted(view.held), runs, list(started), digest)


def _record_states(path: Path) -> None:
    def write(state: QueueState) -> None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(state) + b"\n")

    build_commit, recover = loop.Loop._build_commit, recovery.recover

    def recording_build_commit(self: loop.Loop, step: LoopStep, *more: Any) -> store.Commit:
        commit = build_commit(self, step, *more)
        started = [order.job for order in step.entry.orders if isinstance(order, StartRun)]
        write(_queue_state("epoch" if commit.epoch else "written", commit.number, self._state, started))
        return commit

    def recording_recover(*arguments: Any) -> recovery.RecoveredState:
        state = recover(*arguments)
        if state.snapshot is None:
            write(_queue_state("read", state.entry, state))
        return state

    _patch(loop.Loop, "_build_commit", recording_build_commit)
    _patch(daemon_parts, "recover", recording_recover)


def _patch(owner: Any, name: str, replacement: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, replacement)


def _before(owner: Any, name: str, condition: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    return lambda die: _wrap(owner, name, die, condition, before=True)


def _after(owner: Any, name: str, condition: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    return lambda die: _wrap(owner, name, die, condition, before=False)


def _wrap(owner: Any, name: str, die: Die, condition: Callable[..., bool], before: bool) -> None:
    work = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before and condition(*arguments):
            die()
        result = work(*arguments, **named)
        if not before and condition(*arguments):
            die()
        return result

    async def wrapped_coroutine(*arguments: Any, **named: Any) -> Any:
        if before and condition(*arguments):
            die()
        result = await work(*arguments, **named)
        if not before and condition(*arguments):
            die()
        return result

    setattr(owner, name, wrapped_coroutine if asyncio.iscoroutinefunction(work) else wrapped)


def _between_statements(die: Die) -> None:
    prepare = store.Store._prepare

    def prepared(self: store.Store) -> None:
        prepare(self)
        self._connection.set_trace_callback(lambda statement: die() if not statement.startswith("BEGIN") else None)

    _patch(store.Store, "_prepare", prepared)


def _after_acknowledging(die: Die) -> None:
    carry_out = loop.Loop._carry_out

    async def acknowledged(self: loop.Loop, backend: Any, orders: Any) -> None:
        if orders:
            await asyncio.sleep(0.01)  # let the answers be sent
            die()
        await carry_out(self, backend, orders)

    _patch(loop.Loop, "_carry_out", acknowledged)


def _after_spawning(die: Die) -> None:
    start = shim.start_shim

    def spawned(*arguments: Any, **named: Any) -> Any:
        started = start(*arguments, **named)
        time.sleep(0.01)  # let it claim its instance and run the command
        die()
        return started

    _patch(instance, "start_shim", spawned)


def _is_end(_: object, event: object) -> bool:
    return isinstance(event, RunFinished | RunFailed | RunStopped)


def _begins_epoch(_: object, commit: store.Commit) -> bool:
    return commit.epoch is not None


POINTS: dict[str, Callable[[Die], None]] = {
    "before a commit": _before(store.Store, "commit"),
    "between two statements of a commit": _between_statements,
    "after a commit": _after(store.Store, "commit"),
    "after a commit that ends a job": _after(store.Store, "commit", lambda _, commit: bool(commit.ended)),
    "after acknowledging, before acting": _after_acknowledging,
    "before an order": _before(local_backend.LocalBackend, "carry_out"),
    "after an order": _after(local_backend.LocalBackend, "carry_out"),
    "before a process is spawned": _before(instance, "start_shim"),
    "right after a process is spawned": _after(instance, "start_shim"),
    "10 ms after a process is spawned": _after_spawning,
    "before the end of a run is recorded": _before(run_files.RunFiles, "record_end"),
    "after the end of a run is recorded": _after(run_files.RunFiles, "record_end"),
    "while stopping": _after(process_host.OwnProcesses, "signal", lambda _, __, groups, ___: bool(groups)),
    "after a run ends, before it is reported": _after(gang.Gang, "supervise"),
    "after the end of a run is reported, before it is committed": _after(inbox.Inbox, "report", _is_end),
    "before a checkpoint": _before(store.Store, "_write_checkpoint"),
    "after a checkpoint": _after(store.Store, "_write_checkpoint"),
    "before a new epoch": _before(store.Store, "commit", _begins_epoch),
    "after a new epoch": _after(store.Store, "commit", _begins_epoch),
    "before recovery": _before(daemon_parts, "recover"),
    "after recovery": _after(daemon_parts, "recover"),
    "before stray runs are killed": _before(local_backend.LocalBackend, "stop_all_except"),
    "after stray runs are killed": _after(local_backend.LocalBackend, "stop_all_except"),
    "after orders are reissued": _after(loop.Loop, "_reissue_orders"),
}

START_POINTS = {
    "before a new epoch",
    "after a new epoch",
    "before recovery",
    "after recovery",
    "before stray runs are killed",
    "after stray runs are killed",
    "after orders are reissued",
}
"""Points that a daemon reaches once, at its start."""
