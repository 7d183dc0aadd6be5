"""Inputs of `refold tune`: the ranges of settings, and jobs that are kept because they are not in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from refold.cli import write_atomically
from refold.cli.inputs.workload import Workload
from refold.errors import BadFile, BadInput, BadValue, UnknownName
from refold.model import Cluster, Job, parse_duration

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.policies import SettingRange
    from refold.simulator import Costs

MIN_LOG_RATIO = 10
"""A range of positive numbers is logarithmic if its ends differ by at least this factor."""


class _History(msgspec.Struct, frozen=True):
    """What is kept. `options`: those by which the jobs were chosen."""

    options: str
    name: str
    jobs: list[Job]
    cluster: Cluster
    skipped_rows: int
    notes: list[str]


class KeptHistory:
    """The jobs that an earlier command has read, if there are any; else those that `read` finds now."""

    def __init__(self, path: Path, read: Callable[[str, str | None, TraceOptions, Costs], Workload]) -> None:
        self._path, self._read = path, read
        self._new: _History | None = None

    def read(self, trace: str, cluster: str | None, options: TraceOptions, costs: Costs) -> Workload:
        """Return the workload. Raises if an earlier command has chosen the jobs by other options."""
        chosen_by = repr((cluster, _contents(cluster), options, getattr(self._read, "args", ())))
        if not self._path.exists():
            found = self._read(trace, cluster, options, costs)
            rest = found.skipped_rows, list(found.notes)
            self._new = _History(chosen_by, found.name, list(found.jobs), found.cluster, *rest)
            return found
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_History)
        except (OSError, msgspec.MsgspecError) as error:
            raise BadFile(self._path, f"cannot be read: {error}") from None
        if kept.options != chosen_by:
            raise BadFile(self._path, "has jobs that were read with other options; choose another --out")
        notes = [*kept.notes, f"the jobs are those of the earlier command, in {self._path}"]
        return Workload(kept.name, kept.jobs, kept.cluster, costs, (), kept.skipped_rows, notes)

    def write(self) -> None:
        """Write the jobs to the file, unless they are from there."""
        if self._new is not None:
            write_atomically(self._path, msgspec.json.encode(self._new))


def _contents(cluster: str | None) -> bytes:
    """Return what is in the file of a cluster; nothing if it is not given as a file, or cannot be read."""
    try:
        return Path(cluster).read_bytes() if cluster else b""
    except OSError:
        return b""


def parse_ranges(texts: Sequence[str], policy: str, known: Mapping[str, Any]) -> dict[str, SettingRange]:
    """Parse ranges such as 'gpu_price=1:16' and values such as 'order=arrival,shortest'."""
    found: dict[str, SettingRange] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise BadInput(f"--range {text}: expected KEY=LOW:HIGH or KEY=A,B,…")
        if key not in known:
            raise UnknownName(f"{policy} setting", key, known)
        found[key] = _parse_range(text, values)
    return found


def _parse_range(text: str, values: str) -> SettingRange:
    from refold.policies import Choices, Range

    low_text, colon, high_text = values.partition(":")
    if not colon:
        return Choices(tuple(map(_parse_value, values.split(","))))
    low, high = _parse_value(low_text), _parse_value(high_text)
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise BadInput(f"--range {text}: expected two numbers or durations, such as 1:16 or 1h:2d")
    try:
        return Range(low, high, log=low > 0 and high >= MIN_LOG_RATIO * low)
    except BadValue as error:
        raise BadInput(f"--range {text}: {error}") from None


def _parse_value(text: str) -> Any:
    """Return a number, a duration in seconds, true or false, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except BadValue:
        return text
