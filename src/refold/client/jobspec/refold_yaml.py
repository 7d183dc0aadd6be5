"""Refold's YAML job format, converted to a submission."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from refold.client.api import Submission
from refold.client.jobspec.builder import ReadJob, SpecBuilder, SpecSource
from refold.client.jobspec.job_fields import UNSUPPORTED, UNSUPPORTED_RESOURCES, JobFields
from refold.client.jobspec.job_size import RequestedSize, read_size
from refold.client.jobspec.plans import make_plan
from refold.model import Plan
from refold.model.documents import Part, convert

EXPECTED_JOB = "the fields of a job, such as 'name: …' and 'run: …'"
SETUP_SCRIPT = "set -e\n{setup}\nset +e\n{then}"


def read_refold_yaml(document: Part, source: SpecSource) -> ReadJob:
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
    if choice == "auto" and not fields.workload and not size.range:
        builder.note(plan, "plan: auto has no effect without a workload that names the model, or a range of GPUs")


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
