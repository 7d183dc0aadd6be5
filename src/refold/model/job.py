"""A job and its resource demand, as submitted. A `Job` is immutable; progress belongs to its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.model.cluster import MAX_AMOUNT, Cluster, Node
from refold.model.launch import DEFAULT_LAUNCH, Launch, LaunchEngine
from refold.model.node_set import NodeSet
from refold.model.plan import Plan
from refold.model.topology import TopologyRequest
from refold.model.units import WHOLE, MiB, Milli, Seconds, format_count

JobClass = Literal["guaranteed", "best-effort"]
MAX_INSTANCES = 2**20
MAX_GPUS = 2**20


def _count_text(count: float, thing: str) -> str:
    return f"{count:g} {thing}{'' if 0 < count <= 1 else 's'}"


class Demand(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True, cache_hash=True):
    """A gang of `instances` equal instances. Each needs one node, with `gpu_milli` of each of `gpus` GPUs.

    An instance with 0 GPUs needs CPUs and memory only. An empty `gpu_types` accepts every GPU type. `allowed_nodes` are
    the only nodes on which instances may be placed, by their indices in the cluster; None: all nodes. `topology`: which
    instances are to be placed in the same domains.
    """

    instances: int = 1
    gpus: int = 1
    gpu_milli: Milli = WHOLE
    cpu_milli: Milli = 0
    memory_mib: MiB = 0
    gpu_types: tuple[str, ...] = ()
    allowed_nodes: NodeSet | None = None
    topology: TopologyRequest | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= MAX_INSTANCES:
            raise BadValue(f"a job has {self.instances} instances, expected 1 to {MAX_INSTANCES}")
        if not 0 <= self.gpus <= MAX_GPUS:
            raise BadValue(f"an instance has {self.gpus} GPUs, expected 0 to {MAX_GPUS}")
        if not 1 <= self.gpu_milli <= WHOLE:
            raise BadValue(f"gpu_milli is {self.gpu_milli}, expected 1 to {WHOLE} thousandths of a GPU")
        if not (0 <= self.cpu_milli <= MAX_AMOUNT and 0 <= self.memory_mib <= MAX_AMOUNT):
            amounts = f"{self.cpu_milli} and {self.memory_mib}"
            raise BadValue(f"cpu_milli and memory_mib are {amounts}, expected 0 to {MAX_AMOUNT}")
        if list(self.gpu_types) != sorted(set(self.gpu_types)):
            raise BadValue(f"gpu_types is {self.gpu_types}, expected each type once, in alphabetical order")
        if self.topology is not None and self.topology.segment and self.instances % self.topology.segment:
            instances, segments = format_count(self.instances, "instance"), f"segments of {self.topology.segment}"
            raise BadValue(f"a job has {instances}, which cannot be divided into {segments}")

    def accepts(self, index: int, node: Node) -> bool:
        """Whether an instance may be placed on a node of the cluster, if it has the resources."""
        if self.allowed_nodes is not None and index not in self.allowed_nodes:
            return False
        return not self.gpus or not self.gpu_types or node.gpu_type in self.gpu_types

    def is_met_by(self, nodes: Sequence[int], cluster: Cluster) -> bool:
        """Whether nodes, one for each instance, are in the domains that it requests."""
        request = self.topology
        if request is None or not request.is_binding or self.instances == 1:
            return True
        named = [name for name in (request.required, request.segment_level) if name]
        if not cluster.levels or any(name not in cluster.level_names for name in named):
            return False
        most = request.most or (1 if request.required else len(nodes))
        if _count_domains(nodes, cluster, cluster.level(request.required)) > most:
            return False
        level, size = cluster.level(request.segment_level), request.segment or len(nodes)
        segments = [nodes[first : first + size] for first in range(0, len(nodes), size)]
        return not request.segment or all(_count_domains(segment, cluster, level) <= 1 for segment in segments)

    def usable_types(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the GPU types that it accepts, as far as its allowed nodes have them; () for all types."""
        if self.allowed_nodes is None:
            return self.gpu_types
        found = cluster.types_of(self.allowed_nodes)
        if found == cluster.type_names:
            return self.gpu_types
        return tuple(name for name in found if not self.gpu_types or name in self.gpu_types) or self.gpu_types

    @property
    def total_gpu_milli(self) -> Milli:
        """Total GPUs of all instances, in thousandths."""
        return self.instances * self.gpus * self.gpu_milli

    @property
    def total_gpus(self) -> float:
        """Total GPUs of all instances, including fractions."""
        return self.total_gpu_milli / WHOLE

    def __str__(self) -> str:
        """Format as '8 GPUs', '2 × 8 GPUs (A100|H100)', '0.5 GPU' or '4 CPUs'."""
        types = f" ({'|'.join(self.gpu_types)})" if self.gpu_types else ""
        return (f"{self.instances} × " if self.instances > 1 else "") + self._instance_text() + types

    def _instance_text(self) -> str:
        if not self.gpus:
            return _count_text(self.cpu_milli / WHOLE, "CPU")
        times = f"{self.gpus} × " if self.gpus > 1 and self.gpu_milli < WHOLE else ""
        return times + _count_text(self.gpu_milli / WHOLE if self.gpu_milli < WHOLE else self.gpus, "GPU")


