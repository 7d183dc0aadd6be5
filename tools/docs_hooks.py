"""What the build of the documentation site adds: the web UI on the journal of a small simulation, as one file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MARK = "<!-- the web UI on a recorded journal -->"
"""In a document: where the site has the page. Elsewhere, as on GitHub, nothing is shown there."""

PAGE = "recorded.html"
FRAME = (
    f'<iframe src="{PAGE}" title="The web UI on the journal of a simulation" loading="lazy" '
    'style="width: 100%; height: 680px; border: 1px solid #8884; border-radius: 8px"></iframe>\n\n'
    f"[Open it in a page of its own]({PAGE}){{target=_blank}}"
)
SIMULATION = ("demo", "--limit", "160", "--policy", "refold", "--stop-cost", "18s", "--restart-cost", "1m")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the page where a document has the mark."""
    return markdown.replace(MARK, FRAME)


def on_post_build(config: Mapping[str, Any], **_: Any) -> None:
    """Write the page to the site."""
    with TemporaryDirectory(prefix="refold-docs-") as folder:
        refold = [sys.executable, "-m", "refold"]
        subprocess.run([*refold, "simulate", *SIMULATION, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        page = Path(config["site_dir"]) / PAGE
        command = [*refold, "show", str(Path(folder) / "journal.jsonl"), "--export", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
