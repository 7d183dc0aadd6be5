"""How the command of a job is run. Back ends use this; of policies, only the run-time watch (`no_progress`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from refold.errors import BadValue
from refold.model.array import ArrayTask
from refold.model.units import WHOLE, Seconds, format_count, format_memory

StopSignal = Literal["TERM", "INT", "USR1", "USR2", "HUP"]
LaunchEngine = Literal["megatron", "deepspeed", "fsdp", "accelerate", "trainer"]
"""Training frameworks that can be told a plan; `plans.LAUNCH_TARGETS` has their arguments."""
LAUNCH_ENGINES: tuple[LaunchEngine, ...] = get_args(LaunchEngine)
STOP_SIGNALS: tuple[StopSignal, ...] = get_args(StopSignal)

MAX_RETRIES = 1000


class Launch(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Environment, working directory, stop signal, retries, progress patterns, dependencies and notifications of a job.

    `environment`: variables in addition to those that every run gets.
    `exported`: id of the stored environment of the submitter; empty: runs inherit the environment of the back end.
    `folder`: the working directory; empty: a directory of the job's own, shared by its runs.
    `output`, `error`: files that receive a copy of the output, as patterns (`output_pattern`), relative to the folder;
    without `error`, errors are part of the output.
    `grace`: the time from `stop_signal` to a forced kill; None: the default of the back end.
    `progress`: a regular expression for output lines whose first group is the number of steps done.
    `no_progress`: a run that reports no progress for this long is considered hung.
    `never_retry`: regular expressions; a failed run whose output matches one is not retried.
    `after`: dependencies on other jobs. `begin`: the job is not scheduled before this time.
    `array`: the place of the job in an array of jobs.
    `notify`: notification URLs, in Apprise syntax.
    `gang`: the pods in Kubernetes that the job consists of; empty: the back end starts the command.
    `auto`: resources that the job leaves to the scheduler; the chosen amounts are in its demand.
    """

    environment: tuple[tuple[str, str], ...] = ()
    exported: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    grace: Seconds | None = None
    stop_signal: StopSignal = "TERM"
    retries: int = 0
    progress: str = ""
    no_progress: Seconds | None = None
    never_retry: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    begin: Seconds | None = None
    array: ArrayTask | None = None
    notify: tuple[str, ...] = ()
    gang: str = ""
    auto: tuple[AutoRequest, ...] = ()

    def __post_init__(self) -> None:
        if self.stop_signal not in STOP_SIGNALS:
            raise BadValue(f"stop_signal is {self.stop_signal!r}, expected one of {', '.join(STOP_SIGNALS)}")
        if not 0 <= self.retries <= MAX_RETRIES:
            raise BadValue(f"retries is {self.retries}, expected 0 to {MAX_RETRIES}")
        if self.grace is not None and not 0 <= self.grace < math.inf:
            raise BadValue(f"grace is {self.grace}, expected seconds ≥ 0")
        if self.no_progress is not None and not 0 < self.no_progress < math.inf:
            raise BadValue(f"no_progress is {self.no_progress}, expected seconds > 0")


DEFAULT_LAUNCH = Launch()
"""The launch settings of a job that specifies none."""


# Requests of CPUs or memory that the scheduler chooses (`auto`), from what earlier runs of a group have used.

AutoResource = Literal["cpus", "memory"]
AUTO: Literal["auto"] = "auto"


class AutoRequest(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A resource whose amount was chosen: from `runs` earlier runs, of which none has used more than `used`.

    `used` is in MiB, or in thousandths of a CPU. Without runs, the amount is the default.
    """

    resource: AutoResource
    runs: int = 0
    used: int = 0

    def text(self, chosen: int) -> str:
        """Describe the choice: 'memory: auto is 5 GiB: 7 earlier runs used 4 GiB at most'."""
        amount = _format(self.resource, chosen) if chosen else "not limited"
        runs = f"{format_count(self.runs, 'earlier run')} used"
        why = f"{runs} {_format(self.resource, self.used)} at most" if self.runs else "no earlier run was measured"
        return f"{self.resource}: auto is {amount}: {why}"


def _format(resource: AutoResource, amount: int) -> str:
    if resource == "memory":
        return format_memory(amount)
    return "1 CPU" if amount == WHOLE else f"{amount / WHOLE:g} CPUs"


# Names of output files with fields, as in Slurm: 'logs/%x-%j.out'.

OUTPUT_FIELDS: Mapping[str, str] = {
    "j": "number of the job",
    "A": "number of the array",
    "a": "task number in the array",
    "x": "job name",
    "u": "user",
    "t": "index of the instance",
}
"""What the fields of a pattern stand for; `%%` is a percent sign, and `%4a` pads with zeros."""

_FIELD = re.compile(r"%(\d?)(.?)", re.DOTALL)


def check_output_pattern(pattern: str) -> None:
    """Raise BadValue if a pattern has an unknown field."""
    expand_output_pattern(pattern, dict.fromkeys(OUTPUT_FIELDS, ""))


def expand_output_pattern(pattern: str, values: Mapping[str, str]) -> str:
    """Replace the fields of a pattern by their values."""

    def value_of(match: re.Match[str]) -> str:
        width, field = match.groups()
        if field == "%" and not width:
            return "%"
        if field not in values:
            known = ", ".join(f"%{name} ({meaning})" for name, meaning in OUTPUT_FIELDS.items())
            raise BadValue(f"{pattern[:64]!r} has the unknown field {match[0]!r}, expected {known} or %%")
        return values[field].zfill(int(width or 0))

    return _FIELD.sub(value_of, pattern)
