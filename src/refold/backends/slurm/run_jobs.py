"""The jobs of Slurm that were submitted for runs. They are recognised by a comment: Slurm may use their ids again."""

from __future__ import annotations

import os
import pwd
from urllib.parse import quote, unquote

import msgspec

from refold.backends.slurm.programs import Run

RunKey = tuple[str, int]
"""Job id and run number."""

COLUMNS = {"JobID": 16, "HetJobOffset": 12, "State": 24, "exit_code": 16, "RestartCnt": 12, "Reason": 64}
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


class RunJob(msgspec.Struct, frozen=True):
    """A job of Slurm for a run. `exit_code`: as a shell reports it. `restarts`: how often it was requeued."""

    number: int
    state: str
    exit_code: int = 0
    restarts: int = 0
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has released its nodes."""
        return self.state in ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes yet, or again."""
        return self.state in WAITING


def run_comment(daemon: str, key: RunKey) -> str:
    """Return the comment of the jobs of a run."""
    return f"refold/{daemon}/{key[1]}/{quote(key[0], safe='', errors='surrogatepass')}"


def read_run_jobs(run: Run, daemon: str) -> dict[RunKey, list[RunJob]]:
    """Read the jobs of this daemon: all in the queue, and for some minutes those that have ended."""
    user = pwd.getpwuid(os.getuid()).pw_name
    columns = ",".join(f"{name}:{width}" for name, width in {**COLUMNS, "Comment": COMMENT_WIDTH}.items())
    text = run("squeue", "--all", f"--user={user}", "--states=all", "--noheader", f"--Format={columns}")
    found: dict[RunKey, list[RunJob]] = {}
    for line in text.splitlines():
        cells, position = [], 0
        for width in COLUMNS.values():
            cells.append(line[position : position + width].strip())
            position += width
        key = _parse_comment(line[position:].strip(), daemon)
        number, component, state, status, restarts, reason = cells
        if key is not None and component in ("", "0", "N/A") and number.isdecimal():  # the others end with the first
            job = RunJob(int(number), state, _exit_code(status), int(restarts) if restarts.isdecimal() else 0, reason)
            found.setdefault(key, []).append(job)
    return found


def _parse_comment(text: str, daemon: str) -> RunKey | None:
    prefix, _, rest = text.partition(f"refold/{daemon}/")
    number, _, job = rest.partition("/")
    return (unquote(job), int(number)) if not prefix and number.isdecimal() and job else None


def _exit_code(text: str) -> int:
    """Return a status as the shell reports it. Slurm prints that of wait(2), or 'exit:signal'."""
    code, separator, signal = text.partition(":")
    if separator and code.isdecimal() and signal.isdecimal():
        return int(code) or (128 + int(signal) if int(signal) else 0)
    if not code.isdecimal():
        return 0
    return int(code) >> 8 or (128 + (int(code) & 127) if int(code) & 127 else 0)
