"""The web UI with 10 and with 10,000 jobs, on 8 and on 1,000 GPUs; and what axe finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_service import OWNER
from web_browser import sign_in
from web_demo import DemoService, serve_demo

PAGES = {
    "overview": "",
    "jobs": "jobs",
    "a running job": "jobs/{job}",
    "timeline": "timeline",
    "nodes": "nodes/gpu-001",
    "tenants": "tenants",
    "what if": "whatif",
    "plan": "plan",
}
WIDTHS = {"desktop": 1440, "phone": 400}


@pytest.fixture(scope="module", params=[(8, 10), (1000, 10_000)], ids=["small", "large"])
def demo(request: pytest.FixtureRequest) -> Iterator[tuple[DemoService, str]]:
    with serve_demo(*request.param) as served:
        yield served


def test_only_visible_rows_exist_and_all_can_be_scrolled_to(page: Any, demo: tuple[DemoService, str]) -> None:
    service, address = demo
    sign_in(page, address, OWNER, "jobs")
    table = page.get_by_role("table", name="Queue")
    table.wait_for()
    waiting = [job for job in service.jobs_by_id.values() if job.state == "waiting"]
    assert int(table.get_attribute("aria-rowcount")) == len(waiting) + 1
    assert page.locator(".vt-row").count() < 60
    table.evaluate("table => { table.scrollTop = table.scrollHeight }")
    page.get_by_role("link", name=waiting[-1].id, exact=True).wait_for()
    assert page.locator(".vt-row").count() < 60


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=list(WIDTHS))
def test_axe_finds_nothing_serious(browser: Any, demo: tuple[DemoService, str], width: int, theme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    service, address = demo
    job = next(one.id for one in service.jobs_by_id.values() if one.state == "running")
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True).new_page()
    sign_in(page, address, OWNER)
    for name, path in PAGES.items():
        page.evaluate("at => { location.hash = '#/' + at }", path.format(job=job))
        page.wait_for_load_state("networkidle")
        if name == "what if":
            page.get_by_role("button", name="Simulate").click()
            page.get_by_role("region", name="Starts of waiting jobs").wait_for()
        found = [
            f"{name}: {one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in Axe().run(page).response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert found == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the screen"
    page.context.close()
