"""The HTML report is complete, self-contained, and escapes all names."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from journals import start, step, submitted

from refold.core import Policy
from refold.core.events import RunFailed, RunFinished
from refold.errors import BadFile, BadValue, MissingExtra
from refold.journal.history import History, HistoryJournal
from refold.model import Cluster, Job
from refold.policies.queueing.fifo import Fifo
from refold.policies.queueing.srtf import Srtf
from refold.simulator import simulate
from refold.simulator.results import gantt
from refold.simulator.results.figures import ReportRun
from refold.simulator.results.measures import measure
from refold.simulator.results.report import report_html, write_report
from refold.testing import make_cluster, make_job

INJECTION = '</script><script>alert("1")</script><img src=x onerror=alert(1)>'
SECTIONS = ("summary", "over-time", "distributions", "gpus", "fragmentation", "tenants", "sizes", "reproduce")
VOID = {"meta", "img", "br", "link", "input"}


def make_jobs(count: int = 60, *, name: str = "job", tenant: str = "team") -> list[Job]:
    return [
        make_job(f"{name}-{n}", at=n * 30.0, work=50.0 + n * 37 % 400, gpus=1 + n % 5, tenant=f"{tenant}-{n % 3}")
        for n in range(count)
    ]


def simulate_policies(work: list[Job], cluster: Cluster, policies: tuple[Policy, ...] = ()) -> list[ReportRun]:
    runs = []
    for policy in policies or (Fifo(placement="best-fit"), Srtf(placement="best-fit")):
        journal = HistoryJournal()
        simulate(work, cluster, policy, journal=journal)
        history = journal.history(cluster)
        runs.append(ReportRun(policy.name, history, measure(history), is_oracle=isinstance(policy, Srtf)))
    return runs


def report(runs: list[ReportRun], title: str = "A report") -> str:
    return report_html(runs, title=title, workload="sixty jobs", command="refold compare jobs.csv")


class Page(HTMLParser):
    """Parses a page, records its elements, and checks that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return report(simulate_policies(make_jobs(), make_cluster(8, 4)))


def test_the_report_has_all_sections_and_policies(page: str) -> None:
    sections = {attributes.get("id") for tag, attributes in Page(page).tags if tag == "section"}
    assert sections == set(SECTIONS)
    assert page.count("<svg viewBox") == 2 * 9  # charts and their row labels
    for text in ("fifo", "srtf", "sixty jobs", "refold compare jobs.csv", "team-0", "2–4 GPUs"):
        assert text in page


def test_every_element_is_closed(page: str) -> None:
    assert Page(page).open == []


def test_the_report_loads_no_external_resources(page: str) -> None:
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    for tag, attributes in Page(page).tags:
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))


def test_only_the_script_of_the_report_may_run(page: str) -> None:
    policy = next(attributes["content"] for tag, attributes in Page(page).tags if "http-equiv" in attributes) or ""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"script-src ([^;]*);", policy) == [" ".join(f"'sha256-{found}'" for found in hashes)]
    assert len(hashes) == 1


def test_the_report_is_deterministic(page: str) -> None:
    assert report(simulate_policies(make_jobs(), make_cluster(8, 4))) == page


def test_names_of_jobs_tenants_and_policies_are_escaped() -> None:
    runs = simulate_policies(make_jobs(name=INJECTION, tenant=INJECTION), make_cluster(8, 4))
    text = report([ReportRun(INJECTION, run.history, run.measures) for run in runs], title=INJECTION)
    assert "<script>alert" not in text and "<img" not in text
    parsed = Page(text)
    assert parsed.open == []
    # One script per figure with data, one with the jobs, and the script of the page.
    assert sum(tag == "script" for tag, _ in parsed.tags) == 9
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)


def test_unfinished_jobs_are_described_at_the_top_once_if_equal_for_all_policies(page: str) -> None:
    assert "did not finish" not in page and "<aside" not in page
    wide, other_type = make_job("wide", gpus=9), make_job("other-type", types=("H100",))
    text = report(simulate_policies([wide, other_type, *make_jobs(5)], make_cluster(8, 4)))
    message = (
        "2 of 7 jobs did not finish (2 never started): 1 can never fit: the cluster has only A100"
        " · 1 can never fit, even on the empty cluster"
    )
    assert text.count(message) == 1
    assert text.index(message) < text.index('id="summary"')
    assert Page(text).open == []


def test_unfinished_jobs_are_described_per_policy_if_policies_differ() -> None:
    begun = (step(0, submitted(make_job("a")), submitted(make_job("b")), start("a"), start("b", gpus=(1,))),)
    ended = (*begun, step(9, RunFinished("a", 1), RunFailed("b", 1)))
    runs = [
        ReportRun(name, history, measure(history))
        for name, history in (
            ("begun", History.from_entries(make_cluster(2), begun)),
            ("ended", History.from_entries(make_cluster(2), ended)),
        )
    ]
    text = report(runs)
    message = "begun: 2 of 2 jobs did not finish: 2 still running at the end"
    assert text.count(message) == 1
    assert report_html(runs, title="t", workload="w", command="c", notes=[message]).count(message) == 1
    assert "ended: 1 of 2 jobs did not finish: 1 failed" in text


