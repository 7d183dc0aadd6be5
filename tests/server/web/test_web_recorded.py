"""The web UI on a recorded journal: served by `refold show`, and as one file that opens from disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journals import start, step, submitted, write_entries

from refold.core import Header, NodeLost, RunFailed, RunFinished
from refold.journal import read_history
from refold.server import read_recording
from refold.server.web import make_page
from refold.testing import make_cluster, make_job

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
PAGES = ["", "jobs", "timeline", "nodes", "tenants", "jobs/late"]


def entries() -> list[Any]:
    """Two jobs, one after the other; a failed node; a job with a hostile name, which waits to the end."""
    first, late = make_job("first", gpus=2, user="ann"), make_job("late", gpus=2, at=100.0, user="ben")
    hostile = make_job(HOSTILE, gpus=2, at=500.0, user=HOSTILE, tenant=HOSTILE)
    return [
        step(0.0, submitted(first), start("first", gpus=(0, 1))),
        step(100.0, submitted(late)),
        step(300.0, RunFinished("first", 1), start("late", gpus=(0, 1))),
        step(500.0, submitted(hostile)),
        step(600.0, NodeLost(1, HOSTILE)),
        step(700.0, RunFailed("late", 1, HOSTILE)),
        step(3600.0, submitted(make_job("last", at=3600.0))),
    ]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return Path(write_entries(tmp_path / "journal.jsonl", Header(make_cluster(2, 2), "fifo"), entries()))


@pytest.fixture
def recorded(page: Any, journal: Path) -> Any:
    """The page of an export, opened from disk, at the first moment of the journal."""
    exported = journal.with_suffix(".html")
    exported.write_text(make_page(read_recording(journal).encode()))
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(exported.as_uri())
    page.get_by_role("slider", name="Time").press("Home")
    page.messages = messages
    return page


def tile(page: Any, label: str) -> Any:
    return page.locator(".stat").filter(has_text=label).locator(".stat-value")


def test_the_state_follows_the_time(recorded: Any) -> None:
    running, queue = recorded.get_by_role("table", name="Running"), recorded.get_by_role("table", name="Queue")
    running.get_by_role("link", name="first").wait_for()
    following = recorded.get_by_role("button", name="Next change")
    following.click()
    queue.get_by_role("link", name="late").wait_for()
    assert recorded.locator(".time-bar time").inner_text() == "00:01:40"
    following.click()
    running.get_by_role("link", name="late").wait_for()
    recorded.get_by_role("button", name="Previous change").click()
    running.get_by_role("link", name="first").wait_for()
    recorded.get_by_role("slider", name="Time").press("End")
    recorded.get_by_text("Node down", exact=True).wait_for()
    assert recorded.messages == []


def test_the_history_of_a_job_ends_at_the_time_shown(recorded: Any) -> None:
    slider = recorded.get_by_role("slider", name="Time")
    recorded.evaluate("location.hash = '#/jobs/late'")
    recorded.get_by_text("has not been submitted yet").wait_for()
    slider.press("ArrowRight")
    recorded.locator(".job-head").get_by_text("Waiting").wait_for()
    assert recorded.locator(".history").get_by_text("placed").count() == 0
    slider.press("ArrowRight")
    recorded.locator(".history").get_by_text("placed").wait_for()
    slider.press("End")
    recorded.locator(".job-head").get_by_text("Failed").wait_for()


def test_pages_that_need_a_daemon_are_not_offered(recorded: Any) -> None:
    links = recorded.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert links == ["Overview", "Jobs", "Timeline", "Nodes", "Tenants"]
    assert recorded.get_by_role("button", name="Sign out").count() == 0
    recorded.evaluate("location.hash = '#/plan'")
    recorded.get_by_text("There is no such page.").wait_for()


def test_playing_moves_the_time_until_it_is_paused(recorded: Any) -> None:
    recorded.get_by_role("button", name="Play").click()
    recorded.locator(".time-bar time").filter(has_not_text="00:00:00").wait_for()
    recorded.get_by_role("button", name="Pause").click()
    recorded.get_by_role("button", name="Play").wait_for()


def test_the_timeline_shows_the_whole_journal_and_a_click_opens_a_job(recorded: Any) -> None:
    recorded.get_by_role("link", name="Timeline").click()
    canvas = recorded.locator("canvas.timeline-canvas[aria-label*='1 running, 1 later']")
    canvas.wait_for()
    box = canvas.bounding_box()
    canvas.click(position={"x": 84 + (box["width"] - 84) * 500 / 3600, "y": 30})
    recorded.get_by_role("heading", name="late", level=1).wait_for()


def test_markup_in_names_and_messages_stays_text(recorded: Any) -> None:
    recorded.get_by_role("slider", name="Time").press("End")
    for path in PAGES:
        recorded.evaluate("at => { location.hash = '#/' + at }", path)
        recorded.locator(".page").wait_for()
    recorded.evaluate("at => { location.hash = '#/jobs/' + encodeURIComponent(at) }", HOSTILE)
    recorded.get_by_role("heading", name=HOSTILE, level=1).wait_for()
    assert recorded.locator("#app img").count() == 0
    assert "hacked" not in recorded.title().replace(HOSTILE, "")


@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, journal: Path, width: int, theme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    exported = journal.with_suffix(".html")
    exported.write_text(make_page(read_recording(journal).encode()))
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True).new_page()
    page.goto(exported.as_uri())
    for path in PAGES:
        page.evaluate("at => { location.hash = '#/' + at }", path)
        page.locator(".page").wait_for()
        violations = Axe().run(page).response["violations"]
        assert [(path, one["id"]) for one in violations if one["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the screen"
    page.context.close()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation with preemption, many jobs and shared GPUs."""
    folder = tmp_path_factory.mktemp("simulated")
    words = ["simulate", "demo", "--limit", "150", "--policy", "srtf", "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "refold.cli.app", *words], check=True, capture_output=True)
    return folder / "journal.jsonl"


STATE_AT = """async times => {
  const { RecordedSource } = await import("refold/recorded.js");
  const source = new RecordedSource(JSON.parse(document.getElementById("recording").textContent));
  const found = [];
  for (const at of times) {
    source.moveTo(at);
    const { running, waiting } = await source.info();
    const { total } = await source.jobs({ ended: true });
    const gpus = (await source.gpus()).reduce((sum, gpu) => sum + 1 - gpu.free, 0);
    found.push([running, waiting, total, Math.round(gpus * 1000)]);
  }
  return found;
}"""


def test_the_page_derives_the_same_state_as_the_history(page: Any, simulated: Path) -> None:
    _, history = read_history(simulated)
    times = np.linspace(history.first_submission, history.until, 40).tolist()
    exported = simulated.with_suffix(".html")
    exported.write_text(make_page(read_recording(simulated).encode()))
    page.goto(exported.as_uri())
    jobs, runs = history.jobs, history.runs
    expected = []
    for at in times:
        open_runs = (runs.start <= at) & ~(history.run_end <= at)
        ended, known = int((jobs.ended <= at).sum()), int((jobs.submitted <= at).sum())
        running = int(open_runs.sum())
        expected.append([running, known - ended - running, ended, round(1000 * float(runs.gpus[open_runs].sum()))])
    assert page.evaluate(STATE_AT, times) == expected


@pytest.fixture
def shown(journal: Path) -> Iterator[str]:
    """The link that `refold show` prints."""
    command = [sys.executable, "-m", "refold.cli.app", "show", str(journal), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def test_the_link_of_refold_show_opens_the_page_and_without_it_nothing_is_shown(
    page: Any, browser: Any, shown: str
) -> None:
    page.goto(shown)
    page.get_by_role("slider", name="Time").wait_for()
    page.reload()  # the cookie is kept
    page.get_by_role("slider", name="Time").wait_for()
    other = browser.new_context().new_page()
    other.goto(shown)
    other.get_by_text("This page needs the link that").wait_for()
    other.context.close()
