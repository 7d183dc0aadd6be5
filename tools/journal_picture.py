"""Draw the runs of a journal as SVG, GPUs by time: `python tools/journal_picture.py JOURNAL PICTURE.svg`.

For the worked example in docs/policies/refold_example.md; `refold show` draws any journal, to zoom and click.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from refold.journal import read_history
from refold.model import HOUR, Seconds

COLOURS = ("#2f5fd0", "#c0661a", "#2c8f5b", "#a349a4", "#b8453b", "#4a7c8c")
LEFT, TOP, WIDTH, ROW = 58, 8, 820, 22
SHORTEST_LABEL = 70
"""Bars that are narrower have no label."""


class Bar(NamedTuple):
    """A run on neighbouring GPUs, of `first` to `last`."""

    job: str
    label: str
    first: int
    last: int
    start: Seconds
    end: Seconds


def bars_of(journal: Path) -> tuple[list[Bar], int]:
    """Return the runs of a journal, and the number of GPUs. GPUs are numbered over all nodes."""
    _, history = read_history(journal)
    offsets = [0]
    for node in history.cluster.nodes:
        offsets.append(offsets[-1] + node.gpus)
    bars = []
    runs = history.runs
    for job, allocation, start, end in zip(runs.job, runs.allocations, runs.start, runs.end, strict=True):
        name = history.jobs.jobs[job].id
        plan = f": {allocation.plan}" if allocation.plan else ""
        gpus = sorted(offsets[share.node] + gpu for share in allocation.placement for gpu in share.gpus)
        for first, last in neighbours(gpus):
            bars.append(Bar(name, name + plan, first, last, float(start), float(end)))
    return bars, offsets[-1]


def neighbours(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each group of numbers without a gap."""
    start = 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            yield numbers[start], number
            start = place + 1


def draw(bars: list[Bar], gpus: int) -> str:
    """Return the picture."""
    until = max(bar.end for bar in bars)
    names = list(dict.fromkeys(bar.job for bar in sorted(bars, key=lambda bar: bar.start)))
    height = TOP + gpus * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 12} {height + 26}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + 12}" height="{height + 26}" fill="#ffffff"/>',
    ]
    for gpu in range(gpus):
        lines.append(f'<text x="{LEFT - 8}" y="{TOP + gpu * ROW + 15}" text-anchor="end" fill="#555">GPU {gpu}</text>')
    for hour in range(int(until / HOUR) + 1):
        x = LEFT + WIDTH * hour * HOUR / until
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{height + 17}" text-anchor="middle" fill="#555">{hour} h</text>')
    for bar in bars:
        x, width = LEFT + WIDTH * bar.start / until, WIDTH * (bar.end - bar.start) / until
        y, tall = TOP + bar.first * ROW + 1, (bar.last - bar.first + 1) * ROW - 2
        colour = COLOURS[names.index(bar.job) % len(COLOURS)]
        lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{tall}" rx="3" fill="{colour}">')
        lines.append(f"<title>{escape(bar.label)}</title></rect>")
        label = bar.label if width > SHORTEST_LABEL + 4 * len(bar.label) else bar.job if width > SHORTEST_LABEL else ""
        if label:
            lines.append(f'<text x="{x + 6:.1f}" y="{y + tall / 2 + 4}" fill="#fff">{escape(label)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(*bars_of(Path(sys.argv[1]))), encoding="utf-8")
