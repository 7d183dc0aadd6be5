"""What is over is read in pages: nobody comes twice, nobody is left out, whatever ends meanwhile."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from refold.api.calls import OVER
from refold.api.wire import Jobs, JobState, JobStatus
from refold.core import Entry
from refold.server.store.store import NAME, Commit, EndedJob, NewJob, Store
from refold.testing import make_job

ENDS = sorted(OVER)
assert set(ENDS) < set(get_args(JobState))


class Books:
    """A store into which jobs come and are over at once."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.written: list[JobStatus] = []

    def end(self, ended: float, name: str = "a", user: str = "ann", state: JobState = "finished") -> str:
        """One more that is over; its id."""
        number = len(self.written) + 1
        job = make_job(f"{name}-{number}", tenant="vision", user=user)
        status = JobStatus(job.id, name, state, "vision", user, "guaranteed", 0, "1", 1.0, 0.0, ended=ended)
        new = NewJob(number, name, job, "", {})
        self.store.commit(Commit(2 * number - 1, Entry(0.0), jobs=[new]))
        self.store.commit(Commit(2 * number, Entry(0.0), ended=[EndedJob(status, None)]))
        self.written.append(status)
        return job.id

    def page(self, limit: int = 100, after: int = 0, **which: Any) -> Jobs:
        asked = {"states": [], "tenant": "", "user": "", "name": "", **which}
        return self.store.reading.ended(limit=limit, after=after, **asked)


@contextmanager
def books() -> Iterator[Books]:
    with tempfile.TemporaryDirectory() as folder:
        made = Books(Path(folder))
        with made.store:
            yield made


def ids(page: Jobs) -> list[str]:
    return [job.id for job in page.jobs]


def test_the_latest_come_first_and_a_page_tells_where_the_next_begins() -> None:
    with books() as some:
        for ended in (5.0, 9.0, 7.0, 9.0):
            some.end(ended)
        first = some.page(limit=3)
        assert (ids(first), first.total, first.next) == (["a-4", "a-2", "a-3"], 4, 3)
        assert some.page(limit=3, after=3) == Jobs([some.written[0]], 4)
        assert some.page(limit=4) == Jobs([some.written[index] for index in (3, 1, 2, 0)], 4)


@pytest.mark.parametrize("after", [99, 1])
def test_after_a_job_that_is_not_over_nothing_comes(after: int) -> None:
    with books() as some:
        some.store.commit(Commit(9, Entry(0.0), jobs=[NewJob(1, "a", make_job("a-1"), "", {})]))
        assert some.page(after=after) == Jobs([], 0)


moments = st.integers(0, 3).map(float)


@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(st.tuples(moments, st.sampled_from("ab"), st.sampled_from(ENDS)), max_size=12),
    meanwhile=st.lists(st.sampled_from("ab"), max_size=8),
    limit=st.integers(1, 4),
    which=st.sampled_from(
        [{}, {"name": "a"}, {"states": ["failed"]}, {"name": "b", "user": "ann", "tenant": "vision"}]
    ),
)
def test_pages_neither_repeat_nor_leave_out_whatever_ends_meanwhile(
    before: list[tuple[float, str, JobState]], meanwhile: list[str], limit: int, which: dict[str, Any]
) -> None:
    with books() as some:
        for ended, name, state in before:
            some.end(ended, name, state=state)
        expected = [
            job
            for job in sorted(some.written, key=lambda job: (job.ended, int(job.id[2:])), reverse=True)
            if which.get("name", job.name) == job.name and job.state in which.get("states", ENDS)
        ]
        page = some.page(limit, **which)
        assert page.total == len(expected)
        found = page.jobs
        while page.next is not None:
            if meanwhile:
                some.end(100.0, meanwhile.pop(), state="failed")
            page = some.page(limit, page.next, **which)
            found = [*found, *page.jobs]
        assert found == expected


def test_how_many_are_over_is_kept_with_them() -> None:
    with books() as some:
        for number in range(12):
            some.end(1.0, "ab"[number % 2], ("ann", "bob")[number % 3 == 0], ENDS[number % 3])
        kinds = Counter((job.name, job.user, job.state) for job in some.written)
        found = {kind: some.page(name=kind[0], user=kind[1], states=[kind[2]]).total for kind in kinds}
        assert found == kinds
        with sqlite3.connect(some.store.folder / NAME) as other:
            other.execute("DELETE FROM jobs WHERE name = 'a'")
        other.close()
        assert (some.page().total, some.page(name="a")) == (6, Jobs([], 0))


def test_no_page_is_made_by_sorting_all_that_is_over() -> None:
    with books() as some:
        plans: list[str] = []
        reader = some.store.reading._slow_reader
        reader.set_trace_callback(plans.append)
        for which in ({}, {"name": "a"}, {"user": "ann"}, {"tenant": "vision"}, {"states": ["failed"]}):
            some.page(after=1, **which)
        reader.set_trace_callback(None)
        pages = [query for query in plans if "ORDER BY" in query]
        assert len(pages) == 5
        for query in pages:
            steps = [row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert not any("TEMP B-TREE" in step or step.startswith("SCAN") for step in steps), (query, steps)


def test_a_secret_is_in_none_of_the_files_once_its_job_is_over(tmp_path: Path) -> None:
    secret = "rather-not-told"
    with Store(tmp_path) as store:
        job = make_job("a-1")
        store.commit(Commit(1, Entry(0.0), jobs=[NewJob(1, "a", job, "", {"KEY": secret})]))
        assert store.reading.secrets("a-1") == {"KEY": secret}
        status = JobStatus("a-1", "a", "finished", "default", "", "guaranteed", 0, "1", 1.0, 0.0, ended=1.0)
        store.commit(Commit(2, Entry(0.0), ended=[EndedJob(status, 1.0)]))
    assert [path.name for path in tmp_path.iterdir() if secret.encode() in path.read_bytes()] == []
