"""A picture of curves: best throughput against what a job is given, as stairs, with the plan of each step.

It is one SVG file that stands alone, in the colours of the report, by day and by night; or an HTML page around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, log2

from refold.results import svg
from refold.results.charts import Axis, Frame, cut, nice_top, series_class, ticks

WIDTH, HEIGHT = 1000.0, 520.0
ROOM = Frame(WIDTH, HEIGHT, left=74, right=28, top=104, bottom=54)

LETTER, LINE = 6.3, 15.0
"""How wide a letter of a label is, and how high a line of it, roughly: so that labels keep clear of each other."""

LONGEST_LABEL = 56
MOST_TICKS = 12

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1c2128; --soft: #5b6570; --line: #c9d0d6; --grid: #e9ecef;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b3589a; --s4: #c98a00; --s5: #3fa0d8;
  --s6: #7a5c46; --s7: #5f6770; }
@media (prefers-color-scheme: dark) { :root {
  --page: #1a1e23; --ink: #e7eaee; --soft: #9ca7b3; --line: #44505c; --grid: #262c33;
  --s0: #58aee6; --s1: #ff8a4a; --s2: #35c59b; --s3: #e29acb; --s4: #efb73e; --s5: #9ad7fb;
  --s6: #c9a78e; --s7: #aab4bf; } }
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; fill: var(--soft); }
.page { fill: var(--page); }
.title { font-size: 20px; font-weight: 650; fill: var(--ink); }
.about, .key { font-size: 13.5px; }
.key { fill: var(--ink); }
.grid { stroke: var(--grid); }
.axis { stroke: var(--line); }
.tick.y, .axis-title.y { text-anchor: end; }
.tick.x, .axis-title.x { text-anchor: middle; }
.line { fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round; }
.linear { stroke: currentColor; stroke-width: 1.2; stroke-dasharray: 2 5; opacity: .75; }
.again .line { stroke-dasharray: 8 4; }
.step { fill: var(--page); stroke: currentColor; stroke-width: 2.5; }
.swatch { fill: currentColor; }
.label { fill: currentColor; font-size: 11.5px; }
.label { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
"""
COLOURS = "".join(f".s{number} {{ color: var(--s{number}); }}\n" for number in range(8))


@dataclass(frozen=True, slots=True)
class CurveStep:
    """From this amount on: so many samples a second, with this plan."""

    amount: float
    samples_per_second: float
    plan: str


@dataclass(frozen=True, slots=True)
class Stair:
    """One curve: its name, its steps, and up to which amount it was looked at."""

    name: str
    steps: Sequence[CurveStep]
    end: float


@dataclass(frozen=True, slots=True)
class CurveChart:
    """What is drawn, and what stands around it. `of` is what the amounts are of, such as GPUs."""

    title: str
    about: str
    of: str
    stairs: Sequence[Stair]
    linear: bool = True

    def svg(self) -> str:
        """The picture as a file of its own."""
        x, y = self._axes()
        parts = [*self._words(), *_grid(y), *_bottom(x)]
        parts += [svg.group(_linear(stair, x, y), class_=series_class(place)) for place, stair in self._with_linear()]
        parts += [svg.group(_stair(stair, x, y, self.of), class_=series_class(place)) for place, stair in self._drawn()]
        parts += _labels([(series_class(place), stair) for place, stair in self._drawn()], x, y)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
            f'height="{HEIGHT:g}" role="img" aria-label="{escape(self.title)}">'
        )
        return f"{head}<style>{STYLE}{COLOURS}</style>{''.join(parts)}</svg>\n"

    def _drawn(self) -> list[tuple[int, Stair]]:
        return [(place, stair) for place, stair in enumerate(self.stairs) if stair.steps]

    def _with_linear(self) -> list[tuple[int, Stair]]:
        return self._drawn() if self.linear else []

    def _axes(self) -> tuple[Axis, Axis]:
        most = max((stair.steps[-1].samples_per_second for _, stair in self._drawn()), default=1.0)
        return Axis("count", 0.0, max(stair.end for stair in self.stairs)), Axis("count", 0.0, nice_top(most))

    def _words(self) -> list[str]:
        middle = ROOM.left + ROOM.across / 2
        parts = [
            svg.tag("rect", class_="page", width=WIDTH, height=HEIGHT),
            svg.words(cut(self.title, 90), 28, 30, "title"),
            svg.words(cut(self.about, 140), 28, 54, "about"),
            svg.words(self.of, middle, HEIGHT - 16, "axis-title x"),
            svg.words("samples/s", ROOM.left - 8, ROOM.top - 18, "axis-title y"),
        ]
        left = ROOM.left + 24
        for place, stair in self._drawn():
            swatch = svg.tag("rect", class_="swatch", x=left, y=76, width=18, height=4, rx=2)
            parts.append(svg.group([swatch], class_=series_class(place)))
            parts.append(svg.words(stair.name, left + 25, 78, "key"))
            left += 60 + 8 * len(stair.name)
        if self.linear and self._drawn():
            parts.append(svg.group([svg.across(left, left + 18, 78, "linear")], class_="s7"))
            parts.append(svg.words("as much per GPU as the best step", left + 25, 78, "key"))
        return parts


