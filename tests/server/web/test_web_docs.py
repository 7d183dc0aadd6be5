"""The documentation site has the web UI on a recorded journal, which works from static files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.docs_hooks import on_page_markdown, on_post_build

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_documentation_opens_from_disk_without_errors(page: Any, tmp_path: Path) -> None:
    on_post_build(config={"site_dir": str(tmp_path)})
    frame = on_page_markdown((ROOT / "docs" / "web.md").read_text()).partition("<iframe")[2].partition("</iframe>")[0]
    (tmp_path / "web.html").write_text(f'<!doctype html><meta charset="utf-8"><iframe{frame}</iframe>')
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto((tmp_path / "web.html").as_uri())
    shown = page.frame_locator("iframe")
    shown.get_by_role("table", name="Running").get_by_role("link").first.wait_for()
    time = shown.locator(".time-bar time")
    before = time.inner_text()
    shown.get_by_role("button", name="Next change").click()
    shown.locator(".time-bar time").filter(has_not_text=before).wait_for()
    assert messages == []
