"""Refold's YAML job format, converted to a submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from refold.client.api import Submission
from refold.client.jobspec.builder import ReadJob, SpecBuilder, SpecSource
from refold.client.jobspec.gpu_requests import GpuRequest
from refold.client.jobspec.job_fields import UNSUPPORTED, UNSUPPORTED_RESOURCES, Elastic, JobFields
from refold.client.jobspec.plans import make_plan
from refold.model import Plan
from refold.model.documents import Part, convert

EXPECTED_JOB = "the fields of a job, such as 'name: …' and 'run: …'"
SETUP_SCRIPT = "set -e\n{setup}\nset +e\n{then}"


def read_refold_yaml(document: Part, source: SpecSource) -> ReadJob:
    """Read the job that a part of a document describes."""
    builder = SpecBuilder(source, document)
    document.fields(expected=EXPECTED_JOB)
    _drop_ignored(builder, document, UNSUPPORTED)
    if document.has("resources"):
        _drop_ignored(builder, document.at("resources"), UNSUPPORTED_RESOURCES)
    fields = convert(document, JobFields)
    for field in msgspec.structs.fields(JobFields):
        if field.name in Submission.__struct_fields__ and field.encode_name in document.fields():
            builder.put(field.name, getattr(fields, field.name), document.at(field.encode_name))
    _put_command(builder, fields)
    _put_size_and_plan(builder, fields)
    for (section, key), name in _FIELD_OF_SECTION.items():
        if (value := getattr(getattr(fields, section), key)) is not None:
            builder.put(name, value, document.at(section, key))
    if fields.checkpoint.path is not None:
        path = document.at("checkpoint", "path")
        builder.add_variables({"REFOLD_CHECKPOINT": source.folder_at(path)}, path)
    if fields.preemptible is None and fields.checkpoint.signal and fields.checkpoint.path is None:
        builder.put("preemptible", True, document.at("checkpoint"))  # it saves its state when it is stopped
    if document.has("workdir"):
        builder.put("folder", source.folder_at(document.at("workdir")), document.at("workdir"))
    if document.has("begin"):
        builder.put("begin", source.now + fields.begin, document.at("begin"))
    return ReadJob(builder.submission(), builder.notes)


_FIELD_OF_SECTION = {
    ("resources", "cpus"): "cpus",
    ("resources", "memory"): "memory_gib",
    ("checkpoint", "signal"): "stop_signal",
    ("checkpoint", "grace"): "grace",
    ("hang", "no_progress_for"): "no_progress",
    ("reshape", "at_most"): "reshape_at_most",
    ("reshape", "every"): "reshape_every",
}
"""Fields of a submission by the section and key of the file."""


def _drop_ignored(builder: SpecBuilder, part: Part, reasons: Mapping[str, str]) -> None:
    """Remove fields that are not supported, with a note."""
    parts = part.fields()
    for key in [key for key in parts if key in reasons]:
        builder.note(parts[key], f"{parts.pop(key).path} is ignored: {reasons[key]}")


def _put_command(builder: SpecBuilder, fields: JobFields) -> None:
    """Set the command. `setup` runs first, in the same shell; if it fails, the command does not run."""
    match fields.setup, fields.run:
        case "", command:
            pass
        case setup, ["sh", "-c", text]:
            command = ["sh", "-c", SETUP_SCRIPT.format(setup=setup, then=text)]
        case setup, arguments:
            script = SETUP_SCRIPT.format(setup=setup, then='exec "$@"')
            command = ["sh", "-c", script, fields.name or "run", *arguments]
    builder.put("command", command, builder.root.at("run"))


def _put_size_and_plan(builder: SpecBuilder, fields: JobFields) -> None:
    root, choice = builder.root, fields.plan
    size, gpu_types = read_size(fields, root, _implied_gpus(root, fields))
    if choice == "off" and _requests_no_gpu(root):
        size = RequestedSize(size.nodes, 0)
        builder.note(
            root.at("resources"), "resources has no accelerators, so the job gets no GPU; add gpus: 1 to request one"
        )
    count_part = next((root.at(*path) for path in _GPU_COUNTS if root.at(*path[:-1]).has(path[-1])), root)
    builder.put("instances", size.nodes, root.at("num_nodes") if root.has("num_nodes") else count_part)
    builder.put("gpus", size.gpus, count_part)
    builder.put("gpu_share", size.share, count_part)
    builder.put("gpu_types", list(gpu_types), count_part)
    if size.range:
        builder.put("gpu_range", size.range, root.at("elastic") if root.has("elastic") else count_part)
    plan = root.at("plan")
    if isinstance(choice, dict):
        builder.put("plan", make_plan(plan, choice, size.total), plan)
    if choice == "auto" and not fields.workload:
        builder.note(plan, "plan: auto has no effect without a workload that names the model")


def _implied_gpus(root: Part, fields: JobFields) -> tuple[Part, int] | None:
    """Return the number of GPUs that the plan or `elastic.min` implies, and the part that implies it."""
    if isinstance(fields.plan, dict):
        return root.at("plan"), Plan(**fields.plan).gpus
    if fields.elastic is not None:
        return root.at("elastic"), fields.elastic.min or 1
    return None


_GPU_COUNTS = (("gpus",), ("gpus_per_node",), ("resources", "accelerators"), ("elastic",))


def _requests_no_gpu(root: Part) -> bool:
    """Whether `resources` requests CPUs or memory and no GPUs, which means a job without GPUs, as in SkyPilot."""
    resources = root.at("resources")
    has_count = any(root.at(*path[:-1]).has(path[-1]) for path in _GPU_COUNTS)
    return root.has("resources") and not has_count and (resources.has("cpus") or resources.has("memory"))


# The size of a job: nodes, GPUs and ranges, from the several fields of a job file that determine it.


@dataclass(frozen=True, slots=True)
class RequestedSize:
    """Nodes, GPUs per node, share of each GPU, and the range of GPUs in total that an elastic job accepts."""

    nodes: int = 1
    gpus: int = 1
    share: float = 1.0
    range: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """GPUs in total; a fraction of a GPU counts as one."""
        return self.nodes * self.gpus


def read_size(
    fields: JobFields, root: Part, implied: tuple[Part, int] | None = None
) -> tuple[RequestedSize, tuple[str, ...]]:
    """Combine the size fields of a job, and return its size and the acceptable GPU types.

    `gpus` is the total number, `gpus_per_node` and `resources.accelerators` are per node. Of a range, the minimum is
    requested. `implied`: the total number if no field gives one, and the part of the file that implies it.
    """
    accelerators, gpus, per_node = fields.resources.accelerators, fields.gpus, fields.gpus_per_node
    _reject_conflicts(root, accelerators, gpus)
    nodes = fields.num_nodes or 0
    if accelerators.has_count:
        size = _size_per_node(max(nodes, 1), accelerators)
    elif gpus.has_count:
        size = _size_in_total(root.at("gpus"), gpus, nodes, per_node)
    elif per_node is not None or implied is None:
        size = RequestedSize(max(nodes, 1), 1 if per_node is None else per_node)
    else:
        size = _size_in_total(implied[0], GpuRequest((), True, implied[1], implied[1]), nodes, None)
    if fields.elastic is not None:
        size = _elastic(root.at("elastic"), fields.elastic, size)
    return size, accelerators.types + gpus.types


def _reject_conflicts(root: Part, accelerators: GpuRequest, gpus: GpuRequest) -> None:
    if accelerators.has_count and gpus.has_count:
        raise root.at("gpus").error("conflicts with resources.accelerators, expected the number of GPUs only once")
    if accelerators.has_count and root.has("gpus_per_node"):
        raise root.at("gpus_per_node").error("conflicts with resources.accelerators, expected only one of them")
    if accelerators.types and gpus.types:
        raise root.at("gpus").error("conflicts with resources.accelerators, expected the GPU type only once")


def _size_per_node(nodes: int, request: GpuRequest) -> RequestedSize:
    elastic_range = (nodes * request.minimum, nodes * request.maximum) if request.minimum < request.maximum else None
    return RequestedSize(nodes, request.minimum, request.share, elastic_range)


def _size_in_total(part: Part, request: GpuRequest, nodes: int, per_node: int | None) -> RequestedSize:
    if request.share < 1:
        if per_node is not None:
            raise part.error("gpus_per_node requires whole GPUs")
        return RequestedSize(max(nodes, 1), 1, request.share)
    if not nodes:
        nodes = request.minimum // per_node if per_node else 1
    gpus = request.minimum // max(nodes, 1)
    if gpus * nodes != request.minimum or per_node not in (None, gpus):
        each = f" with {per_node} each" if per_node is not None else ""
        raise part.unexpected(f"a total number of GPUs that is divisible among {max(nodes, 1)} nodes{each}")
    return RequestedSize(
        nodes, gpus, 1.0, (request.minimum, request.maximum) if request.minimum < request.maximum else None
    )


def _elastic(part: Part, elastic: Elastic, size: RequestedSize) -> RequestedSize:
    if size.range is not None:
        raise part.error("conflicts with the range in gpus, expected only one of them")
    minimum, maximum = elastic.min or size.total, elastic.max or size.total
    if not minimum <= size.total <= maximum or size.share < 1 or not size.gpus:
        raise part.error(
            f"is {minimum} to {maximum}, expected whole GPUs and a range that includes {size.total * size.share:g}"
        )
    return replace(size, range=(minimum, maximum))
