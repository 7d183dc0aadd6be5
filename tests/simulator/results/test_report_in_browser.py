"""The report in a browser: it fits a desktop, and on a phone charts and tables are scrolled with a visible cue."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from typing import Any

import pytest

from refold.journal.history import HistoryJournal
from refold.policies.queueing.fifo import Fifo
from refold.simulator import simulate
from refold.simulator.results.figures import ReportRun
from refold.simulator.results.measures import measure
from refold.simulator.results.report import write_report
from refold.testing import make_cluster, make_job

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DESKTOP, PHONE = 1200, 400
POLICIES = ("fifo", "fifo-skip", "sjf", "srtf", "las", "drf", "easy", "conservative", "refold", "rubick")
FILES = ("--allow-file-access-from-files", "--virtual-time-budget=10000", "--window-size=1400,1000")

MEASURE = """
const shown = element => element && getComputedStyle(element).display !== "none";
const inside = (element, box) => element.getBoundingClientRect().left >= box.getBoundingClientRect().left - 1;
const measure = frame => {
  const page = frame.contentDocument, root = page.documentElement;
  const boxes = [...page.querySelectorAll(".scroll")].filter(box => box.clientWidth > 0).map(box => {
    const overflows = box.scrollWidth > box.clientWidth + 1;
    box.scrollLeft = box.scrollWidth;
    const labels = [...box.querySelectorAll("tbody th, .row-labels")];
    return {kind: box.querySelector("table") ? "table" : "chart", overflows, cue: shown(box.nextElementSibling),
            labels: labels.every(label => inside(label, box))};
  });
  return {overflow: root.scrollWidth - frame.clientWidth, boxes};
};
onload = () => {
  const frames = [...document.querySelectorAll("iframe")];
  frames.forEach(frame => frame.contentDocument.querySelectorAll("details").forEach(one => { one.open = true; }));
  setTimeout(() => { document.getElementById("found").textContent = JSON.stringify(frames.map(measure)); }, 500);
};
"""


pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The measures of a report of ten policies on a desktop and on a phone."""
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    folder = tmp_path_factory.mktemp("browser")
    jobs = [make_job(f"job-{n}", at=n * 3e3, work=5e3 + n * 37 % 400 * 1e3, gpus=1 + n % 5) for n in range(60)]
    cluster, journal = make_cluster(8, 4), HistoryJournal()
    simulate(jobs, cluster, Fifo(placement="best-fit"), journal=journal)
    history = journal.history(cluster)
    runs = [ReportRun(name, history, measure(history)) for name in POLICIES]
    write_report(folder / "report.html", runs, title="Ten policies", workload="sixty jobs", command="refold compare")
    frames = "".join(f'<iframe src="report.html" style="width:{w}px;border:0"></iframe>' for w in (DESKTOP, PHONE))
    page = f'<!doctype html>{frames}<pre id="found"></pre><script>{MEASURE}</script>'
    (folder / "frames.html").write_text(page, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *FILES, f"--user-data-dir={folder / 'profile'}"]
    address = (folder / "frames.html").as_uri()
    dumped = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True)
    match = re.search(r'<pre id="found">(.+?)</pre>', dumped.stdout)
    assert match is not None, dumped.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(unescape(match[1]))
    return found


def test_nothing_is_cut_off_or_scrolled_on_a_desktop(pages: list[dict[str, Any]]) -> None:
    desktop = pages[0]
    assert desktop["overflow"] <= 0
    assert {box["kind"] for box in desktop["boxes"]} == {"table", "chart"}
    assert [box for box in desktop["boxes"] if box["overflows"] or box["cue"]] == []


def test_on_a_phone_wide_charts_and_tables_are_scrolled_with_a_cue_and_keep_their_labels(
    pages: list[dict[str, Any]],
) -> None:
    phone = pages[1]
    assert phone["overflow"] <= 0
    assert {box["kind"] for box in phone["boxes"] if box["overflows"]} == {"table", "chart"}
    assert [box for box in phone["boxes"] if box["cue"] != box["overflows"] or not box["labels"]] == []
