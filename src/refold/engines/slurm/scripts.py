"""The shell scripts by which Slurm runs the instances of a run.

The batch script claims the run by creating a file exclusively, so that of two jobs of Slurm for the same run only one
starts it: one that was requeued, or submitted twice because the controller did not answer. On each node an agent starts
the instances there, each behind a shim in a session of its own, and ends them together. A job with one node runs the
agent in its batch script, one with several by `srun`.

The scripts need bash, `setsid` and `ps` on the nodes, and the folder of the run under the same path.

Beside the files that every run has, jobs in Slurm read and write those that are listed here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from refold.core import RunFailed, RunStopped
from refold.engines.slurm.run_jobs import SlurmId
from refold.server.output import SHARED_FILE, ResourceShortage, RunFiles, StartRecord, read_regular, write_atomically

STOP_SIGNAL, KILL_SIGNAL = "URG", "USR2"
"""What the agent is sent to end a run, with the grace period and without. Other processes ignore URG."""

CLAIM_FAILED = 97
"""Exit status of a batch script that has not started its run: the run is claimed, or the file cannot be written."""

STEP_FAILED = 98
"""Exit status of a batch script whose agents could not be started, or were lost."""

STOPPED = 143
"""Exit status of a batch script whose run was stopped before all instances had succeeded."""

# A stop is recorded before it is signalled: an agent that starts too late for the signal finds the file. Slurm decides
# which GPUs of a node a job gets: they are divided among its instances. `wait -n` may miss a signal that arrives just
# before it, hence the `sleep`. The first instance that fails decides how the run ends, not those that are ended then. A
# zombie keeps its process group alive, hence `ps`. An instance that was killed is started again if the others go on
# without it (see docs/failures.md). An agent that is alone writes the status of a success at once: a
# controller that has forgotten its job kills it.
AGENT = """\
refold_agent() {
    local run=$1 stop=$2 grace=$3 code=0 tick= left next=0 again=0
    local gpus=() pids=() own=() mine=() entry node instance count pid index total
    shift 3
    total=$#
    trap 'order=stop' URG TERM
    trap 'order=kill' USR2
    trap : HUP INT USR1
    [ ! -e "$run.end" ] || return 143
    : >>"$run.slurm.begun"
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
    for entry in "$@"; do
        IFS=: read -r instance count node <<<"$entry"
        [ "$node" = "$SLURMD_NODENAME" ] || continue
        own+=("$instance") mine+=("$(IFS=,; echo "${gpus[*]:next:count}")")
        next=$((next + count))
    done
    refold_begin() {
        [ -z "${ROCR_VISIBLE_DEVICES+set}" ] || ROCR_VISIBLE_DEVICES=${mine[$1]}
        CUDA_VISIBLE_DEVICES=${mine[$1]} setsid bash "$run.${own[$1]}.sh" </dev/null >>"$run.${own[$1]}.log" 2>&1 &
        pids[$1]=$!
    }
    refold_go_on() {
        [ "$total" -gt 1 ] && [ -e "$run.0.change.agent" ] && [ -z "$order" ] || return 1
        kill -KILL -- "-${pids[$1]}"
        if [ "$2" = 75 ]; then unset "pids[$1]"; return 0; fi
        [ "$2" -gt 128 ] && [ "$again" -lt 3 ] || return 1
        again=$((again + 1))
        rm -f "$run.${own[$1]}.exit" "$run.${own[$1]}.claim"
        refold_begin "$1"
    }
    for index in "${!own[@]}"; do refold_begin "$index"; done
    refold_signal() { for pid in "${pids[@]}"; do kill -s "$1" -- "-$pid"; done 2>/dev/null; }
    refold_left() {
        for pid in "${pids[@]}"; do
            kill -0 -- "-$pid" 2>/dev/null && ps -o stat= -s "$pid" | grep -qv '^Z' && return 0
        done
        return 1
    }
    while [ -z "$order" ]; do
        left=0
        for index in "${!pids[@]}"; do
            if kill -0 "${pids[$index]}" 2>/dev/null; then left=1; continue; fi
            wait "${pids[$index]}" || { code=$?; refold_go_on "$index" "$code" || break 2; code=0 left=1; }
        done
        [ "$left" = 1 ] || break
        [ ! -s "$run.slurm.failed" ] || order=failed
        kill -0 "$tick" 2>/dev/null || { sleep 1 & tick=$!; }
        wait -n
    done 2>/dev/null
    [ "$code" = 0 ] || (set -C; echo "$code" >"$run.slurm.failed") 2>/dev/null
    [ "$code$order" != 0 ] || [ -z "$alone" ] || refold_status 0
    [ -z "$order" ] || code=143
    [ "$order" = stop ] || stop=TERM
    if [ "$order" != kill ] && refold_left; then refold_signal "$stop"; fi
    while [ "$order" != kill ] && [ "$grace" -gt 0 ] && refold_left; do
        sleep 0.1
        grace=$((grace - 1))
    done
    while refold_left; do refold_signal KILL; sleep 0.05; done
    [ -z "$tick" ] || kill "$tick" 2>/dev/null
    return "$code"
}
"""

BATCH = """\
#!/bin/bash
{agent}
run={run}
order=
trap 'order=stop' URG TERM
trap 'order=kill' USR2
trap : HUP INT USR1
set -C
{{ printf '%s\\n' "{claimant}" >"$run.slurm.claim"; }} 2>/dev/null || exit 97
set +C
refold_status() {{
    printf '%s\\n' "$1" >"$run.slurm.status.new"
    mv "$run.slurm.status.new" "$run.slurm.status"
}}
{launch} {arguments}
code=$?
[ "$code" = 0 ] || [ ! -s "$run.slurm.failed" ] || read -r code <"$run.slurm.failed"
refold_status "$code"
exit "$code"
"""

LAUNCH_HERE = "alone=1; refold_agent"
LAUNCH_ON_NODES = """\
refold_on_nodes() {{
    local code tries
    for tries in $(seq {tries}); do
        srun --quiet {options} --kill-on-bad-exit=1 --mem=0 --input=none \\
            bash -c "$(declare -f refold_agent); refold_agent \\"\\$@\\"" refold-agent "$@"
        code=$?
        [ "$code" != 0 ] && [ ! -e "$1.slurm.begun" ] && [ ! -e "$1.end" ] && [ -z "$order" ] || break
        sleep 2
    done
    [ "$code" = 0 ] || [ "$code" = 143 ] || [ -s "$1.slurm.failed" ] || code=98
    return "$code"
}}
refold_on_nodes"""
"""Each component of the job has one task on each of its nodes. If the agent of a node fails, the others are ended.

