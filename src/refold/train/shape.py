"""A plan and the GPUs of its ranks on one machine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.model import ChangeRequest, Plan


class AgentRanks(msgspec.Struct, frozen=True):
    """The ranks of this agent among those of all instances of the run."""

    first_rank: int = 0
    instances: int = 1


SINGLE = AgentRanks()


class Shape(msgspec.Struct, frozen=True):
    """A plan, and the GPUs by local rank (None: as the environment says)."""

    plan: Plan
    devices: tuple[str, ...] | None = None

    def device_of(self, local_rank: int) -> str | None:
        """Return the GPU of a rank."""
        return self.devices[local_rank] if self.devices and local_rank < len(self.devices) else None

    def visible_devices(self) -> str | None:
        """Return the value of CUDA_VISIBLE_DEVICES."""
        return ",".join(self.devices) if self.devices else None


def make_shape(plan: Plan, visible_devices: str | None) -> Shape:
    """Return the shape of a run by its plan and its CUDA_VISIBLE_DEVICES."""
    return Shape(plan, tuple(visible_devices.split(",")) if visible_devices else None)


def shape_after(shape: Shape, request: ChangeRequest, used: Sequence[str | None]) -> tuple[Shape, bool]:
    """Return the shape that a request asks for, and whether the processes that would stay can.

    `used`: the GPUs of those processes, by rank. They keep them; if they must give one up, no process can stay.
    """
    asked = make_shape(request.plan, request.devices)
    devices = asked.devices if request.devices is not None else shape.devices
    if request.way == "warm" or (devices is not None and not set(used) <= set(devices)):
        return Shape(request.plan, devices), False
    if devices is not None:
        devices = (*filter(None, used), *(device for device in devices if device not in used))
    return Shape(request.plan, devices), True
