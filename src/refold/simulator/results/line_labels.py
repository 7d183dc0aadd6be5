"""Where to write the names of the lines of a chart: beside each line, away from the other lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def place_labels(lines: Sequence[DrawnLine], frame: Frame) -> list[LabelPlace | None]:
    """Return a place for each name. Names do not overlap each other; None if there is no room for a name.

    Among the places with room, one is chosen where the line is far from the others and few lines run through the name.
    """
    placed: list[LabelPlace | None] = []
    for index, line in enumerate(lines):
        width = CHARACTER_WIDTH * len(line.name)
        x, y = _candidates(line, width, frame)
        free = _free(x, y, width, [place for place in placed if place is not None])
        x, y = x[free], y[free]
        best = int(_costs(x, y, width, lines, index).argmin()) if len(x) else None
        placed.append(None if best is None else LabelPlace(float(x[best]), float(y[best]), width))
    return placed


def _candidates(line: DrawnLine, width: float, frame: Frame) -> tuple[Floats, Floats]:
    """Return the places above and below the line that are within the frame."""
    left, right = frame.left + width / 2 + 4, frame.right_edge - width / 2
    x = np.linspace(left, max(left, right), POSITIONS)
    x = np.repeat(x[(line.x[0] <= x) & (x <= line.x[-1])], 2)
    y = np.interp(x, line.x, line.y) + np.tile((-OFFSET, OFFSET), len(x) // 2)
    margin = TEXT_HEIGHT / 2
    inside = (frame.top + margin <= y) & (y <= frame.bottom_edge - margin)
    return x[inside], y[inside]


def _free(x: Floats, y: Floats, width: float, placed: Sequence[LabelPlace]) -> NDArray[np.bool_]:
    """Return at which places a name would not be drawn over another."""
    free = np.ones(len(x), dtype=np.bool_)
    for other in placed:
        free &= (np.abs(x - other.x) >= (width + other.width) / 2) | (np.abs(y - other.y) >= TEXT_HEIGHT)
    return free


def _costs(x: Floats, y: Floats, width: float, lines: Sequence[DrawnLine], own: int) -> Floats:
    """Return costs that rise with the lines through a name, and fall with the distance of its line to the others."""
    across = x[:, np.newaxis] + np.linspace(-width / 2, width / 2, 9)
    heights = np.array([np.interp(across, line.x, line.y) for line in lines])
    crossing = (np.abs(heights - y[:, np.newaxis]).min(axis=2) < TEXT_HEIGHT / 2).sum(axis=0)
    others = np.delete(heights, own, axis=0)
    separation = np.abs(others - heights[own]).min(axis=(0, 2), initial=2 * TEXT_HEIGHT)
    costs: Floats = TEXT_HEIGHT * crossing - separation
    return costs
