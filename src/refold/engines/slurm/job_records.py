"""The jobs of Slurm's queue: `squeue --json`, or in versions without it, columns of fixed width.

Slurm's data parsers differ between versions: a number is a number, or a mapping with `set`, `infinite` and `number`;
the state is a text or a list. Both forms become the columns that `squeue --Format` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from refold.engines.slurm.programs import Run, SlurmError
from refold.errors import BadValue
from refold.model import Seconds
from refold.simulator.traces import BadCell, GpuAmount, parse_gpus, parse_memory_mib, parse_time_limit, parse_tres

COLUMNS = {
    "JobArrayID": 128,
    "JobID": 16,
    "UserName": 64,
    "Account": 64,
    "Partition": 256,
    "State": 24,
    "Reason": 64,
    "SubmitTime": 24,
    "StartTime": 24,
    "TimeLimit": 24,
    "NodeList": 1024,
    "NumNodes": 24,
    "NumCPUs": 16,
    "NumTasks": 16,
    "tres-alloc": 512,
    "tres-per-job": 128,
    "tres-per-node": 128,
    "tres-per-task": 128,
    "PriorityLong": 24,
    "Feature": 128,
    "QOS": 64,
    "Licenses": 256,
    "Dependency": 1024,
    "EligibleTime": 24,
    "OverSubscribe": 8,
    "ReqNodes": 1024,
    "ExcNodes": 1024,
    "Name": 256,
}
"""What is asked of `squeue --Format`, with widths: names may contain any separator."""

ABSENT = frozenset({"", "N/A", "(null)", "Unknown", "None"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
"""States in which a job holds its nodes and will run on."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"})


NOT_SHARED = (0, "none", ["none"])
"""How `squeue --json` prints `--exclusive`, in several versions."""


