"""Jobs that are not in a file, kept in one: a command that continues an earlier one needs the same jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from refold.cli import write_atomically
from refold.cli.inputs.workload import Workload
from refold.model import Cluster, Job

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.simulator import Costs


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
        from refold.errors import BadFile

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