def test_notes_about_the_workload_are_shown() -> None:
    text = report_html(
        simulate_policies(make_jobs(5), make_cluster(8)), title="t", workload="w", command="c", notes=["a <b>note</b>"]
    )
    assert "<li>a &lt;b&gt;note&lt;/b&gt;</li>" in text
    assert "did not finish" not in text


def test_policies_that_know_run_times_have_a_footnote(page: str) -> None:
    assert "</span>srtf †</th>" in page and "</span>fifo</th>" in page
    assert page.count("† knows run times in advance") == 1
    run = simulate_policies(make_jobs(5), make_cluster(8))[0]
    names = ("srtf, all preemptible", "my oracle")
    named = [ReportRun(name, run.history, run.measures, is_oracle=True) for name in names]
    text = report([*named, ReportRun("mine/sjf", run.history, run.measures)])
    assert "srtf, all preemptible †" in text and "my oracle †" in text and "mine/sjf †" not in text
    assert "†" not in report([run])


def test_headline_cards_leave_out_policies_that_know_run_times() -> None:
    runs = simulate_policies(make_jobs(), make_cluster(8, 4))
    assert [run.name for run in runs] == ["fifo", "srtf"]
    assert all("srtf" not in card for card in cards(report(runs)))
    only_oracles = [
        ReportRun(name, run.history, run.measures, is_oracle=True)
        for name, run in zip(("sjf", "srtf"), runs, strict=True)
    ]
    assert all(re.search("<b>((srtf|sjf) †|all policies)</b>", card) for card in cards(report(only_oracles)))
    assert any(re.search("<b>(srtf|sjf) †</b>", card) for card in cards(report(only_oracles)))


def cards(text: str) -> list[str]:
    found = re.findall('<div class="panel card">(.*?)</div>', text, re.DOTALL)
    assert len(found) == 4
    return found


def test_gantt_charts_with_many_blocks_are_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "MAX_BLOCKS", 10)
    text = report(simulate_policies(make_jobs(), make_cluster(8, 4)))
    assert text.count("data:image/png;base64,") == 2
    assert Page(text).open == []


def test_the_report_of_a_large_history_is_smaller_than_1_5_megabytes() -> None:
    work = [
        make_job(f"job-{n}", at=n * 2.0, work=100.0 + n * 7919 % 900, gpus=1 + n % 8, tenant=f"t{n % 40}")
        for n in range(3100)
    ]
    runs = simulate_policies(work, make_cluster(*[8] * 200), (Fifo(placement="best-fit"),))
    text = report(runs * 4)
    assert len(text) < 1_500_000
    assert "1 of every 2 GPUs is drawn" in text


def test_reports_of_one_policy_without_finished_jobs_or_gpus_are_valid() -> None:
    empty = History.from_entries(make_cluster(2), ())
    cpu_only = History.from_entries(
        make_cluster(0), (step(0, submitted(make_job("a", gpus=0)), start("a", gpus=())), step(9, RunFinished("a", 1)))
    )
    waiting = History.from_entries(make_cluster(2), (step(5, submitted(make_job("a", at=5))),))
    for history in (empty, cpu_only, waiting):
        text = report([ReportRun("alone", history, measure(history))])
        assert Page(text).open == [] and not re.search(r"\bnan\b", text)


def test_a_report_without_runs_is_rejected() -> None:
    with pytest.raises(BadValue, match="at least one run"):
        report([])


def test_the_report_is_written_to_a_file(tmp_path: Path) -> None:
    runs = simulate_policies(make_jobs(5), make_cluster(8))
    write_report(tmp_path / "report.html", runs, title="t", workload="w", command="c")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(BadFile, match="cannot be written"):
        write_report(tmp_path / "absent" / "report.html", runs, title="t", workload="w", command="c")


def test_the_error_for_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"the report needs an optional dependency: pip install '\.\[report\]'"):
        report(simulate_policies(make_jobs(3), make_cluster(8)))


def test_a_report_of_many_jobs_stays_small(tmp_path: Path) -> None:
    cluster, journal = make_cluster(*[8] * 200), HistoryJournal()
    jobs = [make_job(f"job-{n}", at=n * 5.0, work=60.0 + n % 977, tenant=f"tenant-{n % 700}") for n in range(13_000)]
    simulate(jobs, cluster, Fifo(), journal=journal)
    history = journal.history(cluster)
    run = ReportRun("fifo", history, measure(history))
    sizes = [len(report([run] * count)) for count in (1, 3)]
    assert len(history.runs) > gantt.MAX_BLOCKS
    assert max(sizes) < 5e6
    assert "job-7000" not in report([run])
