"""A headless Chromium for the tests of the web UI: that of the system, without downloads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = "needs Chromium and Playwright: `make test-web` installs them where it may"


def find_chromium() -> str | None:
    """Return the path of Chromium, if it and Playwright are installed."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return None
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def sign_in(page: Any, address: str, token: str, at: str = "") -> None:
    """Open the web UI and sign in with a token; then go to a page such as 'nodes'."""
    page.goto(f"{address}/")
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation").wait_for()
    if at:
        page.evaluate("at => { location.hash = '#/' + at }", at)
