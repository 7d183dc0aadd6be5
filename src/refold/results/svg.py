"""SVG elements as text. Every text and attribute is escaped here, so that no caller can forget to."""

from __future__ import annotations

from html import escape


def number(value: float) -> str:
    """A coordinate: a tenth of a unit is finer than anyone sees."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def tag(name: str, text: str | None = None, **attributes: float | str) -> str:
    """One element, with text in it or empty. `class_` is class, and other underscores are hyphens."""
    inside = "" if text is None else escape(text)
    return f"<{name}{_written(attributes)}>{inside}</{name}>" if inside else f"<{name}{_written(attributes)}/>"


def group(children: list[str], **attributes: float | str) -> str:
    """A <g> around elements."""
    return f"<g{_written(attributes)}>{''.join(children)}</g>"


def drawing(width: float, height: float, label: str, children: list[str], class_: str = "plot") -> str:
    """A whole SVG; `label` says what is to be seen to those who do not see it."""
    view = f"0 0 {number(width)} {number(height)}"
    attributes = _written({"class_": class_, "viewBox": view, "role": "img", "aria_label": label})
    return f"<svg{attributes}>{''.join(children)}</svg>"


def across(x1: float, x2: float, y: float, class_: str) -> str:
    """A horizontal line."""
    return tag("line", class_=class_, x1=x1, x2=x2, y1=y, y2=y)


def upright(x: float, y1: float, y2: float, class_: str) -> str:
    """A vertical line."""
    return tag("line", class_=class_, x1=x, x2=x, y1=y1, y2=y2)


def words(text: str, x: float, y: float, class_: str, **more: float | str) -> str:
    """A text whose middle stands at the height `y`."""
    return tag("text", text, class_=class_, x=x, y=y, dy=".35em", **more)


def _written(attributes: dict[str, float | str]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else number(value))}"'
        for name, value in attributes.items()
    )