class SlurmJob(msgspec.Struct, frozen=True):
    """A job, or all tasks of an array that wait: then `id` is '17_[0-5%2]'.

    `started`: when it started, or when Slurm expects it to. `nodes`: a list of hosts, if it has started. `gpus`: in
    total. `gpus_on_nodes`: those on each of its nodes, such as 'gpu:a100:2(IDX:0-1)', if known. `eligible`: since when
    it waits for resources. `billing`: how fast it uses the share of its user. `required_nodes`, `excluded_nodes`: lists
    of hosts.
    """

    id: str
    number: int
    name: str
    user: str
    account: str
    partitions: tuple[str, ...]
    state: str
    reason: str
    submitted: Seconds
    started: Seconds | None
    time_limit: Seconds | None
    nodes: str
    node_count: int
    cpus: int
    memory_mib: int
    gpus: GpuAmount
    gpus_on_nodes: tuple[str, ...]
    priority: int
    features: str
    qos: str = ""
    licenses: str = ""
    dependency: str = ""
    eligible: Seconds | None = None
    is_exclusive: bool = False
    required_nodes: str = ""
    excluded_nodes: str = ""
    billing: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it holds nodes and will run on."""
        return self.state in RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in WAITING


class QueueRecords(msgspec.Struct, frozen=True):
    """The jobs that could be read, and notes on the others."""

    jobs: list[SlurmJob]
    notes: list[str]


def read_queue(run: Run) -> QueueRecords:
    """Read the jobs that Slurm knows: those in its queue, and for some minutes those that have ended."""
    try:
        rows = _rows_of_json(run("squeue", "--all", "--json"))
    except (SlurmError, msgspec.DecodeError):  # before 21.08, or built without JSON
        rows = _rows_of_columns(run("squeue", "--all", "--noheader", f"--Format={_format()}"))
    jobs: list[SlurmJob] = []
    notes: list[str] = []
    for row in rows:
        try:
            jobs.append(_make_job(row))
        except (BadCell, BadValue) as error:
            notes.append(f"job {row.get('JobArrayID', '?')} is left out: {_describe(error)}")
    return QueueRecords(jobs, notes)


def _format() -> str:
    return ",".join(f"{name}:{width}" for name, width in COLUMNS.items())


def _rows_of_columns(text: str) -> list[dict[str, str]]:
    rows = []
    for line in text.splitlines():
        cells, position = {}, 0
        encoded = line.encode()  # squeue counts bytes
        for name, width in COLUMNS.items():
            cells[name] = encoded[position : position + width].decode(errors="replace").strip()
            position += width
        rows.append(cells)
    return rows


def _rows_of_json(text: str) -> list[dict[str, str]]:
    document = msgspec.json.decode(text)
    entries = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(entries, list) or (not entries and document.get("errors")):
        raise msgspec.DecodeError("no jobs")
    return [_row_of_entry(entry) for entry in entries if isinstance(entry, dict)]


def _row_of_entry(entry: Mapping[str, Any]) -> dict[str, str]:
    def text(key: str) -> str:
        return _text(entry.get(key))

    minutes = _number(entry.get("time_limit"))
    details = entry.get("gres_detail")
    return {
        "JobArrayID": _array_id(entry),
        "JobID": text("job_id"),
        "UserName": text("user_name"),
        "Account": text("account"),
        "Partition": text("partition"),
        "State": text("job_state").partition(" ")[0],
        "Reason": text("state_reason"),
        "SubmitTime": text("submit_time"),
        "StartTime": text("start_time"),
        "TimeLimit": f"{minutes:.0f}:00" if minutes else "",
        "NodeList": text("nodes"),
        "NumNodes": text("node_count"),
        "NumCPUs": text("cpus"),
        "NumTasks": text("tasks"),
        "tres-alloc": text("tres_alloc_str") or text("tres_req_str"),
        "tres-per-job": text("tres_per_job"),
        "tres-per-node": text("tres_per_node"),
        "tres-per-task": text("tres_per_task"),
        "PriorityLong": text("priority"),
        "Feature": text("features"),
        "QOS": text("qos"),
        "Licenses": text("licenses"),
        "Dependency": text("dependency"),
        "EligibleTime": text("eligible_time"),
        "OverSubscribe": "NO" if entry.get("shared") in NOT_SHARED else "",
        "ReqNodes": text("required_nodes"),
        "ExcNodes": text("excluded_nodes"),
        "Name": text("name"),
        "gres-detail": "\n".join(map(str, details)) if isinstance(details, list) else "",
    }


def _array_id(entry: Mapping[str, Any]) -> str:
    """Return the id as squeue prints it: 123, 123_4 or 123_[0-5%2] for array tasks, 123+1 for a component."""
    array, task = _number(entry.get("array_job_id")), _number(entry.get("array_task_id"))
    tasks = _text(entry.get("array_task_string"))
    if array and task is not None:
        return f"{array:.0f}_{task:.0f}"
    if array and tasks:
        return f"{array:.0f}_[{tasks}]"
    component = _number(entry.get("het_job_id"))
    if component:
        return f"{component:.0f}+{_number(entry.get('het_job_offset')) or 0:.0f}"
    return _text(entry.get("job_id"))


def _number(value: object) -> float | None:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, str):
        return value
    number = _number(value)
    return "" if number is None else f"{number:.0f}"


def _make_job(row: Mapping[str, str]) -> SlurmJob:
    def cell(name: str) -> str:
        value = row.get(name, "")
        return "" if value in ABSENT else value

    nodes, cpus = _whole(cell("NumNodes"), "NumNodes") or 1, _whole(cell("NumCPUs"), "NumCPUs")
    tres = parse_tres(cell("tres-alloc"), "tres-alloc")
    return SlurmJob(
        id=cell("JobArrayID") or cell("JobID"),
        number=_whole(cell("JobID"), "JobID"),
        name=cell("Name"),
        user=cell("UserName"),
        account=cell("Account"),
        partitions=tuple(cell("Partition").split(",")),
        state=cell("State"),
        reason=cell("Reason"),
        submitted=_time(cell("SubmitTime"), "SubmitTime") or 0.0,
        started=_time(cell("StartTime"), "StartTime"),
        time_limit=None if cell("TimeLimit") == "NOT_SET" else parse_time_limit(cell("TimeLimit")),
        nodes=cell("NodeList"),
        node_count=nodes,
        cpus=cpus,
        memory_mib=parse_memory_mib(tres.get("mem", ""), nodes, cpus),
        gpus=_gpus(cell, tres, nodes, _whole(cell("NumTasks"), "NumTasks") or nodes),
        gpus_on_nodes=tuple(line for line in row.get("gres-detail", "").split("\n") if line),
        priority=_whole(cell("PriorityLong"), "PriorityLong"),
        features=cell("Feature"),
        qos=cell("QOS"),
        licenses=cell("Licenses"),
        dependency=cell("Dependency"),
        eligible=_time(cell("EligibleTime"), "EligibleTime"),
        is_exclusive=cell("OverSubscribe") == "NO",
        required_nodes=cell("ReqNodes"),
        excluded_nodes=cell("ExcNodes"),
        billing=float(_whole(tres.get("billing", ""), "tres-alloc")),
    )


def _gpus(cell: Any, tres: Mapping[str, str], nodes: int, tasks: int) -> GpuAmount:
    """Return the GPUs of a job. Slurm states them in its TRES only if it is configured to account for them."""
    requested = [
        parse_gpus(cell("tres-per-job"), "tres-per-job"),
        parse_gpus(cell("tres-per-node"), "tres-per-node").times(nodes),
        parse_gpus(cell("tres-per-task"), "tres-per-task").times(tasks),
    ]
    accounted = GpuAmount.from_tres(tres)
    request = next((amount for amount in requested if amount.total), accounted)
    return GpuAmount(accounted.total or request.total, request.types)


def _whole(text: str, column: str) -> int:
    """Return a number; of a range such as '2-4', the first."""
    first = text.partition("-")[0].partition("+")[0]
    if first and not first.isdecimal():
        raise BadCell(column, text, "a number")
    return int(first or 0)


def _time(text: str, column: str) -> Seconds | None:
    return float(_whole(text, column)) or None if text else None


def _describe(error: BadCell | BadValue) -> str:
    if isinstance(error, BadCell):
        return f"{error.column} is {str(error.found)[:60]!r}, expected {error.expected}"
    return str(error)
