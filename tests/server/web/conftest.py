"""A browser for the tests of the web UI; they are skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_tests import mark_users
from web_browser import MISSING, find_chromium, open_browser


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a browser."""
    mark_users(items, Path(__file__).parent, ["browser"], "browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Not for the whole session: while it is open, the main thread has a running event loop."""
    if find_chromium() is None:
        pytest.skip(MISSING)
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page with a profile of its own. An error in a script, or a rule of the content policy that is broken, fails."""
    context = browser.new_context()
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console", lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None
    )
    opened.set_default_timeout(10_000)
    yield opened
    context.close()
    assert problems == []
