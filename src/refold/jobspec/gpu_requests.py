"""How many GPUs, of which kinds, on how many nodes: the ways to say it, and what they mean together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from refold.api import MOST_GPUS
from refold.documents import Part
from refold.errors import BadValue

GPUS = "a number such as 8, a part of one GPU such as 0.5, a range such as 2..8, or one of these after a kind: H100:8"

_COUNT = re.compile(
    r"(?P<least>\d{1,9})(?:\.0*)?|(?P<share>0?\.\d{1,9})|(?P<from>\d{1,9})\.\.(?P<to>\d{1,9})", re.ASCII
)
_KIND = re.compile(r"[A-Za-z][\w .+-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs that somebody wants: kinds that will do (none: any), the fewest and the most (0: not said), the part of one.

    `counted`: it was said how many.
    """

    kinds: tuple[str, ...] = ()
    counted: bool = False
    least: int = 0
    most: int = 0
    share: float = 1.0


UNSAID = GpuRequest()


def wanted_from_text(text: str) -> GpuRequest:
    """'8', '0.5', '2..8', 'H100', 'H100:8' and so on."""
    kind, colon, count = text.strip().rpartition(":")
    if not colon and not _COUNT.fullmatch(count):
        kind, count = count, ""
    found = _COUNT.fullmatch(count)
    if (count and not found) or (kind and not _KIND.fullmatch(kind)) or not (kind or found) or text.strip()[-1] == ":":
        raise BadValue(f"gpus is {text[:64]!r}, expected {GPUS}")
    kinds = (kind,) if kind else ()
    if found is None:
        return GpuRequest(kinds)
    if found["share"]:
        share = float(found["share"])
        if share < 0.001:
            raise BadValue(f"gpus is {text!r}, expected a thousandth of a GPU or more")
        return GpuRequest(kinds, True, 1, 1, share)
    least = int(found["least"] or found["from"])
    most = int(found["to"] or least)
    if not least <= most <= MOST_GPUS or (found["to"] and not least):
        raise BadValue(f"gpus is {text!r}, expected at most {MOST_GPUS:,}, the fewest first")
    return GpuRequest(kinds, True, least, most)


def wanted_at(part: Part) -> GpuRequest:
    """The GPUs that a part says: text, a number, [fewest, most], a list of kinds, or kinds and their numbers."""
    match part.value:
        case dict():
            said = [
                (inner, key if inner.value is None else f"{key}:{inner.written}") for key, inner in part.value.items()
            ]
            return _any_of(part, said)
        case list() if [type(inner.value) for inner in part.value] == [int, int]:
            return _read(part, "..".join(inner.written for inner in part.value))
        case list():
            return _any_of(part, [(inner, inner.text(GPUS)) for inner in part.value])
        case bool() | None:
            raise part.wrong(GPUS)
    return _read(part, part.written)


def _read(part: Part, text: str) -> GpuRequest:
    try:
        return wanted_from_text(text)
    except BadValue:
        raise part.wrong(GPUS) from None


def _any_of(part: Part, said: list[tuple[Part, str]]) -> GpuRequest:
    """Kinds of which any will do. How many GPUs a job asks for does not depend on the kind that it gets."""
    each = [(inner, _read(inner, text)) for inner, text in said]
    if not each or not all(wanted.kinds for _, wanted in each):
        raise part.wrong("kinds of GPUs, such as {H100: 8, A100: 8}")
    first = replace(each[0][1], kinds=())
    for inner, wanted in each:
        if replace(wanted, kinds=()) != first:
            raise inner.wrong("as many GPUs of each kind: a job asks for the same number of any of them")
    return replace(first, kinds=tuple(wanted.kinds[0] for _, wanted in each))


@dataclass(frozen=True, slots=True)
class RequestedSize:
    """So many nodes, so many GPUs of each (or a part of one), and how few and how many in all it could do with."""

    nodes: int = 1
    gpus: int = 1
    share: float = 1.0
    range: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """GPUs in all, a part of one counted whole."""
        return self.nodes * self.gpus