def page(pictures: Sequence[CurveChart]) -> str:
    """The pictures on an HTML page, each with its steps as a table below it."""
    inside = "".join(f"{picture.svg()}{_table(picture)}" for picture in pictures)
    style = (
        "body { margin: 24px auto; max-width: 1000px; font: 14px system-ui, sans-serif; color-scheme: light dark; }"
        "svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 8px 28px 32px; }"
        "td, th { padding: 3px 16px 3px 0; text-align: right; } td:first-child, td:last-child { text-align: left; }"
    )
    title = escape(pictures[0].title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head>\n<body>{inside}</body></html>\n"
    )


def _table(picture: CurveChart) -> str:
    rows = "".join(
        f"<tr><td>{escape(stair.name)}</td><td>{step.amount:,.6g}</td><td>{step.samples_per_second:,.4g}</td>"
        f"<td>{escape(step.plan)}</td></tr>\n"
        for stair in picture.stairs
        for step in stair.steps
    )
    return f"<table><tr><th></th><th>{picture.of}</th><th>samples/s</th><th></th></tr>\n{rows}</table>"


def _grid(y: Axis) -> list[str]:
    parts = []
    for value, text in ticks(y):
        top = _up(y, value)
        parts += [svg.across(ROOM.left, ROOM.right_edge, top, "grid"), svg.words(text, ROOM.left - 8, top, "tick y")]
    return parts


def _bottom(x: Axis) -> list[str]:
    """The axis of amounts: GPUs and CPUs come in powers of two, and so do its ticks."""
    parts = [svg.across(ROOM.left, ROOM.right_edge, ROOM.bottom_edge, "axis")]
    every = 2 ** max(0, ceil(log2(x.high / MOST_TICKS)))
    for value in range(0, int(x.high) + 1, every):
        left = _along(x, value)
        parts.append(svg.upright(left, ROOM.bottom_edge, ROOM.bottom_edge + 4, "axis"))
        parts.append(svg.words(f"{value:,}", left, ROOM.bottom_edge + 15, "tick x"))
    return parts


def _along(x: Axis, value: float) -> float:
    return ROOM.left + value / x.high * ROOM.across


def _up(y: Axis, value: float) -> float:
    return ROOM.bottom_edge - value / y.high * ROOM.down


def _linear(stair: Stair, x: Axis, y: Axis) -> list[str]:
    """What there would be if every GPU did as much as each of those of the best step."""
    per_unit = max(step.samples_per_second / step.amount for step in stair.steps)
    end = min(stair.end, y.high / per_unit)
    right, top = _along(x, end), _up(y, end * per_unit)
    return [svg.tag("line", class_="linear", x1=ROOM.left, y1=ROOM.bottom_edge, x2=right, y2=top)]


def _stair(stair: Stair, x: Axis, y: Axis, of: str) -> list[str]:
    first, *others = stair.steps
    path = f"M{_place(x, y, first)}"
    for step in others:
        path += f"H{svg.number(_along(x, step.amount))}V{svg.number(_up(y, step.samples_per_second))}"
    path += f"H{svg.number(_along(x, stair.end))}"
    parts = [svg.tag("path", class_="line", d=path)]
    for step in stair.steps:
        told = f"{step.amount:,.6g} {of}: {step.samples_per_second:,.4g} samples/s, {step.plan}"
        left, top = _along(x, step.amount), _up(y, step.samples_per_second)
        dot = f'<circle class="step" cx="{svg.number(left)}" cy="{svg.number(top)}" r="4">'
        parts.append(f"{dot}{svg.tag('title', f'{stair.name}, {told}')}</circle>")
    return parts


def _place(x: Axis, y: Axis, step: CurveStep) -> str:
    return f"{svg.number(_along(x, step.amount))} {svg.number(_up(y, step.samples_per_second))}"


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def _labels(stairs: Sequence[tuple[str, Stair]], x: Axis, y: Axis) -> list[str]:
    """The plans of steps, where there is room: of the highest steps first, and of each plan where it begins."""
    places = [(colour, step, _along(x, step.amount), _up(y, step.samples_per_second)) for colour, step in _told(stairs)]
    taken = [_Box(left - 6, top - 6, left + 6, top + 6) for _, _, left, top in places]
    parts = []
    for colour, step, left, top in places:
        text = cut(step.plan, LONGEST_LABEL)
        box = _room_for(left, top, LETTER * len(text))
        if box is None or any(box.meets(other) for other in taken):
            continue
        taken.append(box)
        before = box.right < left
        at, anchor = (box.right, "end") if before else (box.left, "start")
        parts.append(svg.words(text, at, (box.top + box.bottom) / 2, f"label {colour}", text_anchor=anchor))
    return parts


def _told(stairs: Sequence[tuple[str, Stair]]) -> list[tuple[str, CurveStep]]:
    """The steps at which the plan changes, highest first."""
    return [
        (colour, step)
        for colour, stair in stairs
        for before, step in reversed([*pairwise([None, *stair.steps])])
        if step is not None and (before is None or before.plan != step.plan)
    ]


def _room_for(left: float, top: float, wide: float) -> _Box | None:
    """Where a label stands: below its step to the right, or where the picture ends there, above it to the left."""
    if left + 8 + wide <= ROOM.right_edge:
        box = _Box(left + 8, top + 6, left + 8 + wide, top + 6 + LINE)
        return box if box.bottom < ROOM.bottom_edge else None
    box = _Box(left - 8 - wide, top - 6 - LINE, left - 8, top - 6)
    return box if box.left >= ROOM.left else None
