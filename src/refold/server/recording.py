"""`refold show`: a journal as the web UI shows it, with times from which the page derives states, and its server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from refold import journal
from refold.client.api import Caller
from refold.core import Entry, JobSubmitted, RunAdopted, RunProgressed
from refold.errors import Forbidden
from refold.model import WHOLE, Cluster, Demand, Job, Seconds, consent_of, run_plan
from refold.placement import FreeResources
from refold.server.http import Api, Page, Reply, Sessions, TokenAuthenticator, user_subject
from refold.server.job_table import JobTable, Notice
from refold.server.listeners import format_address, open_tcp_listener
from refold.server.network import ConnectionLimits, ConnectionTable, make_http_server
from refold.server.web import WebFiles

MAX_PROGRESS_REPORTS = 200
"""Reports of one job that are kept; of more, every other one."""


class RecordedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    gpus: int
    gpu_type: str = ""
    rack: str = ""
    domains: dict[str, str] = {}


class RecordedTenant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant of the cluster: its quota and limit of GPUs, 0 if it has none."""

    name: str
    quota_gpus: float = 0.0
    limit_gpus: float = 0.0


class RecordedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run. `placement`: triples of the index of a node, its GPUs, and the share of each."""

    number: int
    start: Seconds
    placement: list[tuple[int, list[int], float]]
    gpus: float
    started: Seconds | None = None
    stop: Seconds | None = None
    end: Seconds | None = None
    ending: str = ""
    plan: str = ""


class RecordedJob(msgspec.Struct, omit_defaults=True):
    """A job. What changes while it exists is a list of tuples, each of which begins with the time.

    `holds`: reason, '' when it was released. `waits`: reason and its text. `estimates`: start, soonest, latest.
    `progress`: steps, loss, samples per second. `warnings`: why a run was flagged. `events`: kind, run, text.
    `fits`: it fits the empty cluster. `outcome`: its state since it has `ended`, with `message` and `exit_code`.
    """

    id: str
    name: str
    tenant: str
    submitted: Seconds
    demand: str
    gpus: float
    user: str = ""
    job_class: str = ""
    priority: int = 0
    steps: int | None = None
    time_limit: Seconds | None = None
    instances: int = 1
    array: str = ""
    preemptible: bool = False
    consent: str = ""
    fits: bool = True
    ended: Seconds | None = None
    outcome: str = ""
    message: str = ""
    exit_code: int | None = None
    cpu_seconds: float | None = None
    peak_memory_mib: int | None = None
    runs: list[RecordedRun] = []
    holds: list[tuple[Seconds, str]] = []
    waits: list[tuple[Seconds, str, str]] = []
    estimates: list[tuple[Seconds, Seconds, Seconds | None, Seconds | None]] = []
    progress: list[tuple[Seconds, int | None, float | None, float | None]] = []
    warnings: list[tuple[Seconds, str]] = []
    events: list[tuple[Seconds, str, int, str]] = []


class RecordedNodeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node, or one of its GPUs, went up or down."""

    at: Seconds
    node: int
    up: bool
    gpu: int | None = None
    drained: bool = False
    why: str = ""


