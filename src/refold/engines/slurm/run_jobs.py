"""The jobs and steps of Slurm that were started for runs.

Jobs are recognised by a comment and steps by a name, not by their ids: Slurm may use those again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from refold.engines.slurm.programs import Run

RunKey = tuple[str, int]
"""Job id and run number."""

SlurmId = str
"""The id of a job, such as '12', or of a step, such as '12.3'."""

COLUMNS = {
    "JobID": 16,
    "HetJobOffset": 12,
    "State": 24,
    "exit_code": 16,
    "RestartCnt": 12,
    "Reason": 64,
    "NodeList": 8,
    "UserID": 12,
}
COMMENT_WIDTH = 2048

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States in which all processes have ended and the GPUs are free; not COMPLETING."""


REFUSED = ("ReqNodeNotAvail", "Reservation", "NodeDown", "BadConstraints", "PartitionDown", "PartitionInactive")
"""Beginnings of reasons of jobs that do not start on the nodes that they request."""


def is_limit(reason: str) -> bool:
    """Whether a job waits because of a limit, its account, or a hold, and not for its nodes."""
    return reason.startswith(("QOS", "Assoc", "Account", "Invalid", "JobH", "Licenses", "Max")) or reason.endswith(
        "Limit"
    )


class RunJob(msgspec.Struct, frozen=True):
    """A job or a step of Slurm for a run. `exit_code`: as a shell reports it. `restarts`: how often it was requeued.

    `lost`: why the run ended without fault of its own, if its allocation has ended. `had_nodes`: whether it has, or had
    nodes, as far as the controller knows. `owner`: the uid of its user.
    """

    id: SlurmId
    state: str
    exit_code: int = 0
    restarts: int = 0
    reason: str = ""
    lost: str = ""
    had_nodes: bool = True
    owner: int = -1

    @property
    def has_ended(self) -> bool:
        """Whether it has released its nodes."""
        return self.state in ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes yet, or again."""
        return self.state in WAITING

    @property
    def is_limited(self) -> bool:
        """Whether it waits because of a limit of a QOS, an association or a partition, or for licences."""
        return is_limit(self.reason)

    @property
    def is_refused(self) -> bool:
        """Whether it waits because Slurm does not start it on its nodes."""
        return self.reason.startswith(REFUSED)


PART = "part."
"""Begins the names of steps that a launcher has started."""


def run_mark(daemon: str, key: RunKey, user: str = "") -> str:
    """Return the comment of the jobs of a run, and the name of its steps. `user`: who has submitted the job."""
    names = [quote(name, safe="", errors="surrogatepass") for name in (key[0], user) if name]
    return f"refold/{daemon}/{key[1]}/{'/'.join(names)}"


class RunSteps(NamedTuple):
    """The steps of a run in a pool: those that launch it, and those that a launcher has started on other nodes."""

    launchers: list[SlurmId]
    parts: list[SlurmId]


class QueuedRuns(NamedTuple):
    """What Slurm has of the runs of a daemon. `states`: those of all jobs that were read, for allocations of pools.

    Every user can give a job the comment of another's run: what belongs to a run is of its owner.
    """

    jobs: dict[RunKey, list[RunJob]]
    steps: dict[RunKey, RunSteps]
    states: dict[SlurmId, str]

    def unended(self) -> dict[RunKey, int]:
        """Return all runs of which something has not ended, with their owners."""
        owners = {key: job.owner for key, jobs in self.jobs.items() for job in jobs if not job.has_ended}
        return {**dict.fromkeys(self.steps, os.getuid()), **owners}

    def jobs_of(self, key: RunKey, owner: int, claim: SlurmId | None, status: int | None) -> list[RunJob]:
        """Return the jobs of a run, and its steps as if they were jobs."""
        steps = self.steps.get(key, RunSteps([], []))
        found = [RunJob(each, "RUNNING") for each in steps.launchers or steps.parts]
        if not found and claim is not None and "." in claim:
            found = _ended_step(claim, status, self.states.get(claim.partition(".")[0]))
        return [*(job for job in self.jobs.get(key, []) if job.owner == owner), *found]


def _ended_step(claim: SlurmId, status: int | None, allocation: str | None) -> list[RunJob]:
    """Return the step that has claimed a run and is gone, if that follows from the state of its allocation.

    An allocation that is unknown or waits again may be that of a controller that was killed and has an old state. Then
    the step may still run: until it has left an exit status, or none for some time, nothing follows.
    """
    job = claim.partition(".")[0]
    if allocation is None or allocation in WAITING:
        why = f"its allocation, job {job} of Slurm, is gone"
        return [RunJob(claim, "REVOKED", lost=why)] if status is not None else []
    if allocation == "COMPLETING":
        return [RunJob(claim, allocation)]
    if allocation in ENDED:
        return [RunJob(claim, "REVOKED", lost=f"its allocation, job {job} of Slurm, has ended ({allocation})")]
    return []


def read_runs(run: Run, daemon: str, with_steps: bool, selection: Sequence[str]) -> QueuedRuns:
    """Read what belongs to this daemon. `selection`: options of squeue by which it finds all its jobs.

    Steps are read first: if one is gone, the state of its allocation is newer.
    """
    steps = read_run_steps(run, daemon) if with_steps else {}
    found = QueuedRuns({}, steps, {})
    for cells, comment in queued_jobs(run, COLUMNS, selection):
        number, component, state, status, restarts, reason, nodes, owner = cells
        if component not in ("", "0", "N/A") or not number.isdecimal():  # the other components end with the first
            continue
        found.states[number] = state
        if key := _parse_mark(comment, daemon):
            count = int(restarts) if restarts.isdecimal() else 0
            uid = int(owner) if owner.isdecimal() else -1
            job = RunJob(number, state, _exit_code(status), count, reason, had_nodes=bool(nodes), owner=uid)
            found.jobs.setdefault(key, []).append(job)
    return found


def queued_jobs(run: Run, columns: Mapping[str, int], selection: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the columns and the comment of jobs, also, for some minutes, of those that have ended.

    `selection`: options of squeue.
    """
    words = ",".join(f"{name}:{width}" for name, width in {**columns, "Comment": COMMENT_WIDTH}.items())
    text = run("squeue", "--all", *selection, "--states=all", "--noheader", f"--Format={words}")
    for line in text.splitlines():
        cells, position = [], 0
        for width in columns.values():
            cells.append(line[position : position + width].strip())
            position += width
        yield cells, line[position:].strip()


