"""Reading `refold.yaml`: every value is checked, and what is wrong is told with its line and its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from refold.documents import Part, load, read_text
from refold.model import DAY, MAX_GPUS_PER_NODE, Tenant
from refold.server.config.rules import policy_from, prediction_from, watch_from, with_prediction
from refold.server.config.settings import (
    ClusterChoice,
    Config,
    Kind,
    NotifyChoice,
    ServeChoice,
)

Reader = Callable[[Part], Any]

MOST_NODES = 256
"""That one machine pretends to be."""

LONGEST_NAME = 64
MOST_GPUS = 2**20
_NAME = re.compile(r"[\w.-]+")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(i?)B?|B)?", re.ASCII)
_POWER_OF_UNIT = {"K": 1, "M": 2, "G": 3, "T": 4}


def read_config(path: Path) -> Config:
    """What a file says; what it does not say is as usual."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, where: str) -> Config:
    """The same for a text; `where` is how errors call it."""
    given = load(text, where).read(SECTIONS)
    prediction: dict[str, Part] = given.pop("prediction", {})
    config = Config(**given)
    if prediction:
        config = msgspec.structs.replace(config, policy=with_prediction(config.policy, prediction))
    return config


# Values.


def _name(part: Part) -> str:
    return _checked_name(part, part.text("a name"))


def _checked_name(part: Part, name: str) -> str:
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise part.refused(f"{name[:LONGEST_NAME]!r} is not a name: letters, digits, '.', '_' and '-', at most 64")
    return name


def _gpu_amount(part: Part) -> float:
    return part.number("GPUs ≥ 0", most=MOST_GPUS)


def _slots(part: Part) -> int:
    return part.whole(f"slots, 1 to {MAX_GPUS_PER_NODE}", 1, MAX_GPUS_PER_NODE)


def _gpus(part: Part) -> Any:
    if part.value == "auto":
        return "auto"
    entries = part.entries("auto, or numbers of GPUs such as [0, 1]")
    numbers = tuple(entry.whole("the number of a GPU, from 0 on", most=1023) for entry in entries)
    if not numbers or len(set(numbers)) < len(numbers):
        raise part.refused("expected each GPU once, and at least one")
    return numbers


def _nodes(part: Part) -> dict[str, int]:
    nodes = part.fields(expected="nodes and their slots, such as {a: 4, b: 4}")
    if not 0 < len(nodes) <= MOST_NODES:
        raise part.refused(f"has {len(nodes):,} nodes, expected 1 to {MOST_NODES}")
    return {_checked_name(slots, name): _slots(slots) for name, slots in nodes.items()}


def _bytes(part: Part) -> int:
    expected = "a size such as 64MiB"
    found = _SIZE.fullmatch(part.text(expected))
    if found is None:
        raise part.wrong(expected)
    number, unit, binary = found.groups()
    size = float(number) * (1024 if binary else 1000) ** _POWER_OF_UNIT.get(unit or "", 0)
    if not 4096 <= size <= 2**50:
        raise part.wrong(f"{expected}, of 4KiB to 1024TiB")
    return int(size)


def _addresses(part: Part) -> tuple[str, ...]:
    parts = part.entries() if isinstance(part.value, list) else [part]
    return tuple(_address(one) for one in parts)


def _address(part: Part) -> str:
    address = part.text("an address as apprise writes it, such as ntfys://ntfy.sh/our-gpus")
    if not re.match(r"[a-z0-9]+://.", address):
        raise part.wrong("an address as apprise writes it, such as ntfys://ntfy.sh/our-gpus")
    return address


def _kinds(part: Part) -> tuple[str, ...]:
    return tuple(entry.one_of(get_args(Kind)) for entry in part.entries("a list of kinds of messages"))


def _names(part: Part) -> tuple[str, ...]:
    return tuple(map(_name, part.entries("a list of names, such as [gpus.lab]")))


def _port(part: Part) -> int:
    return part.whole("a port, 0 to 65535 (0: any that is free)", 0, 65535)


# Sections.


def _cluster(part: Part) -> ClusterChoice:
    choice = ClusterChoice(**part.read(CLUSTER))
    said = [key for key in ("gpus", "slots", "nodes") if key in part.fields() and part.fields()[key].value is not None]
    if len(said) > 1:
        raise part.refused(f"{' and '.join(said)} exclude each other: GPUs that are found, or what stands in for them")
    return choice


def _tenants(part: Part) -> tuple[Tenant, ...]:
    tenants = part.fields(expected="tenants and what they may use")
    return tuple(_tenant(name, tenant) for name, tenant in tenants.items())


def _tenant(name: str, part: Part) -> Tenant:
    tenant = Tenant(name=_checked_name(part, name), **part.read(TENANT))
    if 0 < tenant.limit_gpus < tenant.quota_gpus:
        raise part.fields()["limit_gpus"].wrong(f"at least its quota_gpus, {tenant.quota_gpus:g} (0: no limit)")
    return tenant


def _users(part: Part) -> dict[str, tuple[str, ...]]:
    users = part.fields(expected="users and their addresses")
    return {_checked_name(addresses, name): _addresses(addresses) for name, addresses in users.items()}


def _notify(part: Part) -> NotifyChoice:
    return NotifyChoice(**part.read(NOTIFY))


def _serve(part: Part) -> ServeChoice:
    return ServeChoice(**part.read(SERVE))


CLUSTER: dict[str, Reader] = {
    "name": _name,
    "gpus": _gpus,
    "slots": _slots,
    "nodes": _nodes,
    "cpus": lambda part: part.number("CPUs ≥ 0", most=2**20),
    "memory_gib": lambda part: part.number("GiB ≥ 0", most=2**20),
}
TENANT: dict[str, Reader] = {"quota_gpus": _gpu_amount, "limit_gpus": _gpu_amount}
NOTIFY: dict[str, Reader] = {
    "urls": lambda part: part.read(dict.fromkeys(get_args(Kind), _addresses)),
    "users": _users,
    "tell": _kinds,
    "waiting_long_after": Part.distribution,
}
SERVE: dict[str, Reader] = {
    "host": lambda part: part.text("an address to listen on", most=255),
    "port": _port,
    "names": _names,
    "grace": lambda part: part.seconds(most=DAY),
    "most_output": _bytes,
    "keep_logs_for": Part.distribution,
}
SECTIONS: dict[str, Reader] = {
    "cluster": _cluster,
    "tenants": _tenants,
    "policy": policy_from,
    "prediction": prediction_from,
    "watch": watch_from,
    "notify": _notify,
    "serve": _serve,
}
"""Every key of the file, and how it is read."""
