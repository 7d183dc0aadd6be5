"""The report: complete, of one piece, and safe whatever jobs are called."""

from __future__ import annotations

import re
import sys
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
from refold.results import gantt
from refold.results.measures import measure
from refold.results.report import ReportRun, report_html, write_report
from refold.simulator import simulate
from refold.testing import make_cluster, make_job

EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(1)>'
SECTIONS = ("summary", "over-time", "distributions", "gpus", "fragmentation", "tenants", "sizes", "reproduce")
VOID = {"meta", "img", "br", "link", "input"}


def jobs(count: int = 60, *, name: str = "job", tenant: str = "team") -> list[Job]:
    return [
        make_job(f"{name}-{n}", at=n * 30.0, work=50.0 + n * 37 % 400, gpus=1 + n % 5, tenant=f"{tenant}-{n % 3}")
        for n in range(count)
    ]


def simulated(work: list[Job], cluster: Cluster, policies: tuple[Policy, ...] = ()) -> list[ReportRun]:
    runs = []
    for policy in policies or (Fifo(placement="best-fit"), Srtf(placement="best-fit")):
        journal = HistoryJournal()
        simulate(work, cluster, policy, journal=journal)
        history = journal.history(cluster)
        runs.append(ReportRun(policy.name, history, measure(history)))
    return runs


def report(runs: list[ReportRun], title: str = "A report") -> str:
    return report_html(runs, title=title, workload="sixty jobs", command="refold compare jobs.csv")


class Page(HTMLParser):
    """Every element of a page, and whether each was closed."""

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
    return report(simulated(jobs(), make_cluster(8, 4)))


def test_it_has_every_section_and_every_policy(page: str) -> None:
    found = {attributes.get("id") for tag, attributes in Page(page).tags if tag == "section"}
    assert found == set(SECTIONS)
    assert page.count("<svg") == 9
    for text in ("fifo", "srtf", "sixty jobs", "refold compare jobs.csv", "team-0", "2–4 GPUs"):
        assert text in page


def test_every_element_is_closed(page: str) -> None:
    assert Page(page).open == []


def test_it_needs_nothing_from_anywhere(page: str) -> None:
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    for tag, attributes in Page(page).tags:
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))


def test_it_is_the_same_every_time(page: str) -> None:
    assert report(simulated(jobs(), make_cluster(8, 4))) == page


def test_names_of_jobs_and_tenants_cannot_break_out() -> None:
    runs = simulated(jobs(name=EVIL, tenant=EVIL), make_cluster(8, 4))
    text = report([ReportRun(EVIL, run.history, run.measures) for run in runs], title=EVIL)
    assert "<script>alert" not in text and "<img" not in text
    found = Page(text)
    assert found.open == []
    # One script per figure with numbers, the jobs, and the page's own.
    assert sum(tag == "script" for tag, _ in found.tags) == 9
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


def test_jobs_that_did_not_finish_are_told_first_once_if_it_is_the_same_for_all(page: str) -> None:
    assert "did not finish" not in page and "<aside" not in page
    wide, strange = make_job("wide", gpus=9), make_job("strange", types=("H100",))
    text = report(simulated([wide, strange, *jobs(5)], make_cluster(8, 4)))
    told = "2 of 7 jobs did not finish (2 never started): 1 never fit: the cluster has A100 only · 1 never fit, even in"
    assert text.count(told) == 1
    assert text.index(told) < text.index('id="summary"')
    assert Page(text).open == []


def test_they_are_told_per_policy_where_policies_differ() -> None:
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
    said = "begun: 2 of 2 jobs did not finish: 2 still running at the end"
    assert text.count(said) == 1
    assert report_html(runs, title="t", workload="w", command="c", notes=[said]).count(said) == 1
    assert "ended: 1 of 2 jobs did not finish: 1 failed" in text


def test_notes_on_the_workload_are_passed_on() -> None:
    text = report_html(
        simulated(jobs(5), make_cluster(8)), title="t", workload="w", command="c", notes=["read <b>well</b>"]
    )
    assert "<li>read &lt;b&gt;well&lt;/b&gt;</li>" in text
    assert "did not finish" not in text


def test_policies_that_know_the_future_have_a_footnote(page: str) -> None:
    assert "</span>srtf †</th>" in page and "</span>fifo</th>" in page
    assert page.count("† knows how long jobs will take") == 1
    run = simulated(jobs(5), make_cluster(8))[0]
    named = [ReportRun(name, run.history, run.measures) for name in ("sjf/fgd", "srtf (simulated)", "mine/sjf")]
    text = report(named)
    assert "sjf/fgd †" in text and "srtf (simulated) †" in text and "mine/sjf †" not in text
    assert "†" not in report([run])


def test_many_runs_become_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "MOST_BLOCKS", 10)
    text = report(simulated(jobs(), make_cluster(8, 4)))
    assert text.count("data:image/png;base64,") == 2
    assert Page(text).open == []


def test_a_large_history_makes_a_page_of_a_few_megabytes() -> None:
    work = [
        make_job(f"job-{n}", at=n * 2.0, work=100.0 + n * 7919 % 900, gpus=1 + n % 8, tenant=f"t{n % 40}")
        for n in range(3100)
    ]
    runs = simulated(work, make_cluster(*[8] * 200), (Fifo(placement="best-fit"),))
    text = report(runs * 4)
    assert len(text) < 1_500_000
    assert "one GPU of 2 is drawn" in text


def test_one_policy_and_no_jobs_are_reports_too() -> None:
    empty = History.from_entries(make_cluster(2), ())
    cpu_only = History.from_entries(
        make_cluster(0), (step(0, submitted(make_job("a", gpus=0)), start("a", gpus=())), step(9, RunFinished("a", 1)))
    )
    waiting = History.from_entries(make_cluster(2), (step(5, submitted(make_job("a", at=5))),))
    for history in (empty, cpu_only, waiting):
        text = report([ReportRun("alone", history, measure(history))])
        assert Page(text).open == [] and not re.search(r"\bnan\b", text)


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(BadValue, match="at least one run"):
        report([])


def test_it_is_written_to_a_file(tmp_path: Path) -> None:
    runs = simulated(jobs(5), make_cluster(8))
    write_report(tmp_path / "report.html", runs, title="t", workload="w", command="c")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(BadFile, match="cannot be written"):
        write_report(tmp_path / "absent" / "report.html", runs, title="t", workload="w", command="c")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"the report needs an extra: pip install 'refold\[report\]'"):
        report(simulated(jobs(3), make_cluster(8)))