def own_jobs() -> tuple[str, ...]:
    """Return the options of squeue for the jobs of this user."""
    return (f"--user={os.getuid()}",)


def read_run_steps(run: Run, daemon: str) -> dict[RunKey, RunSteps]:
    """Read the steps of this daemon, which are known to Slurm until they have ended."""
    text = run("squeue", "--all", *own_jobs(), "--steps", "--noheader", "--format=%i %j")
    found: dict[RunKey, RunSteps] = {}
    for line in text.splitlines():
        number, _, name = line.partition(" ")
        is_part = name.startswith(PART)
        if (key := _parse_mark(name.removeprefix(PART), daemon)) and number.replace(".", "", 1).isdecimal():
            steps = found.setdefault(key, RunSteps([], []))
            (steps.parts if is_part else steps.launchers).append(number)
    return found


def _parse_mark(text: str, daemon: str) -> RunKey | None:
    prefix, _, rest = text.partition(f"refold/{daemon}/")
    number, _, names = rest.partition("/")
    job = names.partition("/")[0]
    return (unquote(job), int(number)) if not prefix and number.isdecimal() and job else None


def _exit_code(text: str) -> int:
    """Return a status as the shell reports it. Slurm prints that of wait(2), or 'exit:signal'."""
    code, separator, signal = text.partition(":")
    if separator and code.isdecimal() and signal.isdecimal():
        return int(code) or (128 + int(signal) if int(signal) else 0)
    if not code.isdecimal():
        return 0
    return int(code) >> 8 or (128 + (int(code) & 127) if int(code) & 127 else 0)
