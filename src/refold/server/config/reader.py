"""Read `refold.yaml`. Every value is checked; errors name the line and the key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from refold.documents import Part, load_yaml, read_text
from refold.model import DAY, MAX_GPUS_PER_NODE, Tenant
from refold.server.config.rules import apply_prediction, read_policy, read_prediction, read_watch
from refold.server.config.settings import (
    ClusterConfig,
    Config,
    NotificationKind,
    NotifyConfig,
    ServeConfig,
)

Reader = Callable[[Part], Any]

MAX_NODES = 256
"""Maximum number of simulated nodes on one machine."""

MAX_NAME_CHARS = 64
MAX_TENANT_GPUS = 2**20
_NAME = re.compile(r"[\w.-]+")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(i?)B?|B)?", re.ASCII)
_POWER_OF_UNIT = {"K": 1, "M": 2, "G": 3, "T": 4}


def read_config(path: Path) -> Config:
    """Read a configuration file. Missing keys have their defaults."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, source: str) -> Config:
    """Parse the text of a configuration file; `source` names it in errors."""
    sections = load_yaml(text, source).read(SECTIONS)
    prediction: dict[str, Part] = sections.pop("prediction", {})
    config = Config(**sections)
    if prediction:
        config = msgspec.structs.replace(config, policy=apply_prediction(config.policy, prediction))
    return config


# Values.


def _name(part: Part) -> str:
    return _checked_name(part, part.text("a name"))


def _checked_name(part: Part, name: str) -> str:
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise part.error(
            f"{name[:MAX_NAME_CHARS]!r} is not a valid name: use up to 64 letters, digits, '.', '_' and '-'"
        )
    return name


def _gpu_amount(part: Part) -> float:
    return part.number("GPUs ≥ 0", maximum=MAX_TENANT_GPUS)


def _slots(part: Part) -> int:
    return part.integer(f"slots, 1 to {MAX_GPUS_PER_NODE}", 1, MAX_GPUS_PER_NODE)


def _gpus(part: Part) -> Any:
    if part.value == "auto":
        return "auto"
    entries = part.entries("auto, or GPU numbers such as [0, 1]")
    numbers = tuple(entry.integer("a GPU number, 0 to 1023", maximum=1023) for entry in entries)
    if not numbers or len(set(numbers)) < len(numbers):
        raise part.error("expected at least one GPU, each once")
    return numbers


def _nodes(part: Part) -> dict[str, int]:
    nodes = part.fields(expected="nodes and their slots, such as {a: 4, b: 4}")
    if not 0 < len(nodes) <= MAX_NODES:
        raise part.error(f"has {len(nodes):,} nodes, expected 1 to {MAX_NODES}")
    return {_checked_name(slots, name): _slots(slots) for name, slots in nodes.items()}


def _size(part: Part) -> int:
    expected = "a size such as 64MiB"
    match = _SIZE.fullmatch(part.text(expected))
    if match is None:
        raise part.unexpected(expected)
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** _POWER_OF_UNIT.get(unit or "", 0)
    if not 4096 <= size <= 2**50:
        raise part.unexpected(f"{expected}, 4KiB to 1024TiB")
    return int(size)


def _addresses(part: Part) -> tuple[str, ...]:
    parts = part.entries() if isinstance(part.value, list) else [part]
    return tuple(_address(entry) for entry in parts)


def _address(part: Part) -> str:
    address = part.text("an Apprise URL such as ntfys://ntfy.sh/our-gpus")
    if not re.match(r"[a-z0-9]+://.", address):
        raise part.unexpected("an Apprise URL such as ntfys://ntfy.sh/our-gpus")
    return address


def _kinds(part: Part) -> tuple[str, ...]:
    return tuple(entry.one_of(get_args(NotificationKind)) for entry in part.entries("a list of message kinds"))


def _names(part: Part) -> tuple[str, ...]:
    return tuple(map(_name, part.entries("a list of host names such as [gpus.lab]")))


def _port(part: Part) -> int:
    return part.integer("a port, 0 to 65535 (0: any free port)", 0, 65535)


# Sections.


def _cluster(part: Part) -> ClusterConfig:
    config = ClusterConfig(**part.read(CLUSTER))
    keys = [key for key in ("gpus", "slots", "nodes") if key in part.fields() and part.fields()[key].value is not None]
    if len(keys) > 1:
        raise part.error(f"{' and '.join(keys)} are mutually exclusive")
    return config


def _tenants(part: Part) -> tuple[Tenant, ...]:
    tenants = part.fields(expected="tenants and their limits")
    return tuple(_tenant(name, tenant) for name, tenant in tenants.items())


def _tenant(name: str, part: Part) -> Tenant:
    tenant = Tenant(name=_checked_name(part, name), **part.read(TENANT))
    if 0 < tenant.limit_gpus < tenant.quota_gpus:
        raise part.fields()["limit_gpus"].unexpected(f"at least quota_gpus, {tenant.quota_gpus:g} (0: no limit)")
    return tenant


def _users(part: Part) -> dict[str, tuple[str, ...]]:
    users = part.fields(expected="users and their addresses")
    return {_checked_name(addresses, name): _addresses(addresses) for name, addresses in users.items()}


def _notify(part: Part) -> NotifyConfig:
    return NotifyConfig(**part.read(NOTIFY))


def _serve(part: Part) -> ServeConfig:
    return ServeConfig(**part.read(SERVE))


CLUSTER: dict[str, Reader] = {
    "name": _name,
    "gpus": _gpus,
    "slots": _slots,
    "nodes": _nodes,
    "cpus": lambda part: part.number("CPUs ≥ 0", maximum=2**20),
    "memory_gib": lambda part: part.number("GiB ≥ 0", maximum=2**20),
}
TENANT: dict[str, Reader] = {"quota_gpus": _gpu_amount, "limit_gpus": _gpu_amount}
NOTIFY: dict[str, Reader] = {
    "urls": lambda part: part.read(dict.fromkeys(get_args(NotificationKind), _addresses)),
    "users": _users,
    "kinds": _kinds,
    "waiting_long_after": Part.positive_duration,
}
SERVE: dict[str, Reader] = {
    "host": lambda part: part.text("a listen address", maximum=255),
    "port": _port,
    "allowed_hosts": _names,
    "grace": lambda part: part.duration(maximum=DAY),
    "max_output": _size,
    "keep_logs_for": Part.positive_duration,
}
SECTIONS: dict[str, Reader] = {
    "cluster": _cluster,
    "tenants": _tenants,
    "policy": read_policy,
    "prediction": read_prediction,
    "watch": read_watch,
    "notify": _notify,
    "serve": _serve,
}
"""The sections of the file and their readers."""
