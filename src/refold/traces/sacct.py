"""Slurm's accounting: `sacct --allusers --allocations --parsable2`, whatever columns it was asked for."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache, partial

from refold.errors import BadFile
from refold.model import DAY, HOUR, LARGEST, MINUTE, Demand, Job
from refold.traces.helios import demand_on_nodes
from refold.traces.text_source import BadCell, TextSource, TextTable, jobs_of_rows, number, whole
from refold.traces.timestamps import from_first_submission, moment_or_none
from refold.traces.trace import Trace, in_order, in_whole_file

_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)i?B?([cn]?)", re.IGNORECASE)
_MIB_OF_UNIT = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_DEMAND_COLUMNS = ("NNodes", "NCPUS", "ReqMem", "ReqTRES", "AllocTRES")
_NO_LIMIT = frozenset({"", "UNLIMITED", "Partition_Limit", "INVALID"})


def recognises(first_line: str) -> bool:
    """A header parted by bars, with a job's number in it."""
    return "|" in first_line and "JobID" in first_line.split("|")


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """One job per allocation (steps are passed over), one instance a node; the tenant is the account."""
    table = TextTable(source, delimiter="|", quoted=False)
    table.index("JobID")
    if not {"Submit", "Start"} & set(table.columns):
        raise BadFile(source.path, "has neither Submit nor Start; ask sacct for --format=JobID,Submit,Start,End,…")
    rows = _SacctRows(table.columns, gpus_per_instance)
    jobs, left_out = jobs_of_rows(table, rows.job, skip_bad=skip_bad)
    jobs, notes = from_first_submission(jobs)
    if rows.counts["never started"]:
        notes.append(in_whole_file(rows.counts["never started"], "job", "left out that never started"))
    if rows.counts["running"]:
        notes.append(in_whole_file(rows.counts["running"], "job", "still running: work is what was done so far"))
    return in_order(source.name, jobs, left_out=left_out, notes=notes)


class _SacctRows:
    """Reads rows as dictionaries, since every site asks sacct for other columns."""

    def __init__(self, columns: list[str], gpus_per_instance: int) -> None:
        self.columns = columns
        self.demand = cache(partial(_demand, gpus_per_instance))  # few differ, so each is read once
        self.counts: Counter[str] = Counter()

    def job(self, row: list[str]) -> Job | None:
        cells = dict(zip(self.columns, row, strict=True))
        if "." in cells["JobID"]:
            return None
        started = moment_or_none(cells.get("Start"), "Start")
        submitted = moment_or_none(cells.get("Submit"), "Submit")
        submitted = started if submitted is None else submitted
        work = _work(cells, started)
        if submitted is None or work is None or cells.get("State", "").startswith("PENDING"):
            self.counts["never started"] += 1
            return None
        self.counts["running"] += cells.get("State", "").startswith("RUNNING")
        return Job(
            cells["JobID"],
            submitted,
            self.demand(*(cells.get(column, "") for column in _DEMAND_COLUMNS)),
            work,
            tenant=cells.get("Account") or "default",
            user=cells.get("User", ""),
            group=cells.get("JobName", ""),
            time_limit=_time_limit(cells.get("Timelimit", "")),
        )


def _demand(
    gpus_per_instance: int, node_count: str, cpu_count: str, req_mem: str, req_tres: str, alloc_tres: str
) -> Demand:
    """What it held, else what it asked for; the GPU type only if it asked for one, where that is known."""
    asked, held = _tres(req_tres, "ReqTRES"), _tres(alloc_tres, "AllocTRES")
    given = {**asked, **held}
    nodes = max(whole(node_count or given.get("node") or "1", "NNodes"), 1)
    cpus = number(cpu_count or given.get("cpu") or "0", "NCPUS")
    return demand_on_nodes(
        _gpus(held) or _gpus(asked),
        nodes,
        gpus_per_instance,
        cpu_milli=round(cpus * 1000),
        memory_mib=_memory_mib(given.get("mem") or req_mem, nodes, cpus),
        gpu_types=_gpu_types(asked or held),
    )


def _work(cells: dict[str, str], started: float | None) -> float | None:
    """How long it ran; None when it never started."""
    if "Start" in cells and started is None:
        return None
    if cells.get("ElapsedRaw"):
        return number(cells["ElapsedRaw"], "ElapsedRaw")
    if cells.get("Elapsed"):
        return _clock(cells["Elapsed"], "Elapsed")
    ended = moment_or_none(cells.get("End"), "End")
    if started is None or ended is None:
        return None
    if ended < started:
        raise BadCell("End", cells["End"], f"a time that is not before {cells['Start']}")
    return ended - started


def _clock(text: str, column: str) -> float:
    """'1-02:03:04', '02:03:04' or '03:04' in seconds."""
    parts = _CLOCK.fullmatch(text)
    if parts is None:
        raise BadCell(column, text, "a duration such as 1-02:03:04")
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    total = days * DAY + hours * HOUR + minutes * MINUTE + seconds
    if total > LARGEST:
        raise BadCell(column, text, "a shorter duration")
    return total


def _time_limit(text: str) -> float | None:
    return None if text in _NO_LIMIT else _clock(text, "Timelimit") or None


def _tres(text: str, column: str) -> dict[str, str]:
    """'cpu=8,gres/gpu:a100=4,mem=64G' by name."""
    items = [item.partition("=") for item in text.split(",") if item]
    if any(not equals for _, equals, _ in items):
        raise BadCell(column, text, "a list such as cpu=8,gres/gpu=4,mem=64G")
    return {name: value for name, _, value in items}


def _gpus(tres: dict[str, str]) -> int:
    """`gres/gpu` counts all of them; where only `gres/gpu:TYPE` is given, those are added up."""
    if "gres/gpu" in tres:
        return whole(tres["gres/gpu"], "gres/gpu")
    return sum(whole(count, name) for name, count in tres.items() if name.startswith("gres/gpu:"))


def _gpu_types(tres: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name.removeprefix("gres/gpu:") for name in tres if name.startswith("gres/gpu:")))


def _memory_mib(text: str, nodes: int, cpus: float) -> int:
    """Memory in all. Old Slurms end ReqMem in c (for each CPU) or n (for each node)."""
    if text in ("", "0", "?"):
        return 0
    parts = _MEMORY.fullmatch(text)
    if parts is None:
        raise BadCell("ReqMem", text, "memory such as 64G or 4000M")
    times = {"c": cpus, "n": float(nodes)}.get(parts[3].lower(), 1.0)
    mib = float(parts[1]) * _MIB_OF_UNIT[parts[2].upper()] * times
    if mib > LARGEST:
        raise BadCell("ReqMem", text, "less memory")
    return math.ceil(mib)
