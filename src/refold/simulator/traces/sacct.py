"""Slurm accounting: `sacct --allusers --allocations --parsable2` with any columns, or `sacct --json`.

Slurm's data parsers differ between versions: in JSON, a number is a number, or a mapping with `set`, `infinite` and
`number`; the state is a text or a list of flags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec

from refold.errors import BadFile, BadRow
from refold.model import MINUTE, Demand, Job
from refold.simulator.traces.helios import demand_on_nodes
from refold.simulator.traces.sacct_cells import (
    GPU_COLUMNS,
    GpuAmount,
    parse_duration,
    parse_gpus,
    parse_memory_mib,
    parse_time_limit,
    parse_tres,
)
from refold.simulator.traces.text_source import (
    BadCell,
    TextSource,
    TextTable,
    decode_document,
    parse_entries,
    parse_number,
    parse_rows,
    parse_time_or_none,
    parse_whole,
    shift_to_first_submission,
)
from refold.simulator.traces.trace import Trace, TraceJob, make_trace, whole_file_note

MAX_BAD_SHARE = 0.1
"""Rows that cannot be read are left out and reported up to this share; above it the export is most likely damaged."""

_DEMAND_COLUMNS = ("NNodes", "NCPUS", "ReqMem", *GPU_COLUMNS)
_FREE_TEXT_COLUMNS = ("JobName", "Comment", "AdminComment", "SubmitLine", "WorkDir")
"""Columns in which users may write any text, including the separator."""

_REQUEUED = ("REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
"""States of a run that was followed by another run of the same job."""


def recognises(first_line: str) -> bool:
    """Return whether the line is a header separated by bars with a JobID column, or begins a JSON object."""
    return first_line.startswith("{") or ("|" in first_line and "JobID" in first_line.split("|"))


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read one job per allocation (job steps are skipped), one instance per node; the tenant is the account."""
    rows = _SacctRows(gpus_per_instance)
    runs, skipped_rows = (_read_json if source.first_line.startswith("{") else _read_table)(source, rows)
    if skipped_rows and not skip_bad and len(skipped_rows) > MAX_BAD_SHARE * (len(runs) + len(skipped_rows)):
        raise skipped_rows[0]
    recorded = _join_requeued(runs, rows.counts)
    jobs, notes = shift_to_first_submission(each.job for each in recorded)
    notes, waits = [*notes, *_notes(jobs, rows.counts)], [each.wait for each in recorded]
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes, waits=waits)


def parse_sacct(text: str, gpus_per_instance: int) -> Trace:
    """Read what `sacct` has printed."""
    return read(TextSource(Path("slurm"), text), skip_bad=True, gpus_per_instance=gpus_per_instance)


def _read_table(source: TextSource, rows: _SacctRows) -> tuple[list[_Run], list[BadRow]]:
    table = TextTable(source, delimiter="|", quoted=False)
    table.index("JobID")
    if not {"Submit", "Eligible", "Start"} & set(table.columns):
        raise BadFile(source.path, "has neither Submit nor Start; run sacct with --format=JobID,Submit,Start,End,…")
    if not set(GPU_COLUMNS) & set(table.columns):
        raise BadFile(
            source.path, f"does not state the GPUs of a job; run sacct with one of {', '.join(GPU_COLUMNS)} in --format"
        )

    def parse_row(row: list[str]) -> _Run | None:
        return rows.run(dict(zip(table.columns, row, strict=True)))

    return parse_rows(table, parse_row, skip_bad=True, repair=partial(_join_free_text, table.columns))


def _read_json(source: TextSource, rows: _SacctRows) -> tuple[list[_Run], list[BadRow]]:
    output = decode_document(source, SacctOutput, "the output of sacct --json")
    return parse_entries(source, output.jobs, SacctJob, lambda job: rows.run(to_columns(job)))


def _join_free_text(columns: Sequence[str], row: list[str]) -> list[str]:
    """Return a row with too many cells as it was before a job name or the like was split at a '|' in it.

    If there are several columns of free text, the first that leaves a time in every column of times is the one.
    """
    surplus = len(row) - len(columns)
    for name in _FREE_TEXT_COLUMNS:
        if name in columns:
            start = columns.index(name)
            joined = [*row[:start], "|".join(row[start : start + surplus + 1]), *row[start + surplus + 1 :]]
            if _has_valid_times(dict(zip(columns, joined, strict=True))):
                return joined
    return row


def _has_valid_times(cells: Mapping[str, str]) -> bool:
    try:
        for column in ("Submit", "Eligible", "Start", "End"):
            parse_time_or_none(cells.get(column), column)
    except BadCell:
        return False
    return True


