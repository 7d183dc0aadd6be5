"""The shim: a shell that claims an instance, runs the command, and records its exit status.

The shim outlives the daemon. It claims the instance by creating a file exclusively, so of two shims for the same
instance only one runs the command: a run is never started twice. (A power failure may lose the claim file, but then the
processes are gone too.) No part of a job is interpolated into the shell's text.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from refold.engines.local.environment import output_path
from refold.engines.local.log_keeper import keeper_arguments
from refold.engines.local.process import Process, boot_id, identify_process, is_alive, parse_stat
from refold.engines.local.process_host import NO_COPIES, OutputCopy, OwnProcesses, ProcessHost
from refold.engines.local.run_groups import GroupPlace
from refold.model import Job
from refold.server import job_descriptor_limit
from refold.server.output import (
    DEFAULT_MAX_OUTPUT_BYTES,
    OWNER_ONLY_FILE,
    RunFiles,
    open_regular,
    read_regular,
    share_pipe,
)

CLAIM_FAILED = 97
"""Exit status of a shim that could not claim its instance: it is claimed already, or the file cannot be written."""

SHELL = "/bin/sh"
MAX_STATUS_BYTES = 4
LINKER_VARIABLE = re.compile(r"(LD|DYLD)_[A-Za-z0-9_]*|GLIBC_TUNABLES|GCONV_PATH", re.ASCII)

# Stop signals go to the whole process group; the shell survives them to record the exit status of the command. In the
# subshell the traps are back at their defaults. Before, signals are ignored, not trapped: one that interrupted the
# opening of a pipe would end the shell, and the reader of the pipe would wait for ever. The end of a run is recorded in
# a file before it is signalled: a shim that starts too late to receive the signal finds the file. The log keeper and
# `tee` ignore stop signals too, and end when all processes have closed their output. The shell's stderr is redirected
# so that it does not print "Killed" to the log. Output is copied to files of the job by `tee`. These files are not
# bounded, as the log is (`log_keeper`). Space for the exit status is written before the command starts, so that it can
# be recorded if the disk is full by then. Variables of the dynamic linker are exported last: the shell and `tee` must
# not load what a job preloads.
SCRIPT = """\
trap '' HUP INT TERM USR1 USR2
exec 2>/dev/null
_refold_boot=
{ read -r _refold_stat </proc/self/stat && read -r _refold_boot </proc/sys/kernel/random/boot_id; } || _refold_stat=$$
set -C
printf '%s %s\\n' "$_refold_stat" "$_refold_boot" >"$1" || exit 97
set +C
printf '   \\n' >"$2" || exit 97
/bin/sh -c "${12}" "${12}" "${13}" "${14}" "${15}" "${16}" <"${11}" >/dev/null &
exec >"${11}" 9>"${11}"
command -p rm -f "${11}" 8>&- 9>&-
_refold_copy() {
    [ -z "$3" ] || printf '' >"$1"
    command -p tee -a "$1" <"$2" 2>&9 8>&- 9>&- &
}
if [ -n "$5" ]; then _refold_copy "$5" "$6" "$7"; exec 8>"$6"; command -p rm -f "$6"; fi
if [ -n "$8" ]; then _refold_copy "$8" "$9" "${10}"; exec 7>"$9"; command -p rm -f "$9"; fi
trap : HUP INT TERM USR1 USR2
(
    exec 2>&9 9>&-
    [ ! -e "$3" ] || exit 143
    cd -- "$4" || exit 126
    [ -z "$5" ] || exec >&8 2>&8 8>&-
    [ -z "$8" ] || exec 2>&7 7>&-
    shift 16
    while [ "$1" != -- ]; do export "$1"; shift; done
    shift
    exec "$@"
)
_refold_status=$?
exec 7>&- 8>&-
printf '%-3s\\n' "$_refold_status" 1<>"$2"
exit "$_refold_status"
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """The process that has claimed an instance, and the boot id at that time."""

    process: Process
    boot: str

    def is_alive(self) -> bool:
        """Whether that process is still running."""
        return self.boot in ("", boot_id()) and is_alive(self.process)