def size_of(said: Mapping[str, Part], unsaid: tuple[Part, int] | None = None) -> tuple[RequestedSize, tuple[str, ...]]:
    """What the parts of a job say together of its size, and the kinds of GPUs that will do.

    `gpus` counts GPUs in all, `gpus_per_node` and `resources.accelerators` those of a node. Whoever asks for a range
    asks for its fewest. `unsaid`: as many in all where nobody says it, and who would be wrong if that cannot be.
    """
    accelerators, gpus = (wanted_at(said[key]) if key in said else UNSAID for key in ("resources.accelerators", "gpus"))
    _refuse_both(said, accelerators, gpus)
    nodes = said["num_nodes"].whole("a whole number ≥ 1", 1, MOST_GPUS) if "num_nodes" in said else 0
    each = said["gpus_per_node"].whole("a whole number ≥ 0", 0, MOST_GPUS) if "gpus_per_node" in said else None
    if accelerators.counted:
        size = _of_nodes(max(nodes, 1), accelerators)
    elif gpus.counted:
        size = _in_all(said["gpus"], gpus, nodes, each)
    elif each is not None or unsaid is None:
        size = RequestedSize(max(nodes, 1), 1 if each is None else each)
    else:
        size = _in_all(unsaid[0], GpuRequest((), True, unsaid[1], unsaid[1]), nodes, None)
    if "elastic" in said:
        size = _elastic(said["elastic"], size, size.range is not None)
    return size, accelerators.kinds + gpus.kinds


def _refuse_both(said: Mapping[str, Part], accelerators: GpuRequest, gpus: GpuRequest) -> None:
    if accelerators.counted and gpus.counted:
        raise said["gpus"].refused("resources.accelerators says how many GPUs as well, expected one of the two")
    if accelerators.counted and "gpus_per_node" in said:
        raise said["gpus_per_node"].refused("resources.accelerators says it as well, expected one of the two")
    if accelerators.kinds and gpus.kinds:
        raise said["gpus"].refused("resources.accelerators says the kind of GPU as well, expected one of the two")


def _of_nodes(nodes: int, wanted: GpuRequest) -> RequestedSize:
    open_range = (nodes * wanted.least, nodes * wanted.most) if wanted.least < wanted.most else None
    return RequestedSize(nodes, wanted.least, wanted.share, open_range)


def _in_all(part: Part, wanted: GpuRequest, nodes: int, each: int | None) -> RequestedSize:
    if wanted.share < 1:
        if each is not None:
            raise part.refused("gpus_per_node is for whole GPUs")
        return RequestedSize(max(nodes, 1), 1, wanted.share)
    if not nodes:
        nodes = wanted.least // each if each else 1
    gpus = wanted.least // max(nodes, 1)
    if gpus * nodes != wanted.least or each not in (None, gpus):
        on = f" with {each} each" if each is not None else ""
        raise part.wrong(f"GPUs in all that {max(nodes, 1)} nodes{on} have equally many of")
    return RequestedSize(nodes, gpus, 1.0, (wanted.least, wanted.most) if wanted.least < wanted.most else None)


def _elastic(part: Part, size: RequestedSize, ranged: bool) -> RequestedSize:
    ends = part.fields(("min", "max"), "min and max, such as {min: 2, max: 8}")
    if ranged:
        raise part.refused("gpus is a range already, expected one of the two")
    least, most = (
        ends[end].whole("GPUs in all, 1 or more", 1, MOST_GPUS) if end in ends else size.total for end in ("min", "max")
    )
    if not least <= size.total <= most or size.share < 1 or not size.gpus:
        raise part.refused(
            f"{least} to {most} GPUs, expected a range that holds the {size.total * size.share:g} asked for, whole ones"
        )
    return replace(size, range=(least, most))
