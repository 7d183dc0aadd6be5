"""SVG elements as text. All texts and attributes are escaped here, so that callers need not do it."""

from __future__ import annotations

from html import escape


def format_number(value: float) -> str:
    """Format a coordinate with one decimal, which is more precise than the eye can see."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def tag(name: str, text: str | None = None, **attributes: float | str) -> str:
    """Return an element with text, or empty. `class_` stands for class; other underscores become hyphens."""
    inside = "" if text is None else escape(text)
    return (
        f"<{name}{_format_attributes(attributes)}>{inside}</{name}>"
        if inside
        else f"<{name}{_format_attributes(attributes)}/>"
    )


def group(children: list[str], **attributes: float | str) -> str:
    """Return a <g> element around the children."""
    return f"<g{_format_attributes(attributes)}>{''.join(children)}</g>"


def drawing(width: float, height: float, label: str, children: list[str], class_: str = "plot") -> str:
    """Return an <svg> element; `label` is its accessible name."""
    view = f"0 0 {format_number(width)} {format_number(height)}"
    attributes = _format_attributes({"class_": class_, "viewBox": view, "role": "img", "aria_label": label})
    return f"<svg{attributes}>{''.join(children)}</svg>"


def horizontal_line(x1: float, x2: float, y: float, class_: str) -> str:
    """Return a horizontal line."""
    return tag("line", class_=class_, x1=x1, x2=x2, y1=y, y2=y)


def vertical_line(x: float, y1: float, y2: float, class_: str) -> str:
    """Return a vertical line."""
    return tag("line", class_=class_, x1=x, x2=x, y1=y1, y2=y2)


def label_text(text: str, x: float, y: float, class_: str, **more: float | str) -> str:
    """Return a text that is vertically centred at `y`."""
    return tag("text", text, class_=class_, x=x, y=y, dy=".35em", **more)


def _format_attributes(attributes: dict[str, float | str]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else format_number(value))}"'
        for name, value in attributes.items()
    )
