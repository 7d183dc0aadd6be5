"""Start a run as a step inside an allocation of the pool, by srun.

Only the start needs srun: if the machine that it is on is lost, the step runs on. If srun is killed alone, a process
that watches it ends the step, and the run is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from refold.engines.slurm.nodes import SlurmCluster
from refold.engines.slurm.pool import HeldPool, PoolNode, narrowed
from refold.engines.slurm.programs import Programs, SlurmError, program_message
from refold.engines.slurm.requests import NodeRequest, is_part, node_requests, resource_arguments
from refold.engines.slurm.run_jobs import PART, run_mark
from refold.engines.slurm.run_state import NOT_WRITABLE, START_TIMEOUT
from refold.engines.slurm.scripts import CLAIM_FAILED, step_script
from refold.engines.slurm.submission import InstanceWriter, SupervisedRun
from refold.errors import BadInput
from refold.model import Seconds

LOOK_SECONDS: Seconds = 0.02
"""How often it is seen whether a step has begun."""

STOP_SECONDS: Seconds = 5.0
"""How long a step that is to be stopped may wait for its creation."""

LAUNCHER_MIB = 512
"""Memory of the step that launches those of a gang, which it shares with them."""

NOT_YET = "memory required by task is not available"
"""Part of a message of a controller that has just been restarted. Requests that are too large are not sent."""


class NotStarted(SlurmError):
    """A step could not be created. The run may be started elsewhere."""


class NotYet(SlurmError):
    """A step could not be created now."""

    is_transient = True


class _Step(NamedTuple):
    """Equal requests in one allocation."""

    job: int
    requests: list[NodeRequest]

    def arguments(self) -> list[str]:
        """Return the options of srun."""
        resources = resource_arguments(self.requests)
        none = [] if self.requests[0].gres else ["--gres=none"]
        return [f"--jobid={self.job}", "--exact", *resources, *none]


class StepSubmitter:
    """Starts each run as a step; one on several nodes as a step that launches others."""

    def __init__(
        self, programs: Programs, nodes: SlurmCluster, daemon: str, pool: HeldPool, instances: InstanceWriter
    ) -> None:
        self._environment = programs.without_user_environment().environment
        self._nodes = nodes
        self._daemon = daemon
        self._pool = pool
        self._instances = instances
        self._clients: list[DetachedProcess] = []

    async def submit(self, run: SupervisedRun) -> None:
        """Start a step; return when it has claimed the run."""
        words = await asyncio.to_thread(self._prepare, run)
        client = DetachedProcess(words, self._environment, run.files.client)
        self._clients = [*(each for each in self._clients if each.poll() is None), client]
        await self._wait_for_claim(run, client)

    async def _wait_for_claim(self, run: SupervisedRun, client: DetachedProcess) -> None:
        deadline = monotonic() + START_TIMEOUT
        while run.files.claim() is None:
            if client.poll() is not None and run.files.claim() is None:
                raise self._failure(run, client.status or 0)
            if run.state.stop:  # a step that is being created ends by itself
                deadline = min(deadline, monotonic() + STOP_SECONDS)
            if monotonic() > deadline:
                client.terminate()  # srun withdraws its request
                deadline = inf
            await asyncio.sleep(LOOK_SECONDS)

    def _prepare(self, run: SupervisedRun) -> list[str]:
        """Write the files of a run; return the command that starts it."""
        steps = self._steps(run)
        call = self._instances.write(run)
        mark = run_mark(self._daemon, run.state.key, run.job.user)
        parts = [[*step.arguments(), f"--job-name={PART}{mark}"] for step in steps] if run.has_step else []
        script = run.files.write_launcher(step_script(call, parts))
        return [
            "srun",
            "--quiet",
            f"--job-name={mark}",
            "--mpi=none",
            "--input=none",
            f"--output={str(run.files.output).replace('%', '%%')}",
            f"--chdir={run.files.common.folder}",
            *(_launcher_arguments(steps[0]) if run.has_step else steps[0].arguments()),
            "bash",
            str(script),
        ]

    def _steps(self, run: SupervisedRun) -> list[_Step]:
        if any(map(is_part, run.allocation.placement)):
            raise BadInput(f"{run.job.id} requests a part of a GPU; a pool in Slurm has whole GPUs only")
        places: dict[str, tuple[int, PoolNode]] = {}
        for share in run.allocation.placement:
            name = self._nodes.groups[share.node].node.name
            if (place := self._pool.place(name)) is None:
                raise NotStarted(f"{name} is not in the pool any more")
            places[name] = place
        nodes = narrowed(self._nodes, {name: part for name, (_, part) in places.items()})
        requests = node_requests(nodes, run.job, run.allocation)
        for request in requests:
            _check_size(request, *places[request.node])
        return _group(requests, {name: number for name, (number, _) in places.items()})

    def _failure(self, run: SupervisedRun, status: int) -> Exception:
        if status == CLAIM_FAILED:
            return BadInput(NOT_WRITABLE)
        error = SlurmError(program_message("srun", run.files.client.read_text(errors="replace"), status))
        if error.is_transient or NOT_YET in str(error).lower():
            return NotYet(str(error))
        return NotStarted(f"Slurm did not start its step: {error}")


def _check_size(request: NodeRequest, job: int, place: PoolNode) -> None:
    for name, needed, held in (
        ("CPUs", request.cpus, place.cpus),
        ("MiB of memory", request.memory_mib, place.memory_mib or request.memory_mib),
    ):
        if needed > held:
            raise NotStarted(f"it needs {needed} {name} on {place.name}; allocation {job} has {held}")


def _group(requests: Sequence[NodeRequest], jobs: dict[str, int]) -> list[_Step]:
    def kind(request: NodeRequest) -> tuple[int, tuple[str, int, int]]:
        return jobs[request.node], request.amounts

    ordered = sorted(requests, key=kind)
    return [_Step(number, list(group)) for (number, _), group in groupby(ordered, key=kind)]


def _launcher_arguments(step: _Step) -> list[str]:
    """Return the options of a step beside all others on the first node."""
    memory = min(LAUNCHER_MIB, step.requests[0].memory_mib)
    return [
        f"--jobid={step.job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={step.requests[0].node}",
        f"--mem={memory}M",
        "--gres=none",
    ]


class DetachedProcess:
    """A program in a session of its own, without input. `status`: its exit status, once it is known.

    `output`: the file for what it prints. Raises OSError if it cannot be run.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.status: int | None = None
        self.pid = os.posix_spawnp(
            words[0],
            list(words),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def poll(self) -> int | None:
        """Return its exit status, if it has ended."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
