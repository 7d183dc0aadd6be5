"""The settings of a run, which the back end passes in environment variables. No PyTorch."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from refold.errors import BadInput
from refold.model import ChangeRequest, Plan, Seconds

CHANGE_VARIABLE = "REFOLD_CHANGE"
SECRET_VARIABLE = "REFOLD_RUN_SECRET"
"""What the instances of a run know, and nobody else: with it they form a group that survives failures."""

LOOPBACK_ADDRESS = "127.0.0.1"

DEFAULT_GRACE: Seconds = 30.0


class RunSettings(msgspec.Struct, frozen=True):
    """What an agent reads from its environment."""

    plan: Plan
    gang: AgentRanks
    address: str
    port: int | None
    grace: Seconds
    stop_signal: int
    devices: str | None
    progress: Path | None
    change: Path | None
    instance: int
    slots: int
    secret: str | None
    hang_seconds: Seconds | None

    @property
    def forms_group(self) -> bool:
        """Whether the agents of several instances train together, and survive failures."""
        return self.secret is not None and self.gang.instances > 1

    @property
    def has_channels(self) -> bool:
        """Whether ranks are told what to do; else they meet at an address, and follow the stop signal themselves."""
        return self.gang.instances == 1 or self.forms_group


def read_settings(environment: Mapping[str, str], plan: Plan | None = None) -> RunSettings:
    """Read the settings of a run from its environment; `plan` overrides the one found there."""
    slots = [slot for slot in environment.get("REFOLD_SLOTS", "").split(",") if slot]
    instances = _integer(environment, "REFOLD_INSTANCES", at_least=1, default="1")
    plan = plan or read_plan(environment) or Plan(data=max(1, len(slots)) * instances)
    local, rest = divmod(plan.gpus, instances)
    secret = environment.get(SECRET_VARIABLE) or None
    if secret is None and (rest or (instances > 1 and slots and len(slots) != local)):
        raise BadInput(
            f"plan {plan} needs {plan.gpus} ranks on {instances} instances, of which this one has {len(slots)} GPUs; "
            "every instance must have the same number"
        )
    is_gang = instances > 1
    progress, change = environment.get("REFOLD_PROGRESS"), environment.get(CHANGE_VARIABLE)
    return RunSettings(
        plan=plan,
        gang=AgentRanks(_integer(environment, "REFOLD_INSTANCE", default="0") * local, instances),
        address=environment.get("MASTER_ADDR", LOOPBACK_ADDRESS) if is_gang else LOOPBACK_ADDRESS,
        port=_integer(environment, "MASTER_PORT", at_least=1) if is_gang else None,
        grace=_read_seconds(environment, "REFOLD_GRACE", DEFAULT_GRACE) or 0.0,
        stop_signal=_read_signal(environment),
        devices=environment.get("CUDA_VISIBLE_DEVICES"),
        progress=Path(progress) if progress else None,
        change=Path(change) if change else None,
        instance=_integer(environment, "REFOLD_INSTANCE", default="0"),
        slots=len(slots) or max(1, -(-plan.gpus // instances)),
        secret=secret,
        hang_seconds=_read_seconds(environment, "REFOLD_HANG_SECONDS", None),
    )


def read_plan(environment: Mapping[str, str]) -> Plan | None:
    """Read the plan of a run from its environment."""
    text = environment.get("REFOLD_PLAN")
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.DecodeError as error:
        raise BadInput(f"REFOLD_PLAN is {text!r}, expected a plan as JSON: {error}") from None


def _integer(environment: Mapping[str, str], name: str, *, at_least: int = 0, default: str = "") -> int:
    text = environment.get(name, default)
    if not text.isdecimal() or int(text) < at_least:
        raise BadInput(f"{name} is {text!r}, expected a whole number ≥ {at_least}")
    return int(text)


def _read_seconds(environment: Mapping[str, str], name: str, default: Seconds | None) -> Seconds | None:
    text = environment.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}, expected a number of seconds") from None


def _read_signal(environment: Mapping[str, str]) -> signal.Signals:
    name = environment.get("REFOLD_STOP_SIGNAL", "TERM")
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise BadInput(f"REFOLD_STOP_SIGNAL is {name!r}, expected the name of a signal, such as TERM") from None


# A plan and the GPUs of its ranks on one machine.


class AgentRanks(msgspec.Struct, frozen=True):
    """The ranks of this agent among those of all instances of the run."""

    first_rank: int = 0
    instances: int = 1


SINGLE = AgentRanks()


class Place(NamedTuple):
    """Where a rank runs, if there are several hosts: its instance, and its number among the ranks there."""

    host: int = 0
    local_rank: int = 0
    local_ranks: int = 0


class HostSlots(msgspec.Struct, frozen=True):
    """A host of a run: how many ranks it can have, where new groups can meet, and where its agent serves copies.

    `since`: the view of the membership in which it has joined. `devices`: CUDA_VISIBLE_DEVICES of its ranks (None: as
    its agent has it).
    """

    instance: int
    since: int
    slots: int
    address: str
    meeting_port: int
    port: int
    devices: str | None = None


class Shape(msgspec.Struct, frozen=True):
    """A plan, and the GPUs by local rank (None: as the environment says); or the hosts.

    `places`: where ranks run, by number; without them, the hosts are filled in order.
    """

    plan: Plan
    devices: tuple[str, ...] | None = None
    hosts: tuple[HostSlots, ...] = ()
    places: tuple[Place, ...] = ()

    def place_of(self, rank: int) -> Place:
        """Return where a rank runs."""
        if self.places:
            return self.places[rank]
        first = 0
        for host in self.hosts:
            if rank < first + host.slots:
                return Place(host.instance, rank - first, min(host.slots, self.plan.gpus - first))
            first += host.slots
        return Place()

    def device_of(self, local_rank: int) -> str | None:
        """Return the GPU of a rank."""
        return self.devices[local_rank] if self.devices and local_rank < len(self.devices) else None

    def visible_devices(self, rank: int) -> str | None:
        """Return the value of CUDA_VISIBLE_DEVICES of a rank."""
        if self.hosts:
            return next(host.devices for host in self.hosts if host.instance == self.place_of(rank).host)
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
