"""What looks the same on all pages of the web UI, what looks different, and what fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_service import NOW, OWNER, FakeServer, FakeService, serve
from msgspec.structs import replace
from real_daemon import wait_until
from web_browser import sign_in
from web_demo import serve_demo

from refold.client.api.submissions import Submission
from refold.client.api.wire import TenantStatus, TimeEstimate

SWATCHES = """() => Object.fromEntries([...document.querySelectorAll(".legend-entry")]
    .map((entry) => [entry.textContent.split(" ")[0], entry.querySelector(".swatch")?.style.background])
    .filter(([, colour]) => colour))"""

IS_IN_VIEW = """(link) => {
    const [inner, outer] = [link.getBoundingClientRect(), document.querySelector("nav").getBoundingClientRect()];
    return inner.left >= outer.left - 1 && inner.right <= outer.right + 1;
}"""


@pytest.fixture
def served() -> Iterator[FakeServer]:
    service = FakeService()
    service.add(Submission("train", ["true"], steps=100))
    service.start("train-1")
    with serve(service) as server:
        yield server


def test_tenants_have_the_same_colours_on_all_pages_and_after_a_reload(page: Any) -> None:
    with serve_demo(64, 40) as (_, address):
        sign_in(page, address, OWNER)
        page.locator(".gpu-map .legend-entry").first.wait_for()
        on_map = page.evaluate(SWATCHES)
        page.evaluate("location.hash = '#/timeline'")
        page.locator(".timeline .legend-entry").first.wait_for()
        on_timeline = page.evaluate(SWATCHES)
        page.reload()
        page.locator(".timeline .legend-entry").first.wait_for()
        assert page.evaluate(SWATCHES) == on_timeline
    assert len(on_map) >= 3
    assert on_map.items() <= on_timeline.items()


def test_a_tenant_without_a_quota_is_not_within_one(page: Any, served: FakeServer) -> None:
    none = TenantStatus("speech", 0.0, 0.0, 1, 1.0, 0, 0.0)
    served.service.tenants = lambda _: [none]  # type: ignore[method-assign, assignment]
    sign_in(page, served.address, OWNER, "tenants")
    page.get_by_text("1 of 4 GPUs in use. No tenant has a quota.").wait_for()
    assert page.locator(".legend").first.inner_text() == "Tenant without a quota"
    both = [none, TenantStatus("vision", 2.0, 0.0, 1, 1.0, 0, 0.0)]
    served.service.tenants = lambda _: both  # type: ignore[method-assign, assignment]
    page.reload()
    page.get_by_text("Within the quota").wait_for()


def test_predicted_progress_looks_different_from_measured_progress(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "jobs/train-1")
    page.get_by_text("0 % · step 0 of 100").wait_for()
    assert page.locator(".progress.predicted").count() == 0
    job = served.service.jobs_by_id["train-1"]
    end = TimeEstimate(NOW + 1000, None, None)
    served.service.jobs_by_id["train-1"] = replace(job, steps=None, started=NOW - 1000, end_estimate=end)
    page.reload()
    page.get_by_text("predicted", exact=False).first.wait_for()
    page.locator(".progress.predicted").wait_for()


def test_on_a_phone_the_active_tab_is_in_view_and_tables_are_not_wider_than_the_page(
    page: Any, served: FakeServer
) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    sign_in(page, served.address, OWNER)
    for name, title in (("tenants", "Tenants"), ("plan", "Plan"), ("jobs", "Jobs")):
        page.evaluate("at => { location.hash = '#/' + at }", name)
        page.get_by_role("heading", name=title, level=1).wait_for()
        assert page.locator("nav a[aria-current]").evaluate(IS_IN_VIEW)
    page.evaluate("location.hash = '#/tenants'")
    page.get_by_role("table").first.wait_for()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.set_viewport_size({"width": 390, "height": 800})
    wait_until(lambda: page.locator("nav a[aria-current]").evaluate(IS_IN_VIEW))
    widths = "(tables) => tables.map((one) => one.scrollWidth - one.clientWidth)"
    assert max(page.locator(".table-scroll").evaluate_all(widths)) <= 2  # the mark of a quota
    assert page.get_by_role("row").filter(has_text="vision").get_by_role("cell").count() >= 7


def test_a_machine_without_gpus_shares_slots(page: Any, served: FakeServer) -> None:
    info = served.service.info
    served.service.info = lambda caller: replace(info(caller), slots=True)  # type: ignore[method-assign]
    served.service.add(Submission("GPU", ["true"]))
    sign_in(page, served.address, OWNER)
    page.get_by_text("Slots in use").wait_for()
    page.get_by_role("link", name="GPU-2").first.wait_for()
    text = page.locator("#app").inner_text().replace("GPU-2", "")
    assert "GPU" not in text
