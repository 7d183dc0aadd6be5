"""Slurm accounting: the output of `sacct --allusers --allocations --parsable2`, with any columns."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache, partial

from refold.errors import BadFile
from refold.model import DAY, HOUR, MAX_AMOUNT, MINUTE, Demand, Job
from refold.traces.helios import demand_on_nodes
from refold.traces.text_source import BadCell, TextSource, TextTable, parse_number, parse_rows, parse_whole
from refold.traces.timestamps import parse_time_or_none, shift_to_first_submission
from refold.traces.trace import Trace, make_trace, whole_file_note

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)i?B?([cn]?)", re.IGNORECASE)
_MIB_OF_UNIT = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_DEMAND_COLUMNS = ("NNodes", "NCPUS", "ReqMem", "ReqTRES", "AllocTRES")
_NO_LIMIT = frozenset({"", "UNLIMITED", "Partition_Limit", "INVALID"})


def recognises(first_line: str) -> bool:
    """Return whether the line is a header separated by bars with a JobID column."""
    return "|" in first_line and "JobID" in first_line.split("|")


def read(source: TextSource, *, skip_bad: bool, gpus_per_instance: int) -> Trace:
    """Read one job per allocation (job steps are skipped), one instance per node; the tenant is the account."""
    table = TextTable(source, delimiter="|", quoted=False)
    table.index("JobID")
    if not {"Submit", "Start"} & set(table.columns):
        raise BadFile(source.path, "has neither Submit nor Start; run sacct with --format=JobID,Submit,Start,End,…")
    rows = _SacctRows(table.columns, gpus_per_instance)
    jobs, skipped_rows = parse_rows(table, rows.job, skip_bad=skip_bad)
    jobs, notes = shift_to_first_submission(jobs)
    if rows.counts["never started"]:
        notes.append(whole_file_note(rows.counts["never started"], "job", "skipped that never started"))
    if rows.counts["running"]:
        notes.append(
            whole_file_note(rows.counts["running"], "job", "still running: the run time is the time elapsed so far")
        )
    return make_trace(source.name, jobs, skipped_rows=skipped_rows, notes=notes)


class _SacctRows:
    """Parses rows as dictionaries, because the columns differ from site to site."""

    def __init__(self, columns: list[str], gpus_per_instance: int) -> None:
        self.columns = columns
        self.demand = cache(partial(_parse_demand, gpus_per_instance))  # few demands differ, so each is parsed once
        self.counts: Counter[str] = Counter()

    def job(self, row: list[str]) -> Job | None:
        cells = dict(zip(self.columns, row, strict=True))
        if "." in cells["JobID"]:
            return None
        started = parse_time_or_none(cells.get("Start"), "Start")
        submitted = parse_time_or_none(cells.get("Submit"), "Submit")
        submitted = started if submitted is None else submitted
        work = _run_time(cells, started)
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
            time_limit=_parse_time_limit(cells.get("Timelimit", "")),
        )


def _parse_demand(
    gpus_per_instance: int, node_count: str, cpu_count: str, req_mem: str, req_tres: str, alloc_tres: str
) -> Demand:
    """Return the allocated resources, or else the requested ones; GPU types are those requested, if known."""
    requested, allocated = _parse_tres(req_tres, "ReqTRES"), _parse_tres(alloc_tres, "AllocTRES")
    tres = {**requested, **allocated}
    nodes = max(parse_whole(node_count or tres.get("node") or "1", "NNodes"), 1)
    cpus = parse_number(cpu_count or tres.get("cpu") or "0", "NCPUS")
    return demand_on_nodes(
        _count_gpus(allocated) or _count_gpus(requested),
        nodes,
        gpus_per_instance,
        cpu_milli=round(cpus * 1000),
        memory_mib=_parse_memory_mib(tres.get("mem") or req_mem, nodes, cpus),
        gpu_types=_gpu_types(requested or allocated),
    )


def _run_time(cells: dict[str, str], started: float | None) -> float | None:
    """Return the run time in seconds, or None if the job never started."""
    if "Start" in cells and started is None:
        return None
    if cells.get("ElapsedRaw"):
        return parse_number(cells["ElapsedRaw"], "ElapsedRaw")
    if cells.get("Elapsed"):
        return _parse_duration(cells["Elapsed"], "Elapsed")
    ended = parse_time_or_none(cells.get("End"), "End")
    if started is None or ended is None:
        return None
    if ended < started:
        raise BadCell("End", cells["End"], f"a time ≥ {cells['Start']}")
    return ended - started


def _parse_duration(text: str, column: str) -> float:
    """Parse '1-02:03:04', '02:03:04' or '03:04' as seconds."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise BadCell(column, text, "a duration such as 1-02:03:04")
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    total = days * DAY + hours * HOUR + minutes * MINUTE + seconds
    if total > MAX_AMOUNT:
        raise BadCell(column, text, "a shorter duration")
    return total


def _parse_time_limit(text: str) -> float | None:
    return None if text in _NO_LIMIT else _parse_duration(text, "Timelimit") or None


def _parse_tres(text: str, column: str) -> dict[str, str]:
    """Parse 'cpu=8,gres/gpu:a100=4,mem=64G' into values by name."""
    items = [item.partition("=") for item in text.split(",") if item]
    if any(not equals for _, equals, _ in items):
        raise BadCell(column, text, "a list such as cpu=8,gres/gpu=4,mem=64G")
    return {name: value for name, _, value in items}


def _count_gpus(tres: dict[str, str]) -> int:
    """Return the value of `gres/gpu`, or else the sum over all `gres/gpu:TYPE`."""
    if "gres/gpu" in tres:
        return parse_whole(tres["gres/gpu"], "gres/gpu")
    return sum(parse_whole(count, name) for name, count in tres.items() if name.startswith("gres/gpu:"))


def _gpu_types(tres: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name.removeprefix("gres/gpu:") for name in tres if name.startswith("gres/gpu:")))


def _parse_memory_mib(text: str, nodes: int, cpus: float) -> int:
    """Parse memory as MiB in total. Old versions of Slurm append c (per CPU) or n (per node) to ReqMem."""
    if text in ("", "0", "?"):
        return 0
    parts = _MEMORY.fullmatch(text)
    if parts is None:
        raise BadCell("ReqMem", text, "memory such as 64G or 4000M")
    factor = {"c": cpus, "n": float(nodes)}.get(parts[3].lower(), 1.0)
    mib = float(parts[1]) * _MIB_OF_UNIT[parts[2].upper()] * factor
    if mib > MAX_AMOUNT:
        raise BadCell("ReqMem", text, "less memory")
    return math.ceil(mib)
