"""Pages of ended jobs neither repeat nor skip jobs, even if jobs end meanwhile."""

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

from refold.client.api import JobsQuery
from refold.client.api.calls import ENDED_STATES
from refold.client.api.submissions import JobState
from refold.client.api.wire import Jobs, JobStatus
from refold.core import Entry
from refold.server.store.checksums import register
from refold.server.store.folder_lock import FILE_NAME
from refold.server.store.store import Commit, EndedJob, NewJob, Store
from refold.testing import make_job

STATES = sorted(ENDED_STATES)
assert set(STATES) < set(get_args(JobState))


class EndedJobsSetup:
    """A store to which ended jobs are added."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.written: list[JobStatus] = []

    def end(self, ended: float, name: str = "a", user: str = "ann", state: JobState = "finished") -> str:
        """Add an ended job; return its id."""
        number = len(self.written) + 1
        job = make_job(f"{name}-{number}", tenant="vision", user=user)
        status = JobStatus(job.id, name, state, "vision", user, "guaranteed", 0, "1", 1.0, 0.0, ended=ended)
        new = NewJob(number, name, job, "", {})
        self.store.commit(Commit(2 * number - 1, Entry(0.0), jobs=[new]))
        self.store.commit(Commit(2 * number, Entry(0.0), ended=[EndedJob(status, None)]))
        self.written.append(status)
        return job.id

    def page(self, limit: int = 100, after: int = 0, **which: Any) -> Jobs:
        return self.store.reader.ended_jobs(JobsQuery(limit=limit, after=after, **which))


@contextmanager
def ended_jobs_setup() -> Iterator[EndedJobsSetup]:
    with tempfile.TemporaryDirectory() as folder:
        setup = EndedJobsSetup(Path(folder))
        with setup.store:
            yield setup


def ids(page: Jobs) -> list[str]:
    return [job.id for job in page.jobs]


def test_the_latest_jobs_come_first_and_a_page_names_the_next() -> None:
    with ended_jobs_setup() as setup:
        for ended in (5.0, 9.0, 7.0, 9.0):
            setup.end(ended)
        first = setup.page(limit=3)
        assert (ids(first), first.total, first.next) == (["a-4", "a-2", "a-3"], 4, 3)
        assert setup.page(limit=3, after=3) == Jobs([setup.written[0]], 4)
        assert setup.page(limit=4) == Jobs([setup.written[index] for index in (3, 1, 2, 0)], 4)


@pytest.mark.parametrize("after", [99, 1])
def test_a_page_after_an_active_job_is_empty(after: int) -> None:
    with ended_jobs_setup() as setup:
        setup.store.commit(Commit(9, Entry(0.0), jobs=[NewJob(1, "a", make_job("a-1"), "", {})]))
        assert setup.page(after=after) == Jobs([], 0)


end_times = st.integers(0, 3).map(float)


@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(st.tuples(end_times, st.sampled_from("ab"), st.sampled_from(STATES)), max_size=12),
    ended_meanwhile=st.lists(st.sampled_from("ab"), max_size=8),
    limit=st.integers(1, 4),
    which=st.sampled_from([{}, {"name": "a"}, {"state": ["failed"]}, {"name": "b", "user": "ann", "tenant": "vision"}]),
)
def test_pages_neither_repeat_nor_skip_jobs_while_others_end(
    before: list[tuple[float, str, JobState]], ended_meanwhile: list[str], limit: int, which: dict[str, Any]
) -> None:
    with ended_jobs_setup() as setup:
        for ended, name, state in before:
            setup.end(ended, name, state=state)
        expected = [
            job
            for job in sorted(setup.written, key=lambda job: (job.ended, int(job.id[2:])), reverse=True)
            if which.get("name", job.name) == job.name and job.state in which.get("state", STATES)
        ]
        page = setup.page(limit, **which)
        assert page.total == len(expected)
        found = page.jobs
        while page.next is not None:
            if ended_meanwhile:
                setup.end(100.0, ended_meanwhile.pop(), state="failed")
            page = setup.page(limit, page.next, **which)
            found = [*found, *page.jobs]
        assert found == expected


def test_counts_of_ended_jobs_stay_correct() -> None:
    with ended_jobs_setup() as setup:
        for number in range(12):
            setup.end(1.0, "ab"[number % 2], ("ann", "bob")[number % 3 == 0], STATES[number % 3])
        kinds = Counter((job.name, job.user, job.state) for job in setup.written)
        found = {kind: setup.page(name=kind[0], user=kind[1], state=[kind[2]]).total for kind in kinds}
        assert found == kinds
        with sqlite3.connect(setup.store.folder / FILE_NAME) as other:
            register(other)
            other.execute("DELETE FROM jobs WHERE name = 'a'")
        other.close()
        assert (setup.page().total, setup.page(name="a")) == (6, Jobs([], 0))


def test_pages_use_an_index_instead_of_sorting() -> None:
    with ended_jobs_setup() as setup:
        plans: list[str] = []
        reader = setup.store._read_connections._slow
        reader.set_trace_callback(plans.append)
        for which in ({}, {"name": "a"}, {"user": "ann"}, {"tenant": "vision"}, {"state": ["failed"]}):
            setup.page(after=1, **which)
        reader.set_trace_callback(None)
        pages = [query for query in plans if "ORDER BY" in query]
        assert len(pages) == 5
        for query in pages:
            steps = [row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert not any("TEMP B-TREE" in step or step.startswith("SCAN") for step in steps), (query, steps)


def test_secrets_are_erased_from_disk_when_their_job_ends(tmp_path: Path) -> None:
    secret = "secret-value"
    with Store(tmp_path) as store:
        job = make_job("a-1")
        store.commit(Commit(1, Entry(0.0), jobs=[NewJob(1, "a", job, "", {"KEY": secret})]))
        assert store.reader.secrets("a-1") == {"KEY": secret}
        status = JobStatus("a-1", "a", "finished", "default", "", "guaranteed", 0, "1", 1.0, 0.0, ended=1.0)
        store.commit(Commit(2, Entry(0.0), ended=[EndedJob(status, 1.0)]))
    assert [path.name for path in tmp_path.iterdir() if secret.encode() in path.read_bytes()] == []