class Recording(msgspec.Struct, frozen=True):
    """A whole journal. Times are seconds since it began; Unix times if they are large. `entries`: how many it has."""

    name: str
    cluster: str
    policy: str
    since: Seconds
    until: Seconds
    entries: int
    nodes: list[RecordedNode]
    tenants: list[RecordedTenant]
    jobs: list[RecordedJob]
    node_changes: list[RecordedNodeChange]
    events: list[tuple[Seconds, str, str]]
    """Of nodes and GPUs: kind and text."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)


def read_recording(path: Path) -> Recording:
    """Read a journal, with all of its epochs."""
    epochs = journal.read_united_epochs(path)
    reader = _RecordingReader(epochs[-1].cluster)
    for epoch in epochs:
        reader.read_epoch(epoch)
    return reader.recording(path.name, epochs[-1].header.policy)


class _JobNotes:
    """A job while the journal is read: its record, which changes, and what the record does not keep."""

    def __init__(self, record: journal.JobRecord, recorded: RecordedJob) -> None:
        self.record = record
        self.recorded = recorded
        self.runs: list[journal.RunRecord] = []


class _RecordingReader:
    """Folds the entries of a journal."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._table = JobTable(cluster)
        self._empty = FreeResources(cluster)
        self._fits: dict[Demand, bool] = {}
        self._infeasible: set[str] = set()
        self._jobs: list[_JobNotes] = []
        self._latest: dict[str, _JobNotes] = {}
        self._node_changes: list[RecordedNodeChange] = []
        self._events: list[tuple[Seconds, str, str]] = []
        self._missing: set[tuple[int, int | None]] = set()
        self._times: list[Seconds] = []
        self._entries = 0

    def read_epoch(self, epoch: journal.Epoch) -> None:
        for number, entry in enumerate(epoch.entries):
            if number == 0:
                self._begin(epoch, entry)
            self._read(entry)
            self._entries += 1

    def _begin(self, epoch: journal.Epoch, first: Entry) -> None:
        """End runs that the epoch does not continue; add and remove nodes."""
        adopted = {event.job for event in first.events if isinstance(event, RunAdopted)}
        self._note_events(first.now, self._table.lose_runs_except(adopted, first.now))
        for change in journal.membership_changes(first.now, self._missing, epoch.missing):
            self._note_change(first.now, change)
        self._missing = epoch.missing

    def _read(self, entry: Entry) -> None:
        now = entry.now
        self._times = [self._times[0] if self._times else now, now]
        for event in entry.events:
            if isinstance(event, JobSubmitted) and not self._fits_when_empty(event.job):
                self._infeasible.add(event.job.id)
        changes, notices = self._table.apply(entry, self._infeasible)
        for change in changes:
            self._note_change(now, change)
        self._note_events(now, notices)
        for event in entry.events:
            if isinstance(event, RunProgressed):
                self._note_progress(now, event)
        for wait in entry.waits:
            if (notes := self._latest.get(wait.job)) is not None:
                _append(notes.recorded.waits, (now, wait.reason.value, wait.text(notes.record.job.demand)))
        for estimate in entry.start_estimates:
            if (notes := self._latest.get(estimate.job)) is not None:
                _append(notes.recorded.estimates, (now, estimate.at, estimate.soonest, estimate.latest))

    def _fits_when_empty(self, job: Job) -> bool:
        if job.demand not in self._fits:
            self._fits[job.demand] = self._empty.fits_when_empty(job.demand)
        return self._fits[job.demand]

    def _note_change(self, now: Seconds, change: journal.Change) -> None:
        match change:
            case journal.Submitted(record):
                self._latest[record.job.id] = notes = _JobNotes(record, self._describe(record.job))
                self._jobs.append(notes)
            case journal.Placed(record, run):
                self._latest[record.job.id].runs.append(run)
            case journal.Held(record, reason):
                self._latest[record.job.id].recorded.holds.append((now, reason.value))
            case journal.Released(record):
                self._latest[record.job.id].recorded.holds.append((now, ""))
            case journal.Flagged(record, why):
                self._latest[record.job.id].recorded.warnings.append((now, why))
            case journal.NodeChange(at, node, up, gpu, why, drained):
                self._node_changes.append(RecordedNodeChange(at, node, up, gpu, drained, why))
            case _:
                pass  # the records of the job and of its runs say it

    def _describe(self, job: Job) -> RecordedJob:
        return RecordedJob(
            id=job.id,
            name=job.group,
            tenant=job.tenant,
            submitted=job.submitted,
            demand=str(job.demand),
            gpus=job.demand.total_gpus,
            user=job.user,
            job_class=job.job_class,
            priority=job.priority,
            steps=job.steps,
            time_limit=job.time_limit,
            instances=job.demand.instances,
            array="" if job.launch.array is None else job.launch.array.array,
            preemptible=job.preemptible,
            consent=consent_of(job).why,
            fits=job.id not in self._infeasible,
        )

    def _note_events(self, now: Seconds, notices: Iterable[Notice]) -> None:
        for notice in notices:
            if notice.job is None:
                self._events.append((now, notice.kind, notice.text))
            else:
                self._latest[notice.job.id].recorded.events.append((now, notice.kind, notice.run, notice.text))

    def _note_progress(self, now: Seconds, event: RunProgressed) -> None:
        notes = self._latest.get(event.job)
        if notes is None or notes.record.run != event.run:
            return
        reports = notes.recorded.progress
        reports.append((now, event.steps, event.loss, event.samples_per_second))
        if len(reports) > MAX_PROGRESS_REPORTS:
            del reports[1:-1:2]

    def recording(self, name: str, policy: str) -> Recording:
        cluster = self._cluster
        since, until = self._times or (0.0, 0.0)
        return Recording(
            name,
            cluster.name,
            policy,
            since,
            until,
            self._entries,
            [
                RecordedNode(
                    node.name,
                    node.gpus,
                    node.gpu_type,
                    node.rack,
                    dict(zip(cluster.level_names, node.domains, strict=True)),
                )
                for node in cluster.nodes
            ],
            [RecordedTenant(tenant.name, tenant.quota_gpus, tenant.limit_gpus) for tenant in cluster.tenants],
            [_finish(notes) for notes in self._jobs],
            self._node_changes,
            self._events,
        )


