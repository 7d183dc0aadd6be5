"""Nodes, tasks, GPUs, CPUs and memory of a batch script, as instances of a job.

In Slurm a script runs once, on the first node, and `srun` starts its tasks. Here a job has equal instances that start
together. A script that calls `srun` has an instance for each task; any other has one for each node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refold.api import MOST_GPUS
from refold.documents import Part
from refold.jobspec.builder import SpecBuilder
from refold.jobspec.gpu_requests import GpuRequest, wanted_from_text
from refold.jobspec.quantities import SLURM_MEMORY, slurm_gib

SIZES = (
    *("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"),
    *("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu"),
)
GPUS = "GPUs such as 4 or a100:4"
GRES = "GPUs such as gpu:4 or gpu:a100:4"

_NODES = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
Options = Mapping[str, Part]


@dataclass(frozen=True, slots=True)
class SlurmTasks:
    """So many nodes with so many tasks each; `apart`: each task is an instance of its own."""

    nodes: int
    per_node: int
    apart: bool

    @property
    def instances(self) -> int:
        """Equal instances that start together."""
        return self.nodes * self.per_node if self.apart else self.nodes

    @property
    def in_instance(self) -> int:
        """Tasks whose CPUs and GPUs one instance has."""
        return 1 if self.apart else self.per_node


def put_tasks(draft: SpecBuilder, options: Options, apart: bool) -> None:
    """What the options say together of the size of a job."""
    tasks = _tasks(draft, options, apart)
    draft.put("instances", tasks.instances, options.get("nodes", options.get("ntasks", draft.root)))
    gpus = _put_gpus(draft, options, tasks)
    cpus = _put_cpus(draft, options, tasks, gpus)
    _put_memory(draft, options, tasks, gpus, cpus)
    nodes = str(tasks.nodes)
    draft.add_variables({"SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes}, draft.root)
    if apart:
        draft.note(draft.root, "srun starts nothing here: the whole script runs once for each task, with its variables")
    elif tasks.instances > 1 or tasks.per_node > 1:
        draft.note(draft.root, "the script does not call srun: it runs once on each node, and not on the first alone")


def _tasks(draft: SpecBuilder, options: Options, apart: bool) -> SlurmTasks:
    nodes = _nodes(draft, options["nodes"]) if "nodes" in options else 0
    per_node = _count(options, "ntasks-per-node")
    tasks = _count(options, "ntasks")
    if tasks and not per_node:
        nodes = nodes or 1
        per_node = -(-tasks // nodes)
    elif tasks and not nodes:
        nodes = -(-tasks // per_node)
    found = SlurmTasks(nodes or 1, per_node or 1, apart)
    if tasks and tasks != found.nodes * found.per_node:
        raise options["ntasks"].wrong(f"as many tasks on each of {found.nodes} nodes")
    return found


def _nodes(draft: SpecBuilder, part: Part) -> int:
    found = _NODES.fullmatch(part.written)
    if found is None or not 1 <= int(found[1]) <= MOST_GPUS or int(found[2] or found[1]) < int(found[1]):
        raise part.wrong("a number of nodes, 1 or more")
    if found[2]:
        draft.note(part, f"--nodes is a range: the job asks for the fewest, {found[1]}")
    return int(found[1])


def _count(options: Options, name: str) -> int:
    return options[name].whole("a whole number ≥ 1", 1, MOST_GPUS) if name in options else 0


def _put_gpus(draft: SpecBuilder, options: Options, tasks: SlurmTasks) -> int:
    """GPUs of an instance, from the first of the options that says it."""
    for name, share in _GPUS_OF.items():
        if name in options and (wanted := _wanted(draft, name, options[name])):
            each, rest = share(wanted.least, tasks)
            if rest:
                raise options[name].wrong(f"a number that {tasks.instances} instances share equally")
            draft.put("gpus", each, options[name])
            draft.put("gpu_types", list(wanted.kinds), options[name])
            return each
    draft.put("gpus", 0, draft.root)
    return 0


_GPUS_OF: dict[str, Callable[[int, SlurmTasks], tuple[int, int]]] = {
    "gpus-per-node": lambda gpus, tasks: divmod(gpus, tasks.per_node if tasks.apart else 1),
    "gres": lambda gpus, tasks: divmod(gpus, tasks.per_node if tasks.apart else 1),
    "gpus-per-task": lambda gpus, tasks: (gpus * tasks.in_instance, 0),
    "gpus": lambda gpus, tasks: divmod(gpus, tasks.instances),
}


def _wanted(draft: SpecBuilder, name: str, part: Part) -> GpuRequest | None:
    """None: it is about something else than GPUs."""
    expected = GRES if name == "gres" else GPUS
    text = part.written
    if name == "gres":
        kinds = text.split(",")
        about_gpus = [one for one in kinds if one == "gpu" or one.startswith("gpu:")]
        if about_gpus != kinds and text.lower() != "none":
            draft.note(part, f"--gres is honoured for GPUs only, and not for all of {text[:64]!r}")
        if not about_gpus:
            return None
        text = ",".join(about_gpus).removeprefix("gpu").removeprefix(":") or "1"
    try:
        wanted = wanted_from_text(text)
    except ValueError:
        raise part.wrong(expected) from None
    if wanted.share < 1 or wanted.least != wanted.most:
        raise part.wrong(expected)
    return wanted if wanted.counted else GpuRequest(wanted.kinds, True, 1, 1)


def _put_cpus(draft: SpecBuilder, options: Options, tasks: SlurmTasks, gpus: int) -> int:
    """CPUs of an instance. Slurm gives a task one; that is asked for only where there is nothing else to ask for."""
    if "cpus-per-task" in options:
        cpus, part = _count(options, "cpus-per-task") * tasks.in_instance, options["cpus-per-task"]
    elif "cpus-per-gpu" in options:
        cpus, part = _count(options, "cpus-per-gpu") * gpus, options["cpus-per-gpu"]
    else:
        cpus, part = (0 if gpus else tasks.in_instance), draft.root
    draft.put("cpus", float(cpus), part)
    return cpus or tasks.in_instance


def _put_memory(draft: SpecBuilder, options: Options, tasks: SlurmTasks, gpus: int, cpus: int) -> None:
    times = {
        "mem": 1.0 / (tasks.per_node if tasks.apart else 1),
        "mem-per-gpu": float(gpus),
        "mem-per-cpu": float(cpus),
    }
    for name, factor in times.items():
        if name in options:
            part = options[name]
            try:
                gib = slurm_gib(part.written)
            except ValueError:
                raise part.wrong(SLURM_MEMORY) from None
            if not gib:
                draft.note(part, f"--{name} is 0, all memory of a node: the job asks for none in particular")
            draft.put("memory_gib", gib * factor, part)
            return
