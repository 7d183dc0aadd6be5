"""What a process of a run finds in its environment: who it is, what it has, whom to meet where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from refold.backends.local.process import Process, is_alive
from refold.backends.local.process_tree import MARK
from refold.backends.local.run_files import RunFiles, StartNote
from refold.core import StartRun
from refold.model import WHOLE, Job, MiB, Seconds, Share

MoreEnvironment = Callable[[str], Mapping[str, str]]
"""Further variables by job: what is not to be found in the journal."""

HERE = "127.0.0.1"

_OF_A_GANG = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
)
_OURS = "REFOLD_"
_MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def nothing_more(job: str) -> Mapping[str, str]:
    """For jobs without secrets."""
    del job
    return {}


class Devices:
    """The GPUs behind the slots of each node, if there are GPUs behind them.

    With MPS a process has its part of the multiprocessors, and asking for more memory than its part fails: on an H200,
    25 % left it 32 of 132 multiprocessors, and `0=30000M` refused it 40 GiB.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        given: Sequence[Sequence[str]] | None,
        memory_mib: Sequence[MiB],
        are_gpus: bool,
    ) -> None:
        ours = environment.get("CUDA_VISIBLE_DEVICES", "")
        self._ours = [device for device in ours.split(",") if device]
        self._given = given
        self._memory_mib = memory_mib
        self._are_gpus = are_gpus
        self._mps_daemon = Path(environment.get(_MPS_FOLDER, "/tmp/nvidia-mps")) / "nvidia-cuda-mps-control.pid"

    def variables(self, share: Share) -> dict[str, str]:
        """Which devices a process sees, and how much of them it may use."""
        visible = [self._name(share.node, slot) for slot in share.gpus] if self._are_gpus else []
        found = {
            "CUDA_VISIBLE_DEVICES": ",".join(visible),
            "REFOLD_SLOTS": ",".join(map(str, share.gpus)),
            "REFOLD_GPU_SHARE": f"{share.gpu_milli / WHOLE:g}" if share.gpus else "0",
        }
        return found | (self._limits(share) if visible and share.gpu_milli < WHOLE and self.has_mps() else {})

    def has_mps(self) -> bool:
        """Whether NVIDIA's Multi-Process Service runs here; the pipe to control it stays behind when it has ended."""
        try:
            return self._are_gpus and is_alive(Process(int(self._mps_daemon.read_text())))
        except (OSError, ValueError):
            return False

    def enforcement(self) -> str:
        """What keeps a run to its part of a GPU, in a sentence."""
        if not self._are_gpus:
            return "Slots are not GPUs: nothing keeps a run to its slots or to a part of one; no run sees a GPU."
        if not self.has_mps():
            return (
                "A run sees its own GPUs only; parts of a GPU are counted and not enforced, neither computing nor "
                "memory (start nvidia-cuda-mps-control to have them enforced)."
            )
        memory = "memory" if any(self._memory_mib) else "not its memory, for the GPUs' memory is unknown"
        return f"A run sees its own GPUs only; MPS keeps it to its part of a GPU's computing and {memory}."

    def _name(self, node: int, slot: int) -> str:
        """A slot's GPU. If we were given a choice of GPUs ourselves, the slots count through those."""
        if self._given is not None:
            return self._given[node][slot]
        return self._ours[slot] if slot < len(self._ours) else str(slot)

    def _limits(self, share: Share) -> dict[str, str]:
        limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{share.gpu_milli * 100 / WHOLE:g}"}
        memory = self._memory_mib[share.node] if share.node < len(self._memory_mib) else 0
        if memory:
            most = memory * share.gpu_milli // WHOLE
            limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(
                f"{ordinal}={most}M" for ordinal in range(len(share.gpus))
            )
        return limits


class RunEnvironment:
    """What every process gets of ours, and what it gets of its run."""

    def __init__(self, inherited: Mapping[str, str], devices: Devices, more: MoreEnvironment) -> None:
        # What describes our own run, or lets its holder act for us, is not passed on.
        self._inherited = {
            name: value for name, value in inherited.items() if name not in _OF_A_GANG and not name.startswith(_OURS)
        }
        self._devices = devices
        self._more = more

    def of_run(
        self, job: Job, order: StartRun, files: RunFiles, note: StartNote, grace: Seconds
    ) -> list[dict[str, str]]:
        """The environment of each instance. What we say of the run goes before what the job says."""
        placement = order.allocation.placement
        shared = {
            **self._inherited,
            **dict(job.launch.environment),
            **self._more(job.id),
            **_whose(job, order, files, grace),
            MARK: note.mark,
        }
        return [
            {
                **shared,
                **self._devices.variables(share),
                **_which(instance, placement, files),
                **(_gang(instance, len(placement), note.port) if len(placement) > 1 else {}),
            }
            for instance, share in enumerate(placement)
        ]


def _whose(job: Job, order: StartRun, files: RunFiles, grace: Seconds) -> dict[str, str]:
    plan = order.allocation.plan
    return {
        "REFOLD_JOB": job.id,
        "REFOLD_RUN": str(order.run),
        "REFOLD_INSTANCES": str(len(order.allocation.placement)),
        "REFOLD_CHECKPOINT": dict(job.launch.environment).get("REFOLD_CHECKPOINT") or str(files.kept),
        "REFOLD_STOP_SIGNAL": job.launch.stop_signal,
        "REFOLD_GRACE": f"{grace:g}",
        "SLURM_JOB_ID": job.id,
        "SLURM_JOB_NAME": job.group or job.id,
        **({} if plan is None else {"REFOLD_PLAN": msgspec.json.encode(plan).decode()}),
    }


def _which(instance: int, placement: Sequence[Share], files: RunFiles) -> dict[str, str]:
    return {
        "REFOLD_INSTANCE": str(instance),
        "REFOLD_PROGRESS": str(files.progress(instance)),
        "SKYPILOT_NODE_RANK": str(instance),
        "SKYPILOT_NUM_NODES": str(len(placement)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(len(placement[instance].gpus)),
        "SKYPILOT_NODE_IPS": "\n".join([HERE] * len(placement)),
    }


def _gang(instance: int, instances: int, port: int) -> dict[str, str]:
    """What torch.distributed and Slurm's friends read: the gang has one process per instance, with GPUs of its own.

    A single process gets none of them: it would be taken for one of a gang, and not start its own workers.
    """
    which, how_many = str(instance), str(instances)
    values = (which, how_many, "0", "1", which, which, HERE, str(port), which, how_many)
    return dict(zip(_OF_A_GANG, values, strict=True))
