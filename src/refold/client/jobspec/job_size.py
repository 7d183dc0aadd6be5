"""The size of a job: nodes, GPUs and ranges, from the several fields of a job file that determine it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from refold.client.jobspec.gpu_requests import GpuRequest
from refold.client.jobspec.job_fields import Elastic, JobFields
from refold.model.documents import Part


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