class _Run(msgspec.Struct, frozen=True):
    """One row: a run of a job."""

    job: Job
    state: str
    started: float | None


class _SacctRows:
    """Parses rows, as dictionaries because the columns differ from site to site, and counts what is left out."""

    def __init__(self, gpus_per_instance: int) -> None:
        self.demand = cache(partial(_parse_demand, gpus_per_instance))  # few demands differ, so each is parsed once
        self.counts: Counter[str] = Counter()

    def run(self, cells: Mapping[str, str]) -> _Run | None:
        if "." in cells["JobID"]:
            return None
        state = cells.get("State", "")
        started = parse_time_or_none(cells.get("Start"), "Start")
        known = _submission(cells)
        submitted = started if known is None else known
        work = _run_time(cells, started)
        if submitted is None or work is None or state.startswith("PENDING"):
            self.counts["never started"] += 1
            return None
        self.counts["running"] += state.startswith("RUNNING")
        self.counts["heterogeneous"] += "+" in cells["JobID"]
        job = Job(
            cells["JobID"],
            submitted,
            self.demand(*(cells.get(column, "") for column in _DEMAND_COLUMNS)),
            work,
            tenant=cells.get("Account") or "default",
            user=cells.get("User", ""),
            group=cells.get("JobName", ""),
            time_limit=parse_time_limit(cells.get("Timelimit", "")),
        )
        return _Run(job, state, None if known is None else started)


def _submission(cells: Mapping[str, str]) -> float | None:
    """Return when a job was first eligible, if known: its begin time had come, and its dependencies had ended."""
    eligible = parse_time_or_none(cells.get("Eligible"), "Eligible")
    return parse_time_or_none(cells.get("Submit"), "Submit") if eligible is None else eligible


def _join_requeued(runs: Iterable[_Run], counts: Counter[str]) -> list[TraceJob]:
    """Return one job per submission: a requeued job has a row per run, of which the last did its work.

    Rows with the same id are different jobs if the earlier one was not requeued: ids are used again in time.
    """
    recorded: list[TraceJob] = []
    requeued: dict[tuple[str, str, str], int] = {}
    for run in runs:
        key = (run.job.id, run.job.user, run.job.group)
        earlier = requeued.pop(key, None)
        if earlier is None:
            recorded.append(TraceJob.started_at(run.job, run.started))
        else:
            first = min(recorded[earlier].job.submitted, run.job.submitted)
            job = msgspec.structs.replace(run.job, submitted=first)
            recorded[earlier] = TraceJob.started_at(job, run.started)
            counts["requeued"] += 1
        if run.state.startswith(_REQUEUED):
            requeued[key] = len(recorded) - 1 if earlier is None else earlier
    return recorded


def _notes(jobs: Sequence[Job], counts: Mapping[str, int]) -> list[str]:
    texts = {
        "never started": ("job", "skipped that never started"),
        "running": ("job", "still running: the run time is the time elapsed so far"),
        "requeued": ("run", "of requeued jobs skipped: a job is its first submission and its last run"),
        "heterogeneous": ("component", "of heterogeneous jobs read as separate jobs"),
    }
    notes = [whole_file_note(counts[key], *text) for key, text in texts.items() if counts[key]]
    if jobs and not any(job.demand.gpus for job in jobs):
        notes.append("no job has GPUs: Slurm records them if AccountingStorageTRES in slurm.conf includes gres/gpu")
    return notes


def _parse_demand(
    gpus_per_instance: int,
    node_count: str,
    cpu_count: str,
    req_mem: str,
    req_tres: str,
    alloc_tres: str,
    req_gres: str,
    alloc_gres: str,
) -> Demand:
    """Return the allocated resources, or else the requested ones; GPU types are those requested, if known."""
    requested, allocated = parse_tres(req_tres, "ReqTRES"), parse_tres(alloc_tres, "AllocTRES")
    tres = {**requested, **allocated}
    nodes = max(parse_whole(node_count or tres.get("node") or "1", "NNodes"), 1)
    cpus = parse_number(cpu_count or tres.get("cpu") or "0", "NCPUS")
    gpus = _choose_gpus(
        GpuAmount.from_tres(requested),
        GpuAmount.from_tres(allocated),
        parse_gpus(req_gres, "ReqGRES").times(nodes),
        parse_gpus(alloc_gres, "AllocGRES"),
    )
    return demand_on_nodes(
        gpus.total,
        nodes,
        gpus_per_instance,
        cpu_milli=round(cpus * 1000),
        memory_mib=parse_memory_mib(tres.get("mem") or req_mem, nodes, cpus),
        gpu_types=gpus.types if gpus.total else (),
    )


