"""What was asked for. A Job never changes; its progress belongs to its Runs."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from refold.errors import BadValue
from refold.model.launch import AS_USUAL, Launch
from refold.model.plan import Plan
from refold.model.units import WHOLE, MiB, Milli, Seconds

JobClass = Literal["guaranteed", "best-effort"]
MOST_INSTANCES = 2**20
MOST_GPUS = 2**20
LARGEST = 2**40
"""No amount of CPUs or memory is larger than this: garbage is refused at the edge."""


class Demand(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True, cache_hash=True):
    """`instances` equal instances, all or nothing; each on one node, with `gpu_milli` of each of `gpus` GPUs.

    An instance of 0 GPUs needs CPUs and memory only. `gpu_types` empty: any type will do.
    """

    instances: int = 1
    gpus: int = 1
    gpu_milli: Milli = WHOLE
    cpu_milli: Milli = 0
    memory_mib: MiB = 0
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= MOST_INSTANCES:
            raise BadValue(f"a job has 1 to {MOST_INSTANCES} instances, not {self.instances}")
        if not 0 <= self.gpus <= MOST_GPUS:
            raise BadValue(f"an instance has 0 or more GPUs, not {self.gpus}")
        if not 1 <= self.gpu_milli <= WHOLE:
            raise BadValue(f"a share of a GPU is 1 to {WHOLE} thousandths, not {self.gpu_milli}")
        if not (0 <= self.cpu_milli <= LARGEST and 0 <= self.memory_mib <= LARGEST):
            raise BadValue(f"CPUs and memory must be ≥ 0, not {self.cpu_milli} and {self.memory_mib}")
        if list(self.gpu_types) != sorted(set(self.gpu_types)):
            raise BadValue(f"GPU types are given once each, in alphabetical order, not {self.gpu_types}")

    @property
    def total_gpu_milli(self) -> Milli:
        """GPU in all, in thousandths."""
        return self.instances * self.gpus * self.gpu_milli

    @property
    def total_gpus(self) -> float:
        """GPUs in all, fractions counted as such."""
        return self.total_gpu_milli / WHOLE

    def __str__(self) -> str:
        share = "" if self.gpu_milli == WHOLE else f" × {self.gpu_milli / WHOLE:g}"
        one = f"{self.gpus}{share} GPU" if self.gpus else f"{self.cpu_milli / WHOLE:g} CPU"
        kinds = f" ({'|'.join(self.gpu_types)})" if self.gpu_types else ""
        return (f"{self.instances} × " if self.instances > 1 else "") + one + kinds


class Job(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job, from whoever submitted it.

    `work` is how many seconds it runs on exactly what it asked for. In a trace that is known from the start
    and only oracles may look; of a live job it is None. `time_limit` is what its user said, a bound and not a truth.
    `workload` names the model that it trains, `batch` and `sequence` are those of a step (0: the model's usual),
    and `steps` is how many it wants: that everybody may know. `gpu_range`: the fewest GPUs and the most, in all, that a
    reshapable job can do with; None: as many as can be made use of.
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
    command: tuple[str, ...] = ()
    gpu_range: tuple[int, int] | None = None
    launch: Launch = AS_USUAL

    def __post_init__(self) -> None:
        if not self.id:
            raise BadValue("a job needs an id")
        if not math.isfinite(self.submitted):
            raise BadValue(f"job {self.id!r}: submitted at {self.submitted}, expected a finite time")
        if self.work is not None and not 0 <= self.work < math.inf:
            raise BadValue(f"job {self.id!r}: work is {self.work}, expected seconds ≥ 0")
        if self.time_limit is not None and not self.time_limit > 0:
            raise BadValue(f"job {self.id!r}: time limit is {self.time_limit}, expected seconds > 0")
        if self.steps is not None and not 0 <= self.steps <= LARGEST:
            raise BadValue(f"job {self.id!r}: steps is {self.steps}, expected ≥ 0, and not beyond reason")
        if self.gpu_range is not None:
            self._check_range(*self.gpu_range)
        if not (0 <= self.batch <= LARGEST and 0 <= self.sequence <= LARGEST):
            raise BadValue(f"job {self.id!r}: batch and sequence are ≥ 0, not {self.batch} and {self.sequence}")

    def _check_range(self, least: int, most: int) -> None:
        if not 1 <= least <= most <= MOST_GPUS:
            raise BadValue(f"job {self.id!r}: gpu_range is {least} to {most}, expected 1 or more, the fewest first")
        if not least <= self.demand.instances * self.demand.gpus <= most:
            raise BadValue(
                f"job {self.id!r}: gpu_range is {least} to {most}, expected to hold the {self.demand} it asks for"
            )
        if not self.reshapable or self.demand.gpus < 1 or self.demand.gpu_milli < WHOLE:
            raise BadValue(f"job {self.id!r}: gpu_range is for reshapable jobs that ask for whole GPUs")
