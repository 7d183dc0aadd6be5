"""Start a run as a job of Slurm: write the scripts of its instances, and pass a batch script to sbatch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from refold.core import RunFailed, StartRun
from refold.engines.local import (
    Devices,
    RunEnvironment,
    describe_exit,
    linker_variables,
    output_copies,
    read_exit_status,
    shim_command,
    without_linker_variables,
)
from refold.engines.slurm.job_owners import JobOwners, Uid
from refold.engines.slurm.nodes import SlurmCluster
from refold.engines.slurm.refusals import Refusals
from refold.engines.slurm.requests import (
    NodeRequest,
    SlurmSettings,
    components,
    needed_time,
    node_requests,
    partition_arguments,
    partitions_of,
    resource_arguments,
    segment_arguments,
)
from refold.engines.slurm.run_jobs import SlurmId, run_mark
from refold.engines.slurm.run_state import RunState
from refold.engines.slurm.scripts import AgentCall, SlurmRunFiles, batch_script, instance_script
from refold.errors import BadInput
from refold.model import Allocation, Job, Seconds
from refold.server import ExportedOf, SecretsOf
from refold.server.output import new_mark

GIVEN_BY_SLURM = ("CUDA_VISIBLE_DEVICES", "SLURM_", "SLURMD_", "SBATCH_", "SRUN_")
"""Beginnings of variables that Slurm sets. The daemon or the submitter may have those of another job of Slurm."""

GIVEN_BY_REFOLD = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_SUBMIT_DIR")
"""Those in which the instances of a gang differ, or that are not about a job."""


@dataclass(eq=False)
class SupervisedRun:
    """A run and what belongs to it. `submission`: the task that submits it, while it does.

    `owner`: the uid of its jobs. `submitted_at`: when its submission has ended. `has_step`: whether its agents are
    tasks of a step, because it has several nodes. `parts`: steps that another one has started. `is_stray`: the
    scheduler does not know the run.
    """

    job: Job
    allocation: Allocation
    files: SlurmRunFiles
    state: RunState
    owner: Uid
    has_step: bool = False
    is_stray: bool = False
    is_stop_recorded: bool = False
    submission: asyncio.Task[None] | None = None
    submitted_at: Seconds = 0.0
    parts: tuple[SlurmId, ...] = ()
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class InstanceWriter:
    """Writes the scripts of the instances of runs."""

    def __init__(self, nodes: SlurmCluster, owners: JobOwners, exported: ExportedOf, secrets: SecretsOf) -> None:
        self._nodes = nodes
        self._owners = owners
        devices = Devices({}, None, (), are_gpus=False)
        self._environment = RunEnvironment(owners.inherited, devices, exported, secrets)

    def has_step(self, allocation: Allocation) -> bool:
        """Whether a run has several nodes of Slurm."""
        return len({self._node(share.node) for share in allocation.placement}) > 1

    def write(self, run: SupervisedRun) -> AgentCall:
        """Write the scripts; return what the agents of the run get."""
        if not run.job.command:
            raise BadInput("the job has no command")
        files, placement = run.files.common, run.allocation.placement
        self._owners.prepare(run.owner, *files.place)
        record = run.files.record_start(new_mark(files.folder.parent), len(placement))
        addresses = [self._address(share.node) for share in placement]
        order = StartRun(run.job.id, run.state.key[1], run.allocation)
        environments = self._environment.build(run.job, order, files, record, run.state.grace, addresses)
        folder = files.checkpoint_folder / run.job.launch.folder
        run.files.write_scripts(
            [
                instance_script(
                    _without_given(without_linker_variables(variables), run.job, len(share.gpus)),
                    self._command(run, instance, folder, linker_variables(variables)),
                )
                for instance, (variables, share) in enumerate(zip(environments, placement, strict=True))
            ]
        )
        places = [(self._node(share.node), len(share.gpus)) for share in placement]
        return AgentCall(str(run.files.prefix), run.job.launch.stop_signal, run.state.grace, places)

    def _command(self, run: SupervisedRun, instance: int, folder: Path, exports: Mapping[str, str]) -> list[str]:
        copies = output_copies(run.job, run.state.key[1], folder, instance)
        return shim_command(run.files.common, instance, folder, self._owners.command(run.job.command), copies, exports)

    def _node(self, index: int) -> str:
        return self._nodes.groups[index].node.name

    def _address(self, index: int) -> str:
        node = self._nodes.groups[index].node
        return node.address or node.name


class Submitter(Protocol):
    """Starts runs in Slurm, in one of two ways."""

    async def submit(self, run: SupervisedRun) -> None:
        """Request the start of a run; return when Slurm has accepted it. Raises RefoldError."""


class JobSubmitter:
    """Starts each run as a job."""

    def __init__(
        self,
        owners: JobOwners,
        nodes: SlurmCluster,
        daemon: str,
        settings: SlurmSettings,
        instances: InstanceWriter,
        refusals: Refusals,
    ) -> None:
        self._owners = owners
        self._nodes = nodes
        self._daemon = daemon
        self._settings = settings
        self._instances = instances
        self._refusals = refusals

    async def submit(self, run: SupervisedRun) -> None:
        """Submit a job."""
        await asyncio.to_thread(self._submit, run)

    def _submit(self, run: SupervisedRun) -> None:
        requests = node_requests(self._nodes, run.job, run.allocation)
        parts = components(requests)
        call = self._instances.write(run)
        script = run.files.write_launcher(batch_script(call, len(parts) if run.has_step else 0))
        self._owners.run(run.owner, "sbatch", *self._arguments(run, requests, parts), str(script))

    def _arguments(self, run: SupervisedRun, requests: list[NodeRequest], parts: list[list[NodeRequest]]) -> list[str]:
        partition = self._settings.partition
        possible = [partition] if partition else partitions_of(self._nodes, requests)
        needed: Seconds | None = needed_time(run.job, run.state.grace)
        if self._refusals.is_too_long(run.job.id):  # then Slurm may end it, as early as Refold would
            needed = run.job.time_limit
        common = [
            *partition_arguments(self._nodes, possible, run.job, needed),
            *self._settings.arguments(),
        ]
        output = str(run.files.output).replace("%", "%%")
        words = [
            "--parsable",
            f"--comment={run_mark(self._daemon, run.state.key, run.job.user)}",
            f"--job-name={run.job.id}",
            f"--output={output}",
            f"--chdir={run.files.common.folder}",
            "--no-requeue",
            *common,
            *resource_arguments(parts[0]),
            *segment_arguments(self._nodes, parts[0]),
        ]
        for part in parts[1:]:
            words += [":", *common, *resource_arguments(part), *segment_arguments(self._nodes, part)]
        return words


def _without_given(variables: Mapping[str, str], job: Job, gpus: int) -> dict[str, str]:
    """Return the variables of an instance that Slurm does not set. Which GPUs it gets is decided by Slurm."""
    own = (*GIVEN_BY_REFOLD, *(("SLURM_ARRAY_",) if job.launch.array is not None else ()))
    kept = {
        name: value for name, value in variables.items() if name.startswith(own) or not name.startswith(GIVEN_BY_SLURM)
    }
    return {**kept, "REFOLD_SLOTS": ",".join(map(str, range(gpus)))}


def describe_failure(run: SupervisedRun, end: RunFailed) -> RunFailed:
    """Return a failure with its exit status in words, and the instance in which it occurred."""
    code = end.exit_code or 1
    statuses = [read_exit_status(run.files.common.exit(instance)) for instance in range(len(run.allocation.placement))]
    prefix = f"instance {statuses.index(code)}: " if len(statuses) > 1 and code in statuses else ""
    return replace(end, why=prefix + describe_exit(code))
