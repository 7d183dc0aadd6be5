"""The environment variables of a run's processes: identity, devices, and rendezvous of distributed training."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from refold.core import StartRun
from refold.engines.local.process import Process, is_alive
from refold.engines.local.process_host import MARK_VARIABLE
from refold.model import WHOLE, ArrayTask, Job, MiB, Plan, Seconds, Share, expand_output_pattern, run_plan
from refold.planning.catalogue import known_model
from refold.planning.plans import GANG_VARIABLES, LaunchRequest, Workers, gang_variables, launch_settings
from refold.server import ExportedOf, SecretsOf
from refold.server.output import RunFiles, StartRecord, open_regular, run_secret

LOOPBACK_ADDRESS = "127.0.0.1"

_GANG_VARIABLES = GANG_VARIABLES | {"SLURM_PROCID", "SLURM_NTASKS", "TF_CONFIG"}
_OUR_PREFIX = "REFOLD_"
_MPS_FOLDER_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MAX_PID_CHARS = 20


def no_secrets(job: str) -> Mapping[str, str]:
    del job
    return {}


def no_exported_environment(job: Job) -> None:
    """Return None: runs inherit the environment of the back end."""
    del job


class Devices:
    """The GPUs behind the slots of each node, and the enforcement of GPU shares.

    With MPS a process is limited to its share of the multiprocessors, and allocating more than its share of memory
    fails. Measured on an H200: 25 % gave 32 of 132 multiprocessors, and with `0=30000M` allocating 40 GiB failed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        devices: Sequence[Sequence[str]] | None,
        memory_mib: Sequence[MiB],
        are_gpus: bool,
    ) -> None:
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        self._visible = [device for device in visible.split(",") if device]
        self._devices = devices
        self._memory_mib = memory_mib
        self._are_gpus = are_gpus
        self._mps_daemon = (
            Path(environment.get(_MPS_FOLDER_VARIABLE, "/tmp/nvidia-mps")) / "nvidia-cuda-mps-control.pid"
        )

    def variables(self, share: Share) -> dict[str, str]:
        """Return the variables that select the devices of a process and limit their use."""
        visible = self.visible(share)
        variables = {
            "CUDA_VISIBLE_DEVICES": visible or "",
            "REFOLD_SLOTS": ",".join(map(str, share.gpus)),
            "REFOLD_GPU_SHARE": f"{share.gpu_milli / WHOLE:g}" if share.gpus else "0",
        }
        return variables | (self._mps_limits(share) if visible and share.gpu_milli < WHOLE and self.has_mps() else {})

    def visible(self, share: Share) -> str | None:
        """Return the GPUs of a process as in CUDA_VISIBLE_DEVICES; None: slots are not GPUs."""
        return ",".join(self._device(share.node, slot) for slot in share.gpus) if self._are_gpus else None

    def has_mps(self) -> bool:
        """Whether NVIDIA's Multi-Process Service is running; its control pipe outlives it, so its pid is checked.

        Where it is not running, any user of the machine may have created its folder.
        """
        if not self._are_gpus:
            return False
        try:
            with open_regular(self._mps_daemon) as file:
                is_ours = os.fstat(file.fileno()).st_uid in (0, os.geteuid())
                return is_ours and is_alive(Process(int(file.read(MAX_PID_CHARS))))
        except (OSError, ValueError):
            return False

    def enforcement(self) -> str:
        """Describe which limits are enforced, in a sentence."""
        if not self._are_gpus:
            return "Slots are not GPUs: slots and shares are not enforced; runs see no GPU."
        if not self.has_mps():
            return (
                "A run sees only its own GPUs; shares of a GPU are not enforced, neither compute nor memory "
                "(start nvidia-cuda-mps-control to enforce them)."
            )
        memory = "and memory" if any(self._memory_mib) else "but not of its memory, whose size is unknown"
        return f"A run sees only its own GPUs; MPS limits it to its share of a GPU's compute {memory}."

    def _device(self, node: int, slot: int) -> str:
        """Return the GPU of a slot; without configured devices, an index into the GPUs visible to the daemon."""
        if self._devices is not None:
            return self._devices[node][slot]
        return self._visible[slot] if slot < len(self._visible) else str(slot)

    def _mps_limits(self, share: Share) -> dict[str, str]:
        limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{share.gpu_milli * 100 / WHOLE:g}"}
        memory = self._memory_mib[share.node] if share.node < len(self._memory_mib) else 0
        if memory:
            share_mib = memory * share.gpu_milli // WHOLE
            limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(
                f"{ordinal}={share_mib}M" for ordinal in range(len(share.gpus))
            )
        return limits


