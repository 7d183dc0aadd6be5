"""The JSON of `sacct --json`, as the columns that `sacct --parsable2` would print.

Slurm's data parsers differ between versions: a number is a number, or a mapping with `set`, `infinite` and `number`;
the state is a text or a list of flags.
"""

from __future__ import annotations

import msgspec

from refold.model import MINUTE


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
    """A job."""

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