While the controller does not answer, no step can be created.
"""

LAUNCH_IN_POOL = """\
refold_in_pool() {{
    local code=0 left pid pids=() step name
    for name in "${{!SLURM_@}}"; do [ "$name" = SLURM_CONF ] || unset "$name"; done
    for step in {steps}; do
        srun --quiet $step --kill-on-bad-exit=1 --mpi=none --input=none \\
            bash -c "$(declare -f refold_agent); refold_agent \\"\\$@\\"" refold-agent "$@" &
        pids+=($!)
    done
    left=1
    while [ "$left" = 1 ]; do
        left=0
        for pid in "${{pids[@]}}"; do
            if kill -0 "$pid" 2>/dev/null; then left=1; continue; fi
            wait "$pid" || {{ code=98; (set -C; echo 98 >"$1.slurm.failed") 2>/dev/null; }}
        done
        [ "$left" = 0 ] || {{ sleep 0.2 & wait $!; }}
    done
    [ -z "$order" ] || [ "$code" = 0 ] || code=143
    return "$code"
}}
refold_in_pool"""
"""Equal nodes of the same allocation are one step. The agents of the others end when one has failed.

A step cannot be created from within another one that has its variables.
"""

STEP_TRIES = 60

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

FIRST_PORT, PORTS = 20_000, 10_000
"""Where gangs meet: below the ports that the system gives to programs. Which ones a node uses is not known here."""

MAX_LINE_BYTES = 32
_ID = re.compile(r"[0-9]+(\.[0-9]+)?")


class AgentCall(NamedTuple):
    """What the agents of a run get. `run`: the beginning of the paths of its files.

    `places`: node and number of GPUs of each instance.
    """

    run: str
    stop_signal: str
    grace: float
    places: Sequence[tuple[str, int]]

    def arguments(self) -> str:
        """Return their arguments, quoted."""
        entries = [f"{instance}:{gpus}:{node}" for instance, (node, gpus) in enumerate(self.places)]
        return shlex.join([self.run, self.stop_signal, str(round(self.grace * 10)), *entries])


def batch_script(call: AgentCall, components: int) -> str:
    """Return the batch script of a run. `components`: those of its job; 0: it has one node only."""
    options = f"--het-group=0-{components - 1}" if components > 1 else ""
    launch = LAUNCH_ON_NODES.format(options=options, tries=STEP_TRIES) if components else LAUNCH_HERE
    return _script(call, "$SLURM_JOB_ID", launch)


def step_script(call: AgentCall, steps: Sequence[Sequence[str]]) -> str:
    """Return the script of a step for a run. `steps`: options of those that it launches; none: the run is here."""
    launch = LAUNCH_IN_POOL.format(steps=shlex.join(map(" ".join, steps))) if steps else LAUNCH_HERE
    return _script(call, "$SLURM_JOB_ID.$SLURM_STEP_ID", launch)


def _script(call: AgentCall, claimant: str, launch: str) -> str:
    return BATCH.format(
        agent=AGENT, run=shlex.quote(call.run), claimant=claimant, launch=launch, arguments=call.arguments()
    )


def instance_script(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Return the script that becomes an instance: a command with an environment."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items() if _NAME.fullmatch(name)]
    return "\n".join([*exports, f"exec {shlex.join(command)}", ""])


class SlurmRunFiles:
    """The files of one run. `common`: those that every run has."""

    def __init__(self, out: Path, job: str, run: int) -> None:
        self.common = RunFiles(out, job, run)
        self.prefix = self.common.folder / f"run-{run}"
        self.output = self._path("slurm.log")
        """What the batch script prints."""
        self.client = self._path("slurm.srun")
        """What srun prints, which starts a step."""

    def claim(self) -> SlurmId | None:
        """Return the job or the step of Slurm that has claimed the run, if there is one."""
        text = self._read_line("slurm.claim")
        return text if text and _ID.fullmatch(text) else None

    def status(self) -> int | None:
        """Return the exit status of the run, if it has ended by itself or was stopped."""
        text = self._read_line("slurm.status")
        return int(text) if text and text.isdecimal() else None

    def was_prepared(self) -> bool:
        """Whether a job may have been submitted for the run."""
        return self.common.read_start() is not None

    def record_start(self, mark: str, instances: int) -> StartRecord:
        """Write the start record before a job is submitted; if there is one already, return that."""
        first = FIRST_PORT + crc32(mark.encode()) % (PORTS - instances - 1)
        ports = range(first + 1, first + 1 + instances) if instances > 1 else ()
        return self.common.record_start(StartRecord(mark, first if instances > 1 else 0, tuple(ports)))

    def record_end(self, end: RunStopped | RunFailed) -> bool:
        """Write how the run ends, and whether that was possible: from then on no job starts it."""
        try:
            self.common.record_end(end)
        except OSError:
            return False
        return True

    def are_of(self, owner: int) -> bool:
        """Whether the folder of the job exists and belongs to a user."""
        try:
            return self.common.folder.lstat().st_uid == owner
        except OSError:
            return False

    def write_scripts(self, scripts: Sequence[str]) -> None:
        """Write the scripts of the instances. They contain their environment; the folder is private."""
        for instance, text in enumerate(scripts):
            write_atomically(self._path(f"{instance}.sh"), text.encode(errors="surrogateescape"), SHARED_FILE)

    def write_launcher(self, script: str) -> Path:
        """Write the script that a job or a step runs; return its path."""
        path = self._path("slurm.sh")
        write_atomically(path, script.encode(errors="surrogateescape"), SHARED_FILE)
        return path

    def _path(self, suffix: str) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.{suffix}")

    def _read_line(self, suffix: str) -> str | None:
        with suppress(OSError, ResourceShortage):
            text = read_regular(self._path(suffix), MAX_LINE_BYTES)
            if text.endswith(b"\n"):
                return text.decode("ascii", "replace").strip()
        return None
