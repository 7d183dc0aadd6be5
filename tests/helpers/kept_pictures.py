"""Pictures of the scripted first hours, kept under build/first-hour: what a terminal and a browser show."""

from __future__ import annotations

import os
import re
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "build" / "first-hour"
CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhl]|\x1b[()][AB0]|\x1b[=>]|[^\n]*\r(?!\n)")
"""Sequences that move the cursor, and what a line shows before it is written again."""

_kept: Counter[str] = Counter()
"""Number of pictures by test."""

LOOKS: dict[str, tuple[int, int, str]] = {
    "light": (1280, 800, "light"),
    "dark": (1280, 800, "dark"),
    "phone": (400, 860, "light"),
}


def keep_terminal(shown: str, columns: int) -> None:
    """Write what a terminal has shown as a picture, with the name of the test that runs."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(CURSOR.sub("", shown.replace("\r\n", "\n"))))
    name = re.sub(r"\W+", "-", os.environ.get("PYTEST_CURRENT_TEST", "test").rpartition("::")[2].partition(" ")[0])
    FOLDER.mkdir(parents=True, exist_ok=True)
    _kept[name] += 1
    console.save_svg(str(FOLDER / f"{name}-{_kept[name]}.svg"), title=name.replace("_", " "))


def keep_page(page: Any, name: str) -> None:
    """Make screenshots of a page of the web UI: light, dark and on a phone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for look, (width, height, scheme) in LOOKS.items():
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=FOLDER / f"browser-{name}-{look}.png")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")