def start_shim(
    files: RunFiles,
    instance: int,
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    copies: Sequence[OutputCopy] = NO_COPIES,
    *,
    user: str = "",
    host: ProcessHost | None = None,
    place: GroupPlace | None = None,
    max_output: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> Process:
    """Start a command behind a shim, in its own session, with its output appended to the log, and copied to files.

    `host`: what starts it, as `user`; None: this process. `place`: the cgroup in which it runs, if there are any.
    `max_output`: size of the log in bytes.
    """
    host = host or OwnProcesses()
    exports = linker_variables(environment)
    words = shim_command(files, instance, folder, host.command(command), copies, exports, max_output)
    words[2] = f"ulimit -S -n {job_descriptor_limit()} 2>/dev/null\n{words[2]}"
    variables = without_linker_variables(environment)
    with open_regular(files.log(instance), os.O_WRONLY | os.O_CREAT | os.O_APPEND) as output:
        return identify_process(host.start(user, words, variables, output.fileno(), place))


def shim_command(
    files: RunFiles,
    instance: int,
    folder: Path,
    command: Sequence[str],
    copies: Sequence[OutputCopy] = NO_COPIES,
    exports: Mapping[str, str] | None = None,
    max_output: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> list[str]:
    """Return the command line of a shim, and create the pipes that it needs.

    `exports`: variables that only the command gets.
    """
    paths = [str(path) for path in (files.claim(instance), files.exit(instance), files.end, folder)]
    for copy in copies:
        is_copied = copy.path is not None
        paths += [str(copy.path), _make_pipe(files.pipe(instance, copy.stream))] if is_copied else ["", ""]
        paths.append("replace" if is_copied and copy.replace else "")
    unique = f"log-{uuid4().hex}"  # a shim of a killed daemon may be starting, too
    paths += [_make_pipe(files.pipe(instance, unique)), *keeper_arguments(files, instance, max_output)]
    assignments = [f"{name}={value}" for name, value in (exports or {}).items()]
    return [SHELL, "-c", SCRIPT, "refold-shim", *paths, *assignments, "--", *command]


def linker_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how programs are loaded, such as LD_PRELOAD."""
    return {name: value for name, value in environment.items() if LINKER_VARIABLE.fullmatch(name)}


def without_linker_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not LINKER_VARIABLE.fullmatch(name)}


def output_copies(job: Job, run: int, folder: Path, instance: int) -> tuple[OutputCopy, ...]:
    """Return the files that receive a copy of an instance's output. The first run replaces their content."""
    patterns = {"output": job.launch.output, "error": job.launch.error}
    copies: list[OutputCopy] = []
    for stream, pattern in patterns.items():
        path = output_path(pattern, job, folder, instance)
        is_first = instance == 0 or path != output_path(pattern, job, folder, 0)
        copies.append(OutputCopy(stream, path, replace=run == 1 and is_first))
    return tuple(copies)


def _make_pipe(pipe: Path) -> str:
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, OWNER_ONLY_FILE)
    share_pipe(pipe)
    return str(pipe)


def read_claim(path: Path) -> Claim | None:
    """Read the claim of an instance; None if there is none or it is not completely written yet."""
    try:
        line = read_regular(path)
        if not line.endswith(b"\n"):
            return None
        if b")" not in line:
            return Claim(Process(int(line)), "")
        stat, _, boot = line.strip().rpartition(b" ")
        info = parse_stat(stat)
        return Claim(Process(info.pid, info.started), boot.decode())
    except (OSError, ValueError, IndexError):  # a job may have overwritten it
        return None


def read_exit_status(path: Path) -> int | None:
    """Read the exit status that a shim has recorded, or None."""
    try:
        line = read_regular(path, MAX_STATUS_BYTES + 1)
    except OSError:
        return None
    is_recorded = line.endswith(b"\n") and line.strip().isdigit() and len(line) <= MAX_STATUS_BYTES
    return int(line) if is_recorded else None


def describe_exit(status: int) -> str:
    """Describe a failure: 'exit 1', 'killed by SIGKILL'. The shell reports a signal as 128 + its number."""
    meaning = {126: " (cannot be executed)", 127: " (command not found)"}
    number = -status if status < 0 else status - 128
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"exit {status}{meaning.get(status, '')}"