def _count_domains(nodes: Sequence[int], cluster: Cluster, level: int) -> int:
    return len({cluster.domain(node, level) for node in nodes})


class ChangeLimit(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often the policy may stop or reshape the runs of a job: `at_most` times, and not within `every` seconds."""

    at_most: int | None = None
    every: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.at_most is not None and not 0 <= self.at_most <= MAX_AMOUNT:
            raise BadValue(f"at_most is {self.at_most}, expected 0 to {MAX_AMOUNT}")
        if not 0 <= self.every < math.inf:
            raise BadValue(f"every is {self.every}, expected seconds ≥ 0")


class Job(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job as submitted.

    `work` is its run time in seconds on exactly the requested resources: known in traces, where only oracle policies
    may use it; None for live jobs. `time_limit` is the user's upper bound of the run time. `workload` is the name of
    the model that it trains, `batch` and `sequence` are the batch size and sequence length of a step (0: the default
    of the model), and `steps` is the number of training steps; policies may use all of these. `engine` is the training
    framework of its command: only plans that it can run are chosen, and runs get its arguments. `gpu_range` is the
    minimum and maximum total number of GPUs of a reshapable job; None: no limits. `change_limit` limits how often a
    preemptible job is stopped or reshaped.
    """

    id: str
    submitted: Seconds = 0.0
    demand: Demand = Demand()
    work: Seconds | None = None
    tenant: str = "default"
    user: str = ""
    group: str = ""
    job_class: JobClass = "guaranteed"
    priority: int = 0
    preemptible: bool = True
    reshapable: bool = False
    time_limit: Seconds | None = None
    workload: str = ""
    plan: Plan | None = None
    steps: int | None = None
    batch: int = 0
    sequence: int = 0
    engine: LaunchEngine | None = None
    command: tuple[str, ...] = ()
    gpu_range: tuple[int, int] | None = None
    change_limit: ChangeLimit | None = None
    launch: Launch = DEFAULT_LAUNCH

    def __post_init__(self) -> None:
        if not self.id:
            raise BadValue("a job needs an id")
        if not math.isfinite(self.submitted):
            raise BadValue(f"job {self.id!r}: submitted at {self.submitted}, expected a finite time")
        if self.work is not None and not 0 <= self.work < math.inf:
            raise BadValue(f"job {self.id!r}: work is {self.work}, expected seconds ≥ 0")
        if self.time_limit is not None and not self.time_limit > 0:
            raise BadValue(f"job {self.id!r}: time limit is {self.time_limit}, expected seconds > 0")
        if self.steps is not None and not 0 <= self.steps <= MAX_AMOUNT:
            raise BadValue(f"job {self.id!r}: steps is {self.steps}, expected 0 to {MAX_AMOUNT}")
        if self.gpu_range is not None:
            self._check_range(*self.gpu_range)
        if self.reshapable and self.demand.topology is not None and self.demand.topology.is_binding:
            problem = f"it requires its instances {self.demand.topology}, so it cannot be reshapable"
            raise BadValue(f"job {self.id!r}: {problem}")
        if not (0 <= self.batch <= MAX_AMOUNT and 0 <= self.sequence <= MAX_AMOUNT):
            sizes = f"{self.batch} and {self.sequence}"
            raise BadValue(f"job {self.id!r}: batch and sequence are {sizes}, expected 0 to {MAX_AMOUNT}")

    def _check_range(self, minimum: int, maximum: int) -> None:
        if not 1 <= minimum <= maximum <= MAX_GPUS:
            raise BadValue(f"job {self.id!r}: gpu_range is {minimum} to {maximum}, expected 1 ≤ minimum ≤ maximum")
        if not minimum <= self.demand.instances * self.demand.gpus <= maximum:
            raise BadValue(
                f"job {self.id!r}: gpu_range is {minimum} to {maximum}, expected to include the requested {self.demand}"
            )
        if not self.reshapable or self.demand.gpus < 1 or self.demand.gpu_milli < WHOLE:
            raise BadValue(f"job {self.id!r}: gpu_range needs a reshapable job that requests whole GPUs")
