"""GPU requests: number, types and ranges, in the notations of job files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from refold.client.api import MAX_JOB_GPUS
from refold.errors import BadValue
from refold.model.documents import Part

EXPECTED_GPUS = "a number such as 8, a fraction of one GPU such as 0.5, a range such as 2..8, or with a type: H100:8"

_COUNT = re.compile(
    r"(?P<count>\d{1,9})(?:\.0*)?|(?P<share>0?\.\d{1,9})|(?P<from>\d{1,9})\.\.(?P<to>\d{1,9})", re.ASCII
)
_TYPE = re.compile(r"[A-Za-z][\w .+-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A request for GPUs: acceptable types (empty: any), minimum and maximum number, and the share of each.

    `has_count`: the number was given; otherwise minimum and maximum are 0.
    """

    types: tuple[str, ...] = ()
    has_count: bool = False
    minimum: int = 0
    maximum: int = 0
    share: float = 1.0


NO_GPU_REQUEST: GpuRequest = GpuRequest()


def parse_gpu_request(text: str) -> GpuRequest:
    """Parse '8', '0.5', '2..8', 'H100', 'H100:8' and so on."""
    gpu_type, colon, count = text.strip().rpartition(":")
    if not colon and not _COUNT.fullmatch(count):
        gpu_type, count = count, ""
    match = _COUNT.fullmatch(count)
    if (
        (count and not match)
        or (gpu_type and not _TYPE.fullmatch(gpu_type))
        or not (gpu_type or match)
        or text.strip()[-1] == ":"
    ):
        raise BadValue(f"gpus is {text[:64]!r}, expected {EXPECTED_GPUS}")
    types = (gpu_type,) if gpu_type else ()
    if match is None:
        return GpuRequest(types)
    if match["share"]:
        share = float(match["share"])
        if share < 0.001:
            raise BadValue(f"gpus is {text!r}, expected at least 0.001")
        return GpuRequest(types, True, 1, 1, share)
    minimum = int(match["count"] or match["from"])
    maximum = int(match["to"] or minimum)
    if not minimum <= maximum <= MAX_JOB_GPUS or (match["to"] and not minimum):
        raise BadValue(f"gpus is {text!r}, expected a range in ascending order, up to {MAX_JOB_GPUS:,}")
    return GpuRequest(types, True, minimum, maximum)


def read_gpu_request(part: Part) -> GpuRequest:
    """Read a GPU request: text, a number, [minimum, maximum], a list of types, or a mapping of types to numbers."""
    match part.value:
        case dict():
            alternatives = [
                (inner, key if inner.value is None else f"{key}:{inner.written}") for key, inner in part.value.items()
            ]
            return _any_of(part, alternatives)
        case list() if [type(inner.value) for inner in part.value] == [int, int]:
            return _read(part, "..".join(inner.written for inner in part.value))
        case list():
            return _any_of(part, [(inner, inner.text(EXPECTED_GPUS)) for inner in part.value])
        case bool() | None:
            raise part.unexpected(EXPECTED_GPUS)
    return _read(part, part.written)


def _read(part: Part, text: str) -> GpuRequest:
    try:
        return parse_gpu_request(text)
    except BadValue:
        raise part.unexpected(EXPECTED_GPUS) from None


def _any_of(part: Part, alternatives: list[tuple[Part, str]]) -> GpuRequest:
    """Combine alternative GPU types into one request. The number of GPUs has to be the same for all types."""
    requests = [(inner, _read(inner, text)) for inner, text in alternatives]
    if not requests or not all(request.types for _, request in requests):
        raise part.unexpected("GPU types such as {H100: 8, A100: 8}")
    first = replace(requests[0][1], types=())
    for inner, request in requests:
        if replace(request, types=()) != first:
            raise inner.unexpected("the same number of GPUs for every type")
    return replace(first, types=tuple(request.types[0] for _, request in requests))
