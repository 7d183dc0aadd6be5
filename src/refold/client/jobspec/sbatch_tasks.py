"""The size of a batch job: nodes, tasks, GPUs, CPUs and memory of a script, converted to instances.

In Slurm a script runs once, on the first node, and `srun` starts its tasks. Here a job has identical instances that
start together: one per task for a script that calls `srun`, otherwise one per node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refold.client.api import MAX_JOB_GPUS
from refold.client.jobspec.builder import SpecBuilder
from refold.client.jobspec.gpu_requests import GpuRequest, parse_gpu_request
from refold.client.jobspec.quantities import (
    EXPECTED_SLURM_MEMORY,
    parse_slurm_gib,
    parse_slurm_seconds,
    parse_switches,
)
from refold.model import TopologyRequest
from refold.model.documents import Part

SIZE_OPTIONS = (
    *("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"),
    *("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu", "segment", "switches"),
)
EXPECTED_GPUS = "GPUs such as 4 or a100:4"
EXPECTED_GRES = "GPUs such as gpu:4 or gpu:a100:4"

_NODES = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
Options = Mapping[str, Part]


@dataclass(frozen=True, slots=True)
class SlurmTasks:
    """Nodes and tasks per node. `one_task_each`: each task is an instance; otherwise each node is one."""

    nodes: int
    per_node: int
    one_task_each: bool

    @property
    def instances(self) -> int:
        return self.nodes * self.per_node if self.one_task_each else self.nodes

    @property
    def tasks_per_instance(self) -> int:
        return 1 if self.one_task_each else self.per_node


def put_tasks(builder: SpecBuilder, options: Options, one_task_each: bool) -> None:
    """Set the number of instances and their GPUs, CPUs and memory from the options."""
    tasks = _tasks(builder, options, one_task_each)
    builder.put("instances", tasks.instances, options.get("nodes", options.get("ntasks", builder.root)))
    gpus = _put_gpus(builder, options, tasks)
    cpus = _put_cpus(builder, options, tasks, gpus)
    _put_memory(builder, options, tasks, gpus, cpus)
    if "segment" in options:
        segment = options["segment"].integer("a number of nodes", 1, MAX_JOB_GPUS) * tasks.instances // tasks.nodes
        builder.put("topology", TopologyRequest(segment=segment), options["segment"])
    elif "switches" in options:
        builder.put("topology", _switches(options["switches"]), options["switches"])
    nodes = str(tasks.nodes)
    builder.add_variables({"SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes}, builder.root)
    if one_task_each:
        builder.note(
            builder.root, "srun starts no tasks here: the whole script runs once per task, with the task's variables"
        )
    elif tasks.instances > 1 or tasks.per_node > 1:
        builder.note(builder.root, "the script does not call srun: it runs once on every node, not only on the first")


def _switches(part: Part) -> TopologyRequest:
    try:
        most, wait = parse_switches(part.written, parse_slurm_seconds)
    except ValueError:
        raise part.unexpected("switches and how long to wait for them, such as 1 or 1@10:00") from None
    return TopologyRequest(most=most, wait=wait)


def _tasks(builder: SpecBuilder, options: Options, one_task_each: bool) -> SlurmTasks:
    nodes = _nodes(builder, options["nodes"]) if "nodes" in options else 0
    per_node = _count(options, "ntasks-per-node")
    tasks = _count(options, "ntasks")
    if tasks and not per_node:
        nodes = nodes or 1
        per_node = -(-tasks // nodes)
    elif tasks and not nodes:
        nodes = -(-tasks // per_node)
    slurm_tasks = SlurmTasks(nodes or 1, per_node or 1, one_task_each)
    if tasks and tasks != slurm_tasks.nodes * slurm_tasks.per_node:
        raise options["ntasks"].unexpected(f"the same number of tasks on each of {slurm_tasks.nodes} nodes")
    return slurm_tasks


def _nodes(builder: SpecBuilder, part: Part) -> int:
    match = _NODES.fullmatch(part.written)
    if match is None or not 1 <= int(match[1]) <= MAX_JOB_GPUS or int(match[2] or match[1]) < int(match[1]):
        raise part.unexpected("a number of nodes ≥ 1")
    if match[2]:
        builder.note(part, f"--nodes is a range: the job requests the minimum, {match[1]}")
    return int(match[1])


def _count(options: Options, name: str) -> int:
    return options[name].integer("a whole number ≥ 1", 1, MAX_JOB_GPUS) if name in options else 0


def _put_gpus(builder: SpecBuilder, options: Options, tasks: SlurmTasks) -> int:
    """Set the GPUs per instance from the first option that gives them, and return them."""
    for name, divide in _GPUS_PER_INSTANCE.items():
        if name in options and (request := _read_gpus(builder, name, options[name])):
            gpus, remainder = divide(request.minimum, tasks)
            if remainder:
                raise options[name].unexpected(f"a number that is divisible among {tasks.instances} instances")
            builder.put("gpus", gpus, options[name])
            builder.put("gpu_types", list(request.types), options[name])
            return gpus
    builder.put("gpus", 0, builder.root)
    return 0


_GPUS_PER_INSTANCE: dict[str, Callable[[int, SlurmTasks], tuple[int, int]]] = {
    "gpus-per-node": lambda gpus, tasks: divmod(gpus, tasks.per_node if tasks.one_task_each else 1),
    "gres": lambda gpus, tasks: divmod(gpus, tasks.per_node if tasks.one_task_each else 1),
    "gpus-per-task": lambda gpus, tasks: (gpus * tasks.tasks_per_instance, 0),
    "gpus": lambda gpus, tasks: divmod(gpus, tasks.instances),
}


def _read_gpus(builder: SpecBuilder, name: str, part: Part) -> GpuRequest | None:
    """Read a GPU request; None for a --gres without GPUs."""
    expected = EXPECTED_GRES if name == "gres" else EXPECTED_GPUS
    text = part.written
    if name == "gres":
        resources = text.split(",")
        gpus = [resource for resource in resources if resource == "gpu" or resource.startswith("gpu:")]
        if gpus != resources and text.lower() != "none":
            builder.note(part, f"--gres supports only GPUs: other resources in {text[:64]!r} are ignored")
        if not gpus:
            return None
        text = ",".join(gpus).removeprefix("gpu").removeprefix(":") or "1"
    try:
        request = parse_gpu_request(text)
    except ValueError:
        raise part.unexpected(expected) from None
    if request.share < 1 or request.minimum != request.maximum:
        raise part.unexpected(expected)
    return request if request.has_count else GpuRequest(request.types, True, 1, 1)


def _put_cpus(builder: SpecBuilder, options: Options, tasks: SlurmTasks, gpus: int) -> int:
    """Set the CPUs per instance and return them. Slurm's default of one CPU per task is used only without GPUs."""
    if "cpus-per-task" in options:
        cpus, part = _count(options, "cpus-per-task") * tasks.tasks_per_instance, options["cpus-per-task"]
    elif "cpus-per-gpu" in options:
        cpus, part = _count(options, "cpus-per-gpu") * gpus, options["cpus-per-gpu"]
    else:
        cpus, part = (0 if gpus else tasks.tasks_per_instance), builder.root
    builder.put("cpus", float(cpus), part)
    return cpus or tasks.tasks_per_instance


def _put_memory(builder: SpecBuilder, options: Options, tasks: SlurmTasks, gpus: int, cpus: int) -> None:
    factors = {
        "mem": 1.0 / (tasks.per_node if tasks.one_task_each else 1),
        "mem-per-gpu": float(gpus),
        "mem-per-cpu": float(cpus),
    }
    for name, factor in factors.items():
        if name in options:
            part = options[name]
            try:
                gib = parse_slurm_gib(part.written)
            except ValueError:
                raise part.unexpected(EXPECTED_SLURM_MEMORY) from None
            if not gib:
                builder.note(part, f"--{name}=0 means all memory of a node in Slurm; here no memory is requested")
            builder.put("memory_gib", gib * factor, part)
            return