class RunEnvironment:
    """Builds the environment of a run's processes."""

    def __init__(
        self, inherited: Mapping[str, str], devices: Devices, exported: ExportedOf, secrets: SecretsOf
    ) -> None:
        self.devices = devices
        self._inherited = inherited
        self._exported = exported
        self._secrets = secrets

    def build(
        self,
        job: Job,
        order: StartRun,
        files: RunFiles,
        record: StartRecord,
        grace: Seconds,
        addresses: Sequence[str] = (),
    ) -> list[dict[str, str]]:
        """Return the environment of each instance. Refold's variables override those of the job.

        `addresses`: the network address of each instance; empty: all are on this machine.
        """
        placement = order.allocation.placement
        places = tuple(addresses) or (LOOPBACK_ADDRESS,) * len(placement)
        exported = self._exported(job)
        shared = {
            **_without_identity(self._inherited if exported is None else exported),
            **({"REFOLD_RUN_SECRET": run_secret(record.mark)} if len(placement) > 1 else {}),
            **dict(job.launch.environment),
            **self._secrets(job.id),
            **_run_variables(job, order, files, grace),
            MARK_VARIABLE: record.mark,
        }
        workers = [
            Workers(len(share.gpus) or 1, len(placement), str(instance), places[0], str(record.port))
            for instance, share in enumerate(placement)
        ]
        return [
            {
                **shared,
                **self.devices.variables(share),
                **_instance_variables(instance, placement, files, places),
                **(_gang_variables(instance, workers[instance], record, places) if len(placement) > 1 else {}),
                **_launch_variables(job, order, files, workers[instance]),
            }
            for instance, share in enumerate(placement)
        ]


def _without_identity(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of a gang to which the submitter or the daemon belongs, and without Refold's."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _GANG_VARIABLES and not name.startswith(_OUR_PREFIX)
    }


def _run_variables(job: Job, order: StartRun, files: RunFiles, grace: Seconds) -> dict[str, str]:
    plan = run_plan(job, order.allocation)
    return {
        "REFOLD_JOB": job.id,
        "REFOLD_RUN": str(order.run),
        "REFOLD_INSTANCES": str(len(order.allocation.placement)),
        "REFOLD_CHECKPOINT": dict(job.launch.environment).get("REFOLD_CHECKPOINT") or str(files.checkpoint_folder),
        "REFOLD_STOP_SIGNAL": job.launch.stop_signal,
        "REFOLD_GRACE": f"{grace:g}",
        "SLURM_JOB_ID": str(slurm_id(job)),
        "SLURM_JOB_NAME": job.group or job.id,
        **({} if plan is None else {"REFOLD_PLAN": msgspec.json.encode(plan).decode()}),
        **({} if job.launch.array is None else _array_variables(job.launch.array)),
    }


def _array_variables(place: ArrayTask) -> dict[str, str]:
    variables = {
        "JOB_ID": number_of(place.array),
        "TASK_ID": place.task,
        "TASK_COUNT": place.count,
        "TASK_MIN": place.minimum,
        "TASK_MAX": place.maximum,
        "TASK_STEP": place.step,
    }
    slurm = {f"SLURM_ARRAY_{name}": str(value) for name, value in variables.items()}
    return slurm | {"REFOLD_ARRAY": place.array, "REFOLD_ARRAY_TASK_ID": str(place.task)}


def _instance_variables(
    instance: int, placement: Sequence[Share], files: RunFiles, addresses: Sequence[str]
) -> dict[str, str]:
    return {
        "REFOLD_INSTANCE": str(instance),
        "REFOLD_PROGRESS": str(files.progress(instance)),
        "REFOLD_CHANGE": str(files.change),
        "SKYPILOT_NODE_RANK": str(instance),
        "SKYPILOT_NUM_NODES": str(len(placement)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(len(placement[instance].gpus)),
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
    }


def _launch_variables(job: Job, order: StartRun, files: RunFiles, workers: Workers) -> dict[str, str]:
    """Return the plan as arguments of the job's training framework, and write its configuration files."""
    if job.engine is None:
        return {}
    placement = order.allocation.placement
    plan = run_plan(job, order.allocation) or Plan(data=max(1, sum(len(share.gpus) for share in placement)))
    model = known_model(job.workload)
    batch = job.batch or (model.batch if model else 0)
    settings = launch_settings(job.engine, LaunchRequest(plan, batch, workers, str(files.launch_folder)))
    files.write_launch_files(settings.files)
    return {"REFOLD_ENGINE": job.engine, **settings.variables()}


def output_path(pattern: str, job: Job, folder: Path, instance: int) -> Path | None:
    """Return the file that a pattern for output stands for; None without a pattern."""
    place = job.launch.array
    values = {
        "j": str(slurm_id(job)),
        "A": str(slurm_id(job) if place is None else number_of(place.array)),
        "a": "0" if place is None else str(place.task),
        "x": job.group or job.id,
        "u": job.user.replace("/", "_"),
        "t": str(instance),
    }
    return folder / expand_output_pattern(pattern, values) if pattern else None


def slurm_id(job: Job) -> int:
    return number_of(job.id) if job.launch.array is None else job.launch.array.number


def number_of(job_id: str) -> int:
    """Return a number for a job or an array: 17 for 'train-17'; a checksum if the id has no number."""
    digits = re.search(r"[0-9]{1,9}$", job_id)
    return int(digits[0]) if digits else crc32(job_id.encode())


def _gang_variables(instance: int, workers: Workers, record: StartRecord, addresses: Sequence[str]) -> dict[str, str]:
    """Return the variables by which the instances of a gang find each other.

    Only for gangs: a single process with these variables would not start workers of its own.
    """
    slurm = {"SLURM_PROCID": str(instance), "SLURM_NTASKS": str(len(addresses))}
    return gang_variables(workers) | slurm | {"TF_CONFIG": _tf_config(instance, record, addresses)}


def _tf_config(instance: int, record: StartRecord, addresses: Sequence[str]) -> str:
    """Return the cluster description that `tf.distribute` reads."""
    workers = [f"{address}:{port}" for address, port in zip(addresses, record.worker_ports, strict=False)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": instance}})