def _choose_gpus(requested: GpuAmount, allocated: GpuAmount, gres: GpuAmount, alloc_gres: GpuAmount) -> GpuAmount:
    """Return the number that was allocated, or else requested, and the types that were requested.

    A job that requested GPUs of any type has no types, even if the allocation states the type that it received.
    """
    total = allocated.total or alloc_gres.total or requested.total or gres.total
    for request in (requested, gres, allocated, alloc_gres):
        if request.total:
            return GpuAmount(total, request.types)
    return GpuAmount(total)


def _run_time(cells: Mapping[str, str], started: float | None) -> float | None:
    """Return the run time in seconds, or None if the job never started."""
    if "Start" in cells and started is None:
        return None
    if cells.get("ElapsedRaw"):
        return parse_number(cells["ElapsedRaw"], "ElapsedRaw")
    if cells.get("Elapsed"):
        return parse_duration(cells["Elapsed"], "Elapsed")
    ended = parse_time_or_none(cells.get("End"), "End")
    if started is None or ended is None:
        return None
    if ended < started:
        raise BadCell("End", cells["End"], f"a time ≥ {cells['Start']}")
    return ended - started


class _OptionalNumber(msgspec.Struct):
    set: bool = False
    infinite: bool = False
    number: float = 0.0


_Number = _OptionalNumber | float | None


class _Array(msgspec.Struct):
    job_id: int = 0
    task_id: _Number = None


class _Het(msgspec.Struct):
    job_id: int = 0
    job_offset: _Number = None


class _State(msgspec.Struct):
    current: list[str] | str = ""


class _Time(msgspec.Struct):
    submission: int = 0
    eligible: _Number = None
    start: _Number = None
    end: _Number = None
    elapsed: int = 0
    limit: _Number = None


class _Tres(msgspec.Struct):
    type: str
    name: str = ""
    count: int = 0


class _TresLists(msgspec.Struct):
    allocated: list[_Tres] = []
    requested: list[_Tres] = []


class SacctJob(msgspec.Struct):
    job_id: int
    time: _Time
    state: _State
    name: str = ""
    user: str | None = None
    account: str | None = None
    array: _Array = msgspec.field(default_factory=_Array)
    het: _Het = msgspec.field(default_factory=_Het)
    allocation_nodes: int = 0
    tres: _TresLists = msgspec.field(default_factory=_TresLists)


class SacctOutput(msgspec.Struct):
    """The output of `sacct --json`; each of `jobs` is a `SacctJob`."""

    jobs: list[msgspec.Raw]


def to_columns(job: SacctJob) -> dict[str, str]:
    """Return the columns that `sacct --parsable2` would print."""
    state = job.state.current if isinstance(job.state.current, str) else " ".join(job.state.current)
    columns = {
        "JobID": _job_id(job),
        "JobName": job.name,
        "User": job.user or "",
        "Account": job.account or "",
        "State": state,
        "Submit": _time(job.time.submission),
        "Eligible": _time(_value(job.time.eligible)),
        "Start": _time(_value(job.time.start)),
        "End": _time(_value(job.time.end)),
        "ElapsedRaw": str(job.time.elapsed),
        "Timelimit": _format_limit(_value(job.time.limit)),
        "ReqTRES": _format_tres(job.tres.requested),
        "AllocTRES": _format_tres(job.tres.allocated),
    }
    return columns | ({"NNodes": str(job.allocation_nodes)} if job.allocation_nodes else {})


def _job_id(job: SacctJob) -> str:
    """Return the id as sacct prints it: 123, 123_4 for the task of an array, 123+1 for a heterogeneous component."""
    task, offset = _value(job.array.task_id), _value(job.het.job_offset)
    if job.array.job_id and task is not None:
        return f"{job.array.job_id}_{task:.0f}"
    if job.het.job_id and offset is not None:
        return f"{job.het.job_id}+{offset:.0f}"
    return str(job.job_id)


def _value(number: _Number) -> float | None:
    if isinstance(number, _OptionalNumber):
        return number.number if number.set and not number.infinite else None
    return float(number) if number is not None else None


def _time(seconds: float | None) -> str:
    return str(int(seconds)) if seconds else "Unknown"


def _format_limit(minutes: float | None) -> str:
    return f"{minutes // MINUTE:.0f}:{minutes % MINUTE:02.0f}:00" if minutes else "UNLIMITED"


def _format_tres(resources: list[_Tres]) -> str:
    """Format 'cpu=8,gres/gpu:a100=4,mem=64M'; the JSON states memory in MiB."""
    names = [f"{resource.type}/{resource.name}" if resource.name else resource.type for resource in resources]
    units = ["M" if resource.type == "mem" else "" for resource in resources]
    return ",".join(f"{name}={tres.count}{unit}" for name, tres, unit in zip(names, resources, units, strict=True))