def _append(items: list[tuple], item: tuple) -> None:  # type: ignore[type-arg]
    """Append what was said at a time, unless it was said before."""
    if not items or items[-1][1:] != item[1:]:
        items.append(item)


def _finish(notes: _JobNotes) -> RecordedJob:
    record, recorded = notes.record, notes.recorded
    recorded.runs = [_describe_run(record.job, run) for run in notes.runs]
    recorded.cpu_seconds, recorded.peak_memory_mib = record.cpu_seconds, record.peak_memory_mib
    if record.ended is not None:
        recorded.ended, recorded.outcome = record.ended, record.state
        recorded.message, recorded.exit_code = record.message, record.exit_code
    return recorded


def _describe_run(job: Job, run: journal.RunRecord) -> RecordedRun:
    plan = run_plan(job, run.allocation)
    return RecordedRun(
        number=run.number,
        start=run.start,
        placement=[(share.node, list(share.gpus), share.gpu_milli / WHOLE) for share in run.allocation.placement],
        gpus=run.allocation.gpu_milli / WHOLE,
        started=run.started,
        stop=run.stop_ordered,
        end=run.end,
        ending="" if run.end is None else run.ending.name.lower(),
        plan="" if plan is None else str(plan),
    )


RECORDING_NAME = "recording.json"
LOOPBACK_ADDRESS = "127.0.0.1"


class RecordingServer:
    """Serves a recording on a TCP socket of this machine. There is nothing that a request could change."""

    def __init__(self, recording: bytes, port: int = 0) -> None:
        """`port`: 0 for any that is free."""
        self._recording = recording
        self._listener = open_tcp_listener(LOOPBACK_ADDRESS, port)
        self._listener.listen()  # before the link is printed: a browser may be fast
        self._sessions = Sessions()

    @property
    def address(self) -> str:
        """The URL, without the right to open it."""
        return format_address(self._listener)

    def make_link(self) -> str:
        """Return a link that opens the page once, within five minutes; the browser can open it again."""
        code, _ = self._sessions.make_link(user_subject(os.getuid()))
        return f"{self.address}/#open={code}"

    def run(self) -> None:
        """Serve until interrupted."""
        limits = ConnectionLimits()
        make_http_server(self.make_app(), limits, ConnectionTable(limits)).run([self._listener])

    def close(self) -> None:
        self._listener.close()

    def make_app(self) -> Api:
        """Return the ASGI application: files, sessions and the recording."""
        pages = {f"/{RECORDING_NAME}": Page("reader", self._render)}
        files = WebFiles(recording=RECORDING_NAME)
        return Api(None, TokenAuthenticator({}), users=_OneUser(), pages=pages, sessions=self._sessions, files=files)

    async def _render(self) -> Reply:
        return Reply(200, self._recording, headers={"cache-control": "no-store"})


class _OneUser:
    """Only the user who started the command can sign in."""

    async def caller_of(self, uid: int) -> Caller:
        if uid != os.getuid():
            raise Forbidden(f"uid {uid} has not started this command")
        return Caller("show", "reader", "default", "")
