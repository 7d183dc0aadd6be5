"""Values in `refold.yaml`: numbers with limits, names, sizes, paths."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

from refold.errors import BadValue
from refold.model import MAX_GPUS_PER_NODE
from refold.model.documents import Part, ReadBy, convert

AUTO = "auto"
OFF = "off"

MAX_AMOUNT = 2**20
"""Maximum number of GPUs or CPUs, or GiB of memory."""

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(i?)B?|B)?", re.ASCII)
_POWER_OF_UNIT = {"K": 1, "M": 2, "G": 3, "T": 4}


def _read_size(part: Part) -> int:
    expected = "a size such as 64MiB"
    match = _SIZE.fullmatch(part.text(expected))
    if match is None:
        raise part.unexpected(expected)
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** _POWER_OF_UNIT.get(unit or "", 0)
    if not 4096 <= size <= 2**50:
        raise part.unexpected(f"{expected}, 4KiB to 1024TiB")
    return int(size)


def _read_socket(part: Part) -> str:
    if part.value is False:  # YAML's `off`
        return OFF
    expected = "auto, off, or the absolute path of a socket"
    text = part.text(expected)
    if text not in (AUTO, OFF) and not text.startswith("/"):
        raise part.unexpected(expected)
    return text


def _read_cgroup(part: Part) -> str:
    if part.value is False:  # YAML's `off`
        return OFF
    expected = "auto, off, or the path of a cgroup such as /refold"
    text = part.text(expected)
    if text not in (AUTO, OFF) and (not text.startswith("/") or {"..", "."} & set(text.split("/"))):
        raise part.unexpected(expected)
    return text


def _read_pattern(part: Part) -> str:
    from refold.client.jobspec import Pattern

    pattern = part.text("a regular expression", maximum=512)
    try:
        Pattern(pattern)
    except BadValue as error:
        raise part.unexpected(f"a regular expression: {error}") from None
    return pattern


def _read_addresses(part: Part) -> list[str]:
    return [convert(entry, _Address) for entry in (part.entries() if isinstance(part.value, list) else [part])]


Name = Annotated[
    str, Meta(pattern=r"^[\w.-]{1,64}\Z", description="a name of up to 64 letters, digits, '.', '_' and '-'")
]
UserEntry = Annotated[
    str, Meta(pattern=r"^@?[\w.-]{1,64}\Z", description="the name of a user, or of a group such as '@lab'")
]
NodeLabel = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9.-]{1,253}/)?[\w.-]{1,63}\Z", description="a node label such as topology.kubernetes.io/zone"
    ),
]
OutputPattern = Annotated[str, ReadBy(_read_pattern)]
SocketPath = Annotated[str, ReadBy(_read_socket)]
CgroupPath = Annotated[str, ReadBy(_read_cgroup)]
Slots = Annotated[int, Meta(ge=1, le=MAX_GPUS_PER_NODE, description=f"a number of slots from 1 to {MAX_GPUS_PER_NODE}")]
GpuIndex = Annotated[int, Meta(ge=0, le=1023, description="a GPU number from 0 to 1023")]
Gpus = Annotated[float, Meta(ge=0, le=MAX_AMOUNT, description="GPUs ≥ 0")]
Percent = Annotated[float, Meta(ge=0, le=100, description="a percentage from 0 to 100")]
Size = Annotated[int, ReadBy(_read_size)]
_Address: Any = Annotated[
    str, Meta(pattern="^[a-z0-9]+://.", description="an Apprise URL such as ntfys://ntfy.sh/our-gpus")
]
_Target: Any = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]+(://[a-z0-9.*-]+)?\Z",
        description="a scheme such as slack, or one with a host such as ntfys://ntfy.sh or jsons://*.example.org",
    ),
]


def _read_targets(part: Part) -> list[str]:
    from refold.server.notify import SAFE_SCHEMES

    targets = [convert(entry, _Target) for entry in part.entries()]
    for entry, target in zip(part.entries(), targets, strict=True):
        if target.partition("://")[0] not in SAFE_SCHEMES:
            raise entry.unexpected(f"a scheme of {', '.join(sorted(SAFE_SCHEMES))}")
    return targets


AllowedTargets = Annotated[tuple[str, ...], ReadBy(_read_targets)]
Addresses = Annotated[tuple[str, ...], ReadBy(_read_addresses)]
