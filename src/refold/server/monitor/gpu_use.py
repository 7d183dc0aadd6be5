"""GPUs that others use: another daemon of this machine, or processes that no daemon has started."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from refold.core import Event, GpuDrained, GpuReturned
from refold.errors import BadInput
from refold.server import GpuLocks, LockHolder
from refold.server.config import AUTO, Config
from refold.server.monitor.machine import GpuPosition, Layout
from refold.server.monitor.nvidia import GpuReading

REASON = "in use by "
"""How the reasons of drained GPUs begin that are returned as soon as nobody else uses them."""

MIN_POLLS = 2
"""How often in a row processes must be seen on a free GPU: those of a run that has ended may be listed for a moment."""

SERVICE_PROCESSES = ("nvidia-cuda-mps-server",)
"""Processes on GPUs that do not use them for themselves."""


def describe_process(pid: int, uid: int | None = None) -> str:
    """Return 'process 17 (python) of user ann', as far as that is known."""
    program = ""
    with suppress(OSError):
        program = f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    with suppress(OSError):
        uid = Path(f"/proc/{pid}").stat().st_uid if uid is None else uid
    if uid is None or uid < 0:
        return f"process {pid}{program}"
    try:
        return f"process {pid}{program} of user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"process {pid}{program} of uid {uid}"


class GpuUseWatch:
    """Tries to lock all GPUs of the layout, and looks for processes on GPUs that no run holds.

    `reasons`: who uses GPUs, by position, as of the last check.
    """

    def __init__(
        self, layout: Layout, config: Config, locks: GpuLocks, describe: Callable[[int], str] = describe_process
    ) -> None:
        self._uuids = {
            (node, gpu): uuid for node, uuids in enumerate(layout.devices or ()) for gpu, uuid in enumerate(uuids)
        }
        self._index_of = {position: index for index, position in enumerate(layout.positions) if position is not None}
        self._rule = config.watch.used_gpus
        self._takes_all = config.cluster.gpus == AUTO
        self._locks = locks
        self._describe = describe
        self._seen: dict[GpuPosition, int] = {}
        self.reasons: dict[GpuPosition, str] = {}

    def claim(self) -> None:
        """Lock the GPUs at the start. Raises if none is free, or if one is not that the configuration lists."""
        held = self._held_by_others()
        if held and (len(held) == len(self._uuids) or not self._takes_all):
            self._locks.close()
            (node, gpu), reason = next(iter(held.items()))
            raise BadInput(f"GPU {self._index_of.get((node, gpu), gpu)} is {reason}; stop that one, or use other GPUs")

    def check(
        self, readings: Mapping[int, GpuReading], busy: Collection[GpuPosition], down: Mapping[GpuPosition, str]
    ) -> list[Event]:
        """Find out who uses the GPUs; return what to drain, and what to return to service.

        `busy`: GPUs of our runs, whose processes are taken for those of the runs. `down`: GPUs that are down, with
        reasons.
        """
        held, foreign = self._held_by_others(), {}
        for position, index in self._index_of.items() if self._rule != "off" else ():
            reading = readings.get(index)
            processes = [] if reading is None else self._users(reading.processes or ())
            is_used = bool(processes) and position not in busy and position not in held
            self._seen[position] = self._seen.get(position, 0) + 1 if is_used else 0
            was_used = down.get(position, "").startswith(REASON)
            if self._seen[position] >= (1 if was_used else MIN_POLLS):
                foreign[position] = REASON + processes[0]
        self.reasons = {**foreign, **held}
        avoided = self.reasons if self._rule == "avoid" else held
        drained: list[Event] = [GpuDrained(*gpu, why) for gpu, why in avoided.items() if gpu not in down]
        returned = [GpuReturned(*gpu) for gpu, why in down.items() if why.startswith(REASON) and gpu not in avoided]
        return [*drained, *returned]

    def close(self) -> None:
        self._locks.close()

    def _held_by_others(self) -> dict[GpuPosition, str]:
        holders = {position: self._locks.acquire(uuid) for position, uuid in self._uuids.items()}
        return {position: _describe_holder(holder) for position, holder in holders.items() if holder is not None}

    def _users(self, pids: Sequence[int]) -> list[str]:
        described = [self._describe(pid) for pid in pids if pid != os.getpid()]
        return [text for text in described if not any(f"({name[:15]})" in text for name in SERVICE_PROCESSES)]


def _describe_holder(holder: LockHolder) -> str:
    return f"{REASON}another daemon" + (f", {describe_process(holder.pid, holder.uid)}" if holder.pid else "")
