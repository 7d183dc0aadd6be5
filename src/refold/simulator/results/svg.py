"""SVG elements as text. All texts and attributes are escaped here, so that callers need not do it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LIGHT_SERIES = (
    "#0072b2", "#d55e00", "#009e73", "#6d1f19", "#9361fc", "#606338", "#974878", "#0b464c", "#9f81b0", "#4b298c",
)  # fmt: skip
DARK_SERIES = (
    "#58aee6", "#ff8a4a", "#35c59b", "#c12d77", "#695bdd", "#6d7107", "#f1bce7", "#2a7391", "#caf9ef", "#b7e032",
)  # fmt: skip
"""Colours of series on light and dark backgrounds, distinguishable also with red-green colour blindness.

Further series use the same colours with dashed lines.
"""

FIRST_NON_POLICY_SERIES = 1000
"""Series from this number on are not policies: colours start again, and their legend entries are independent."""

SERIES_RULES = "\n".join(f".s{series} {{ color: var(--s{series}); }}" for series in range(len(LIGHT_SERIES)))
"""CSS rules that give each series its colour."""

STYLE = (
    "body { margin: 24px auto; max-width: 1000px; font: 14px system-ui, sans-serif; color-scheme: light dark; }"
    "svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 8px 28px 32px; }"
    "td, th { padding: 3px 16px 3px 0; text-align: right; } td:first-child, td:last-child { text-align: left; }"
)


def format_number(value: float) -> str:
    """Format a coordinate with one decimal, which is more precise than the eye can see."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def tag(name: str, text: str | None = None, **attributes: float | str) -> str:
    """Return an element with text, or empty. `class_` stands for class; other underscores become hyphens."""
    return parent(name, [] if text is None else [escape(text)], **attributes)


def parent(name: str, children: Sequence[str], **attributes: float | str) -> str:
    inside = "".join(children)
    head = f"{name}{_format_attributes(attributes)}"
    return f"<{head}>{inside}</{name}>" if inside else f"<{head}/>"


def group(children: Sequence[str], **attributes: float | str) -> str:
    """Return a <g> element around the children."""
    return parent("g", children, **attributes)


def drawing(width: float, height: float, children: Sequence[str], **attributes: float | str) -> str:
    return parent("svg", children, viewBox=_view_box(width, height), **attributes)


def document(width: float, height: float, title: str, subtitle: str, children: Sequence[str], style: str = "") -> str:
    """Return a self-contained SVG file with light and dark colours, a title and a subtitle; `style` is further CSS."""
    heading = [
        parent("style", [f"{_STYLE}{style}"]),
        tag("rect", class_="page", width=width, height=height),
        label_text(truncate(title, 90), 28, 30, "title"),
        label_text(truncate(subtitle, 140), 28, 54, "about"),
    ]
    size: dict[str, float | str] = {"viewBox": _view_box(width, height), "width": width, "height": height}
    namespace = "http://www.w3.org/2000/svg"
    return parent("svg", [*heading, *children], xmlns=namespace, **size, role="img", aria_label=title) + "\n"


def _view_box(width: float, height: float) -> str:
    return f"0 0 {format_number(width)} {format_number(height)}"


def horizontal_line(x1: float, x2: float, y: float, class_: str) -> str:
    return tag("line", class_=class_, x1=x1, x2=x2, y1=y, y2=y)


def vertical_line(x: float, y1: float, y2: float, class_: str) -> str:
    return tag("line", class_=class_, x1=x, x2=x, y1=y1, y2=y2)


def label_text(text: str, x: float, y: float, class_: str, **more: float | str) -> str:
    """Return a text that is vertically centred at `y`."""
    return tag("text", text, class_=class_, x=x, y=y, dy=".35em", **more)


def labelled_bar(left: float, top: float, length: float, height: float, text: str, class_: str) -> str:
    """Return a horizontal bar with a text at its end, at least one unit long."""
    length = max(1.0, length)
    bar = tag("rect", class_="bar", x=left, y=top, width=length, height=height, rx=2)
    return group([bar, label_text(text, left + length + 6, top + height / 2, "value")], class_=class_)


def dot(x: float, y: float, radius: float, class_: str, tooltip: str) -> str:
    """Return a circle with a tooltip."""
    return parent("circle", [tag("title", tooltip)], class_=class_, cx=x, cy=y, r=radius)


def legend(entries: Sequence[tuple[str, str]], left: float, y: float, height: float = 4) -> list[str]:
    """Return a row of legend entries, each a swatch with a CSS class and a name."""
    parts = []
    for class_, name in entries:
        swatch = tag("rect", class_="swatch", x=left, y=y - height / 2, width=18, height=height, rx=2)
        parts += [group([swatch], class_=class_), label_text(name, left + 25, y, "key")]
        left += legend_width(name)
    return parts


def legend_width(name: str) -> float:
    """Return the approximate width of a legend entry, with the distance to the next."""
    return 60.0 + 8 * len(name)


def series_class(series: int) -> str:
    """Return the CSS classes of a series: its colour, its number, and dashes if the colour is reused."""
    colours = len(LIGHT_SERIES)
    return f"s{series % colours} p{series}" + (" dashed" if series % FIRST_NON_POLICY_SERIES >= colours else "")


def truncate(text: str, max_length: int) -> str:
    """Shorten a text to `max_length` characters."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _format_attributes(attributes: dict[str, float | str]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else format_number(value)}"'
        for name, value in attributes.items()
    )


def series_variables(colours: Sequence[str]) -> str:
    """Return the CSS variables of the series colours."""
    return " ".join(f"--s{series}: {colour};" for series, colour in enumerate(colours))


_STYLE = f"""
:root {{ color-scheme: light dark;
  --page: #ffffff; --ink: #1c2128; --soft: #5b6570; --line: #c9d0d6; --grid: #e9ecef;
  {series_variables(LIGHT_SERIES)} }}
@media (prefers-color-scheme: dark) {{ :root {{
  --page: #1a1e23; --ink: #e7eaee; --soft: #9ca7b3; --line: #44505c; --grid: #262c33;
  {series_variables(DARK_SERIES)} }} }}
text {{ font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; fill: var(--soft); }}
.page {{ fill: var(--page); }}
.title {{ font-size: 20px; font-weight: 650; fill: var(--ink); }}
.about, .key {{ font-size: 13.5px; }}
.key, .name, .value {{ fill: var(--ink); }}
.grid {{ stroke: var(--grid); }}
.axis {{ stroke: var(--line); }}
.tick.y, .axis-title.y, .name {{ text-anchor: end; }}
.tick.x, .axis-title.x {{ text-anchor: middle; }}
.line {{ fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round; }}
.dashed .line {{ stroke-dasharray: 8 4; }}
.bar, .dot, .swatch {{ fill: currentColor; }}
{SERIES_RULES}
"""


def html_page(title: str, content: str) -> str:
    """Return a page; `content` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>{content}</body></html>\n"
    )
