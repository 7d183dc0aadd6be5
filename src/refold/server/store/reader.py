"""Read jobs, events, tokens and other values from the store."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from refold.client.api import Event, Jobs, JobsQuery, JobStatus
from refold.core import PastJob
from refold.model import MAX_ARRAY_TASKS, Job, MiB, Seconds, task_id
from refold.server.http import StoredToken
from refold.server.store.journal_reader import JournalReader, ReadConnections

_JOB = msgspec.json.Decoder(Job)
_STATUS = msgspec.json.Decoder(JobStatus)

_ARRAY = re.compile(r"(?:.*-)?(\d{1,17})", re.ASCII)
_TASK = re.compile(r"(\d{1,17})_(\d{1,7})", re.ASCII)

ACTIVE = ""
"""State of a job that has not ended, in the store."""

_OF_ARRAY = "FROM jobs WHERE number BETWEEN ? AND ? AND substr(id, 1, ?) = ?"

MAX_JOB_EVENTS = 1000
"""Events of a job that are shown: the latest."""

EVENT_COLUMNS = "number, at, kind, job, run, text, tenant"


class EnvironmentRow(NamedTuple):
    """The environment of a submitter, and its user."""

    user: str
    variables: dict[str, str]


class EndedRow(msgspec.Struct, frozen=True):
    """An ended job and its position in the order of ended jobs: end time, then number."""

    id: str
    ended: float
    number: int


class GroupUsage(NamedTuple):
    """What one ended job has used. `run_time`: of all its runs; None: not known."""

    workload: str
    runs: int
    instances: int
    peak_memory_mib: MiB | None
    cpu_seconds: Seconds | None
    run_time: Seconds | None


class StoreReader:
    """Queries on the store, from any thread. Each query sees one consistent state.

    `ended_jobs`, `ended_before` and `past_jobs` may take long: call them in a thread.
    """

    def __init__(self, connections: ReadConnections) -> None:
        self.journal = JournalReader(connections)
        self._fast = connections.fast
        self._query_slow = connections.query_slow

    def read_meta(self, key: str, type_: Any) -> Any:
        """Return a stored value, or None."""
        row = self._fast.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=type_)

    def last_numbers(self) -> tuple[int, int]:
        query = "SELECT (SELECT coalesce(max(number), 0) FROM jobs), (SELECT coalesce(max(number), 0) FROM events)"
        job, event = self._fast.execute(query).fetchone()
        return job, event

    def active_jobs(self) -> int:
        """Return the number of jobs that have not ended."""
        query = "SELECT (SELECT count(*) FROM jobs) - (SELECT coalesce(sum(jobs), 0) FROM ended_counts)"
        return int(self._fast.execute(query).fetchone()[0])

    def job_of_request(self, request: str) -> str | None:
        """Return the id of the job that a request created, or None."""
        row = self._fast.execute("SELECT id FROM jobs WHERE request=?", (request,)).fetchone()
        return None if row is None else row[0]

    def find_job_ids(self, name: str) -> list[str]:
        """Return the ids of jobs with this id, number ('12', '12_3') or name, latest first; two at most."""
        if task := _TASK.fullmatch(name):
            name = task_id(self._array_id(int(task[1])), int(task[2]))
        number = int(name) if name.isdecimal() and len(name) < 18 else -1
        rows = self._fast.execute("SELECT id FROM jobs WHERE id=? OR number=? LIMIT 1", (name, number)).fetchall()
        if not rows:
            rows = self._fast.execute(
                "SELECT id FROM jobs WHERE name=? ORDER BY number DESC LIMIT 2", (name,)
            ).fetchall()
        return [job_id for (job_id,) in rows]

    def array_jobs(self, name: str) -> list[str]:
        """Return the ids of the tasks of the array with this id or number; none if there is no such array."""
        match = _ARRAY.fullmatch(name)
        array_id = self._array_id(int(match[1])) if match else ""
        if match is None or not array_id or name not in (array_id, match[1]):
            return []
        rows = self._fast.execute(f"SELECT id {_OF_ARRAY} ORDER BY number", _array_values(array_id)).fetchall()
        return [job_id for (job_id,) in rows]

    def array_states(self, array_id: str) -> frozenset[str]:
        """Return the states of the tasks of an array: those of ended jobs, or ACTIVE."""
        rows = self._fast.execute(f"SELECT DISTINCT state {_OF_ARRAY}", _array_values(array_id)).fetchall()
        return frozenset(state for (state,) in rows)

    def _array_id(self, number: int) -> str:
        row = self._fast.execute("SELECT name FROM jobs WHERE number=?", (number,)).fetchone()
        return "" if row is None else f"{row[0]}-{number}"

    def latest_ids(self, count: int) -> list[str]:
        """Return the ids of the latest jobs."""
        rows = self._fast.execute("SELECT id FROM jobs ORDER BY number DESC LIMIT ?", (count,)).fetchall()
        return [job_id for (job_id,) in rows]

    def ended_job(self, job_id: str) -> JobStatus | None:
        """Return the status of an ended job; None if it has not ended."""
        row = self._fast.execute("SELECT status, job FROM jobs WHERE id=?", (job_id,)).fetchone()
        return None if row is None or row[0] is None else _ended_status(*row)

    def ended_jobs(self, query: JobsQuery) -> Jobs:
        """Return a page of ended jobs, latest first.

        The order of ended jobs never changes, so pages neither repeat nor skip jobs while others end.
        """
        states, after, limit = query.state or [], query.after, query.limit
        conditions = [("tenant=?", [query.tenant]), ("user=?", [query.user]), ("name=?", [query.name])]
        conditions.append((f"state IN ({','.join('?' * len(states))})", [*states]))
        filters = [(text, values) for text, values in conditions if any(values)]
        where, values = [text for text, _ in filters], [value for _, values in filters for value in values]
        count = f"SELECT coalesce(sum(jobs), 0) FROM ended_counts WHERE {' AND '.join([*where, 'jobs > 0'])}"
        if after:
            where.append("(ended, number) < (SELECT ended, number FROM jobs WHERE number=?)")
        page = (
            f"SELECT number, status, job FROM jobs WHERE {' AND '.join([*where, 'ended IS NOT NULL'])}"
            " ORDER BY ended DESC, number DESC LIMIT ?"
        )
        start = [after] if after else []
        [(total,)], rows = self._query_slow((count, values), (page, [*values, *start, limit + 1]))
        shown = rows[:limit]
        return Jobs([_ended_status(*row[1:]) for row in shown], total, shown[-1][0] if len(rows) > limit else None)

    def ended_before(self, moment: float, after: EndedRow | None, limit: int) -> list[EndedRow]:
        """Return up to `limit` jobs that ended by `moment`, in order of their end, starting after the row `after`."""
        position = (after.ended, after.number) if after is not None else (float("-inf"), 0)
        query = (
            "SELECT id, ended, number FROM jobs WHERE ended IS NOT NULL AND ended <= ? AND (ended, number) > (?, ?)"
            " ORDER BY ended, number LIMIT ?"
        )
        return [EndedRow(*row) for row in self._query_slow((query, (moment, *position, limit)))[0]]

    def past_jobs(self, limit: int) -> list[PastJob]:
        """Return the latest jobs that finished or failed, in order of their end."""
        query = (
            "SELECT job, run_time FROM (SELECT job, run_time, ended FROM jobs WHERE ended IS NOT NULL"
            " AND run_time IS NOT NULL ORDER BY ended DESC LIMIT ?) ORDER BY ended"
        )
        (rows,) = self._query_slow((query, (limit,)))
        return [PastJob(_JOB.decode(job), run_time) for job, run_time in rows]

    def ran_jobs(self, limit: int) -> list[PastJob]:
        """Return those of the latest ended jobs that ran, in order of their end, also those that were cut short.

        Of the latter, the time from their first start counts as run time: it is what others had to wait for.
        """
        query = (
            "SELECT job, run_time, status FROM (SELECT job, run_time, status, ended FROM jobs"
            " WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?) ORDER BY ended"
        )
        (rows,) = self._query_slow((query, (limit,)))
        ran = []
        for job, run_time, encoded in rows:
            status = _STATUS.decode(encoded)
            if run_time is not None:
                ran.append(PastJob(_JOB.decode(job), run_time))
            elif status.started is not None and status.ended is not None:
                ran.append(PastJob(_JOB.decode(job), max(status.ended - status.started, 0.0)))
        return ran

    def group_usage(self, job: Job, limit: int) -> list[GroupUsage]:
        """Return what the latest ended jobs with the name, tenant and user of a job have used."""
        query = (
            "SELECT job, status, run_time FROM jobs WHERE name=? AND tenant=? AND user=? AND ended IS NOT NULL"
            " ORDER BY ended DESC LIMIT ?"
        )
        rows = self._fast.execute(query, (job.group, job.tenant, job.user, limit)).fetchall()
        return [_group_usage(_JOB.decode(stored), _STATUS.decode(status), time) for stored, status, time in rows]

    def job_events(self, job_id: str) -> list[Event]:
        """Return the latest events of a job, in order."""
        rows = self._fast.execute(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE job=? ORDER BY number DESC LIMIT ?", (job_id, MAX_JOB_EVENTS)
        ).fetchall()
        return [Event(*row) for row in reversed(rows)]

    def latest_events(self, limit: int) -> list[Event]:
        """Return the latest events, in order."""
        rows = self._fast.execute(
            f"SELECT {EVENT_COLUMNS} FROM events ORDER BY number DESC LIMIT ?", (limit,)
        ).fetchall()
        return [Event(*row) for row in reversed(rows)]

    def secrets(self, job_id: str) -> dict[str, str]:
        row = self._fast.execute("SELECT variables FROM secrets WHERE job=?", (job_id,)).fetchone()
        return {} if row is None else msgspec.json.decode(row[0], type=dict[str, str])

    def environment(self, environment_id: str) -> EnvironmentRow | None:
        """Return a stored environment; None if it is not stored."""
        row = self._fast.execute("SELECT user, variables FROM environments WHERE id=?", (environment_id,)).fetchone()
        return None if row is None else EnvironmentRow(row[0], msgspec.json.decode(row[1], type=dict[str, str]))

    def tokens(self) -> list[StoredToken]:
        rows = self._fast.execute("SELECT name, role, tenant, user, created, hash FROM tokens ORDER BY created, name")
        return [StoredToken(*row) for row in rows.fetchall()]


def _group_usage(job: Job, status: JobStatus, run_time: Seconds | None) -> GroupUsage:
    instances = job.demand.instances
    return GroupUsage(job.workload, status.runs, instances, status.peak_memory_mib, status.cpu_seconds, run_time)


def _array_values(array_id: str) -> tuple[int, int, int, str]:
    """Return the values of the placeholders in `_OF_ARRAY`."""
    prefix, first = task_id(array_id, 0)[:-1], int(array_id.rpartition("-")[2])
    return first, first + MAX_ARRAY_TASKS - 1, len(prefix), prefix


def with_launch(status: JobStatus, job: Job) -> JobStatus:
    """Return the status of a job with what it runs."""
    names = [name for name, _ in job.launch.environment]
    return msgspec.structs.replace(status, command=list(job.command), folder=job.launch.folder, variables=names)


def without_launch(status: JobStatus) -> JobStatus:
    """Return a status without what the job runs, which is stored with the job."""
    return msgspec.structs.replace(status, command=[], folder="", variables=[])


def _ended_status(status: bytes, job: bytes) -> JobStatus:
    return with_launch(_STATUS.decode(status), _JOB.decode(job))
