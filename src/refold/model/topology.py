"""What jobs request of the domains of a cluster, such as racks, in which their instances are placed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from refold.errors import BadValue
from refold.model.units import Seconds, format_count


class TopologyRequest(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job requests of the domains that its instances are placed in. Levels are given by name.

    `required`: all instances in one domain of this level, or the job waits. `most`: in so many domains of it instead;
    without `required`, of the innermost level. `wait`: that holds for so long after the submission; None: always.
    `preferred`: in as few domains as possible.
    `segment`: consecutive instances in groups of so many, each group in one domain of `segment_level`; '': of the
    innermost level. `communication`: the part of the step time that the job spends in communication between its nodes
    if they are in as few domains as possible; 0: unknown.
    """

    required: str = ""
    preferred: str = ""
    segment: Annotated[int, Meta(ge=0)] = 0
    segment_level: str = ""
    most: Annotated[int, Meta(ge=0)] = 0
    wait: Annotated[Seconds, Meta(ge=0)] | None = None
    communication: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.communication <= 1:
            raise BadValue(f"communication is {self.communication}, expected a part of the step time, 0 to 1")
        if self.segment < 0:
            raise BadValue(f"segment is {self.segment}, expected instances ≥ 1")
        if self.segment_level and not self.segment:
            raise BadValue(f"segment_level is {self.segment_level!r}, but no segment is given")
        if self.most < 0:
            raise BadValue(f"most is {self.most}, expected domains ≥ 1")
        if self.most > 1 and self.segment:
            raise BadValue(f"most is {self.most}, expected 1 for a job with segments")
        if self.wait is not None and not (self.wait >= 0 and (self.required or self.most)):
            raise BadValue(f"wait is {self.wait}, expected seconds ≥ 0 for a job with a required level")

    @property
    def is_binding(self) -> bool:
        """Whether some placements are not acceptable."""
        return bool(self.required or self.most or self.segment)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that it names."""
        return tuple(name for name in (self.required, self.preferred, self.segment_level) if name)

    def relaxed(self) -> TopologyRequest:
        """Return the request with its required level as a preferred one."""
        return replace(self, required="", most=0, wait=None, preferred=self.preferred or self.required)

    def __str__(self) -> str:
        """Format as 'in one block, in segments of 16 in one rack each'."""
        segments = f"in segments of {self.segment} in one {self.segment_level or 'domain'} each"
        parts = [
            f"in {self._most_text()}" if self.required or self.most else "",
            f"preferably in one {self.preferred}" if self.preferred else "",
            segments if self.segment else "",
        ]
        return ", ".join(part for part in parts if part)

    def _most_text(self) -> str:
        level = self.required or "domain"
        return f"one {level}" if self.most <= 1 else f"at most {format_count(self.most, level)}"
