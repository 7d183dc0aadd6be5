"""Where to write the names of the lines of a chart: beside each line, away from the other lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refold.placement import Floats
from refold.simulator.results.axes import Frame

POSITIONS = 48
"""Places along the x axis that are tried for each name, above and below the line."""

CHARACTER_WIDTH, TEXT_HEIGHT = 8.2, 16.0
"""Size of a character in SVG units; an overestimate for most fonts."""

OFFSET = 12.0
"""Distance between a line and the centre of its name."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLine:
    """A line in SVG units, with x ascending, and its name."""

    name: str
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """The centre of a name and its width, in SVG units."""

    x: float
    y: float
    width: float

    def overlaps(self, other: LabelPlace) -> bool:
        """Return whether two names would be drawn over each other."""
        close = abs(self.x - other.x) < (self.width + other.width) / 2
        return close and abs(self.y - other.y) < TEXT_HEIGHT


def place_labels(lines: Sequence[DrawnLine], frame: Frame) -> list[LabelPlace | None]:
    """Return a place for each name. Names do not overlap each other; None if there is no room for a name.

    Among the places with room, one is chosen where the line is far from the others and few lines run through the name.
    """
    placed: list[LabelPlace | None] = []
    for index, line in enumerate(lines):
        others = [*lines[:index], *lines[index + 1 :]]
        candidates = [
            place
            for place in _candidates(line, frame)
            if not any(before is not None and place.overlaps(before) for before in placed)
        ]
        placed.append(min(candidates, key=lambda place: _cost(place, line, others), default=None))
    return placed


def _candidates(line: DrawnLine, frame: Frame) -> list[LabelPlace]:
    """Return the places above and below the line that are within the frame."""
    width = CHARACTER_WIDTH * len(line.name)
    left, right = frame.left + width / 2 + 4, frame.right_edge - width / 2
    places = [
        LabelPlace(x, y + offset, width)
        for x in np.linspace(left, max(left, right), POSITIONS).tolist()
        for y in [float(np.interp(x, line.x, line.y))]
        for offset in (-OFFSET, OFFSET)
        if line.x[0] <= x <= line.x[-1]
    ]
    margin = TEXT_HEIGHT / 2
    return [place for place in places if frame.top + margin <= place.y <= frame.bottom_edge - margin]


def _cost(place: LabelPlace, line: DrawnLine, others: Sequence[DrawnLine]) -> float:
    """Return a cost that rises with the lines through a name, and falls with the distance of the line to the others."""
    across = np.linspace(place.x - place.width / 2, place.x + place.width / 2, 9)
    own = np.interp(across, line.x, line.y)
    heights = [np.interp(across, other.x, other.y) for other in others]
    crossing = sum(np.abs(height - place.y).min() < TEXT_HEIGHT / 2 for height in (own, *heights))
    separation = min((float(np.abs(height - own).min()) for height in heights), default=0.0)
    return TEXT_HEIGHT * float(crossing) - min(separation, 2 * TEXT_HEIGHT)
