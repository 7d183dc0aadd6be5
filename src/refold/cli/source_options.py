"""Where the jobs of an experiment come from, if not from a trace: shared by `compare` and `tune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.cli.options import HistorySourceOption, Since, require_option
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.cli.experiment_options import TraceOptions
    from refold.cli.inputs import Workload
    from refold.simulator import Costs


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where the jobs come from, if not from a trace."""

    source: HistorySourceOption = None
    since: Since = None

    def reader(self, trace: str | None) -> Callable[[str, str | None, TraceOptions, Costs], Workload] | None:
        """Return what reads the jobs; None: they are in the trace."""
        from functools import partial

        from refold.cli.inputs import parse_since, read_slurm_workload

        if self.source is None:
            require_option("--from slurm", {"--since": self.since}, "a trace is read whole")
            return None
        if trace is not None:
            raise BadInput(f"--from slurm reads Slurm's accounting; leave {trace} out")
        return partial(read_slurm_workload, parse_since(self.since))
