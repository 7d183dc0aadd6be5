"""Sets of nodes of a cluster, as bits: where the instances of a job may be placed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from refold.errors import BadValue


class NodeSet(msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True):
    """Nodes by their indices. Byte i has the nodes 8 i to 8 i + 7, the lowest bit first, and the last byte is not 0."""

    bits: bytes = b""

    def __post_init__(self) -> None:
        if self.bits.endswith(b"\0"):
            raise BadValue("the last byte of a set of nodes is 0, expected none after that of the last node")

    @staticmethod
    def of(nodes: Iterable[int]) -> NodeSet:
        """Return the set of these nodes."""
        mask = 0
        for node in nodes:
            mask |= 1 << node
        return NodeSet.from_mask(mask)

    @staticmethod
    def from_mask(mask: int) -> NodeSet:
        """Return the set of the nodes whose bits are 1 in a number."""
        return NodeSet(mask.to_bytes((mask.bit_length() + 7) // 8, "little"))

    def __contains__(self, node: int) -> bool:
        byte = node >> 3
        return 0 <= byte < len(self.bits) and bool(self.bits[byte] >> (node & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        return (8 * byte + bit for byte, bits in enumerate(self.bits) for bit in range(8) if bits >> bit & 1)

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self.bits)
