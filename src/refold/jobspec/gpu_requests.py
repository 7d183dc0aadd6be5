"""GPU requests: number, types, nodes and ranges, in the notations of job files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from refold.api import MAX_JOB_GPUS
from refold.documents import Part
from refold.errors import BadValue

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


NO_GPU_REQUEST = GpuRequest()


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


@dataclass(frozen=True, slots=True)
class RequestedSize:
    """Nodes, GPUs per node, share of each GPU, and the range of GPUs in total that an elastic job accepts."""

    nodes: int = 1
    gpus: int = 1
    share: float = 1.0
    range: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """GPUs in total; a fraction of a GPU counts as one."""
        return self.nodes * self.gpus


def read_size(
    parts: Mapping[str, Part], implied: tuple[Part, int] | None = None
) -> tuple[RequestedSize, tuple[str, ...]]:
    """Combine the size fields of a job, and return its size and the acceptable GPU types.

    `gpus` is the total number, `gpus_per_node` and `resources.accelerators` are per node. Of a range, the minimum is
    requested. `implied`: the total number if no field gives one, and the part of the file that implies it.
    """
    accelerators, gpus = (
        read_gpu_request(parts[key]) if key in parts else NO_GPU_REQUEST for key in ("resources.accelerators", "gpus")
    )
    _reject_conflicts(parts, accelerators, gpus)
    nodes = parts["num_nodes"].integer("a whole number ≥ 1", 1, MAX_JOB_GPUS) if "num_nodes" in parts else 0
    per_node = (
        parts["gpus_per_node"].integer("a whole number ≥ 0", 0, MAX_JOB_GPUS) if "gpus_per_node" in parts else None
    )
    if accelerators.has_count:
        size = _size_per_node(max(nodes, 1), accelerators)
    elif gpus.has_count:
        size = _size_in_total(parts["gpus"], gpus, nodes, per_node)
    elif per_node is not None or implied is None:
        size = RequestedSize(max(nodes, 1), 1 if per_node is None else per_node)
    else:
        size = _size_in_total(implied[0], GpuRequest((), True, implied[1], implied[1]), nodes, None)
    if "elastic" in parts:
        size = _elastic(parts["elastic"], size, size.range is not None)
    return size, accelerators.types + gpus.types


def _reject_conflicts(parts: Mapping[str, Part], accelerators: GpuRequest, gpus: GpuRequest) -> None:
    if accelerators.has_count and gpus.has_count:
        raise parts["gpus"].error("conflicts with resources.accelerators, expected the number of GPUs only once")
    if accelerators.has_count and "gpus_per_node" in parts:
        raise parts["gpus_per_node"].error("conflicts with resources.accelerators, expected only one of them")
    if accelerators.types and gpus.types:
        raise parts["gpus"].error("conflicts with resources.accelerators, expected the GPU type only once")


def _size_per_node(nodes: int, request: GpuRequest) -> RequestedSize:
    elastic_range = (nodes * request.minimum, nodes * request.maximum) if request.minimum < request.maximum else None
    return RequestedSize(nodes, request.minimum, request.share, elastic_range)


def _size_in_total(part: Part, request: GpuRequest, nodes: int, per_node: int | None) -> RequestedSize:
    if request.share < 1:
        if per_node is not None:
            raise part.error("gpus_per_node requires whole GPUs")
        return RequestedSize(max(nodes, 1), 1, request.share)
    if not nodes:
        nodes = request.minimum // per_node if per_node else 1
    gpus = request.minimum // max(nodes, 1)
    if gpus * nodes != request.minimum or per_node not in (None, gpus):
        each = f" with {per_node} each" if per_node is not None else ""
        raise part.unexpected(f"a total number of GPUs that is divisible among {max(nodes, 1)} nodes{each}")
    return RequestedSize(
        nodes, gpus, 1.0, (request.minimum, request.maximum) if request.minimum < request.maximum else None
    )


def _elastic(part: Part, size: RequestedSize, ranged: bool) -> RequestedSize:
    bounds = part.fields(("min", "max"), "min and max, such as {min: 2, max: 8}")
    if ranged:
        raise part.error("conflicts with the range in gpus, expected only one of them")
    minimum, maximum = (
        bounds[bound].integer("a total number of GPUs ≥ 1", 1, MAX_JOB_GPUS) if bound in bounds else size.total
        for bound in ("min", "max")
    )
    if not minimum <= size.total <= maximum or size.share < 1 or not size.gpus:
        raise part.error(
            f"is {minimum} to {maximum}, expected whole GPUs and a range that includes {size.total * size.share:g}"
        )
    return replace(size, range=(minimum, maximum))
