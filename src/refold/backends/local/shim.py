"""What stands between us and a command: a shell that claims the instance, runs the command, and writes how it ended.

It outlives us. The claim is made by creating a file that must not exist, so of two shims for the same instance one
runs the command and the other goes away: a run is never started twice, whoever tries. (A machine that loses power may
lose the claim as well; but then nothing runs there any more.) Nothing of a job is part of the shell's text.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refold.backends.local.process import Process, boot_id, is_alive, process_of, seen_in
from refold.backends.local.run_files import RunFiles
from refold.backends.local.safe_files import open_plain, read_plain

NOT_CLAIMED = 97
"""The exit status of a shim that could not claim its instance: there is a claim already, or it cannot be written."""

SHELL = "/bin/sh"
LONGEST_STATUS = 4

# The signals that ask to stop go to the whole group; the shell lives through them to write how the command ended.
# A trap is back to its default in the subshell. The end is decided in a file before it is signalled: who was started
# too late to get the signal finds the file. Standard error goes elsewhere lest the shell says "Killed" in the log.
TEXT = """\
trap : HUP INT TERM USR1 USR2
exec 9>&2 2>/dev/null
_refold_boot=
{ read -r _refold_stat </proc/self/stat && read -r _refold_boot </proc/sys/kernel/random/boot_id; } || _refold_stat=$$
set -C
printf '%s %s\\n' "$_refold_stat" "$_refold_boot" >"$1" || exit 97
set +C
(
    exec 2>&9 9>&-
    [ ! -e "$3" ] || exit 143
    cd -- "$4" || exit 126
    shift 4
    exec "$@"
)
_refold_status=$?
printf '%s\\n' "$_refold_status" >"$2"
exit "$_refold_status"
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which process has claimed an instance, and since when the machine was up then."""

    process: Process
    boot: str

    def holds(self) -> bool:
        """Whether that process is still there."""
        return self.boot in ("", boot_id()) and is_alive(self.process)


def start_shim(
    files: RunFiles, instance: int, folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> Process:
    """Start a command behind a shim, in a session of its own, with its output appended to its log."""
    places = map(str, (files.claim(instance), files.exit(instance), files.end, folder))
    with open_plain(files.log(instance), os.O_WRONLY | os.O_CREAT | os.O_APPEND) as output:
        shell = subprocess.Popen(
            [SHELL, "-c", TEXT, "refold-shim", *places, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    shell.returncode = 0  # whoever waits for the process collects it; this object has nothing more to do with it
    return process_of(shell.pid)


def read_claim(path: Path) -> Claim | None:
    """Who has claimed an instance; None: nobody, or somebody who is about to write down who they are."""
    try:
        line = read_plain(path)
        if not line.endswith(b"\n"):
            return None
        if b")" not in line:
            return Claim(Process(int(line)), "")
        stat, _, boot = line.strip().rpartition(b" ")
        found = seen_in(stat)
        return Claim(Process(found.pid, found.started), boot.decode())
    except (OSError, ValueError, IndexError):  # also what a job has made of it
        return None


def read_exit(path: Path) -> int | None:
    """The status that a shim has written, if it has come to that."""
    try:
        line = read_plain(path, LONGEST_STATUS + 1)
    except OSError:
        return None
    return int(line) if line.endswith(b"\n") and line[:-1].isdigit() and len(line) <= LONGEST_STATUS else None


def why_not_well(status: int) -> str:
    """How a command has ended that has not ended well; of a signal the shell says 128 and its number."""
    meaning = {126: " (cannot be executed)", 127: " (command not found)"}
    number = -status if status < 0 else status - 128
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"exit {status}{meaning.get(status, '')}"


def why_cannot_start(word: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What the system would say to a command of this name, for it is told to a shell and not to us."""
    if not folder.is_dir():
        return f"its folder {str(folder)!r} is not there"
    sought = str(folder / word) if "/" in word else word
    if shutil.which(sought, path=environment.get("PATH", os.defpath)):
        return ""
    is_there = "/" in word and Path(sought).exists()
    return f"cannot start {word!r}: {os.strerror(errno.EACCES if is_there else errno.ENOENT)}"
