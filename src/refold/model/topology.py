"""What jobs request of the domains of a cluster, such as racks, in which their instances are placed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.errors import BadValue


class TopologyRequest(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job requests of the domains that its instances are placed in. Levels are given by name.

    `required`: all instances in one domain of this level, or the job waits. `preferred`: in as few of them as possible.
    `segment`: consecutive instances in groups of so many, each group in one domain of `segment_level`; '': of the
    innermost level. `communication`: the part of the step time that the job spends in communication between its nodes
    if they are in as few domains as possible; 0: unknown.
    """

    required: str = ""
    preferred: str = ""
    segment: Annotated[int, Meta(ge=0)] = 0
    segment_level: str = ""
    communication: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.communication <= 1:
            raise BadValue(f"communication is {self.communication}, expected a part of the step time, 0 to 1")
        if self.segment < 0:
            raise BadValue(f"segment is {self.segment}, expected instances ≥ 1")
        if self.segment_level and not self.segment:
            raise BadValue(f"segment_level is {self.segment_level!r}, but no segment is given")

    @property
    def is_binding(self) -> bool:
        """Whether some placements are not acceptable."""
        return bool(self.required or self.segment)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that it names."""
        return tuple(name for name in (self.required, self.preferred, self.segment_level) if name)

    def __str__(self) -> str:
        """Format as 'in one block, in segments of 16 in one rack each'."""
        segments = f"in segments of {self.segment} in one {self.segment_level or 'domain'} each"
        parts = [
            f"in one {self.required}" if self.required else "",
            f"preferably in one {self.preferred}" if self.preferred else "",
            segments if self.segment else "",
        ]
        return ", ".join(part for part in parts if part)
