"""What pods request and nodes have, in the units of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from refold.engines.kubernetes.gangs import SCHEDULER_NAME
from refold.engines.kubernetes.objects import Amounts, ApiNode, Container, Pod, PodSpec
from refold.errors import BadValue
from refold.model import MAX_AMOUNT, WHOLE, MiB, Milli

FRACTION_ANNOTATION = "refold.dev/gpu-fraction"
"""Requests a part of one GPU, such as 0.5. Refold counts it; dividing the GPU is up to the device plugin."""

GPU_RESOURCE = "nvidia.com/gpu"
_GPU_RESOURCES = (GPU_RESOURCE, "amd.com/gpu")
_MIG_PREFIX = "nvidia.com/mig-"

_MIB = 2**20
_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


@lru_cache(maxsize=4096)
def parse_amount(text: str | int | float) -> Decimal:
    """Parse a quantity: '500m', '2', '1e3', '512Mi'."""
    written = str(text).strip()
    number = written.rstrip("numkKMGTPEi")
    try:
        amount = Decimal(number) * _SUFFIXES[written[len(number) :]]
    except (ArithmeticError, KeyError):
        raise BadValue(f"{written[:40]!r} is not a quantity; write it as 500m, 2 or 512Mi") from None
    if not (amount.is_finite() and 0 <= amount <= MAX_AMOUNT * _MIB):
        raise BadValue(f"{written[:40]!r} is out of range")
    return amount


def amount_of(amounts: Amounts, resource: str) -> Decimal:
    """Return how much there is of a resource; 0 if this is not said in a valid way."""
    try:
        return parse_amount(amounts.get(resource, 0))
    except BadValue:
        return Decimal(0)


def allocatable(node: ApiNode, resource: str) -> Decimal:
    return amount_of(node.status.allocatable, resource)


def is_accelerator(resource: str) -> bool:
    """Whether a resource is a GPU or a MIG slice of one."""
    return resource in _GPU_RESOURCES or resource.startswith(_MIG_PREFIX)


class PodNeed(NamedTuple):
    """What a pod requests: `gpus` devices of an accelerator resource, or `gpu_milli` of one; CPUs; memory."""

    resource: str = ""
    gpus: int = 0
    gpu_milli: Milli = WHOLE
    cpu_milli: Milli = 0
    memory_mib: MiB = 0


def pod_need(pod: Pod) -> PodNeed:
    """Return what a pod requests. Raises BadValue if it cannot be scheduled as one instance."""
    total = pod_requests(pod.spec)
    accelerators = {name: int(amount) for name, amount in total.items() if is_accelerator(name) and amount > 0}
    if len(accelerators) > 1:
        raise BadValue(f"the pod requests {' and '.join(sorted(accelerators))}, expected one kind of GPU")
    resource, gpus = next(iter(accelerators.items()), ("", 0))
    milli = WHOLE
    if fraction := pod.metadata.annotations.get(FRACTION_ANNOTATION):
        if gpus:
            raise BadValue(f"the pod has the annotation {FRACTION_ANNOTATION} and requests {resource}, expected one")
        resource, gpus, milli = GPU_RESOURCE, 1, _parse_fraction(fraction)
    return PodNeed(resource, gpus, milli, to_milli(total.get("cpu", Decimal(0))), to_mib_up(total.get("memory")))


def _parse_fraction(text: str) -> Milli:
    try:
        milli = round(float(text) * WHOLE)
    except (ValueError, OverflowError):
        milli = 0
    if not 1 <= milli <= WHOLE:
        raise BadValue(f"{FRACTION_ANNOTATION} is {text[:40]!r}, expected a part of a GPU such as 0.5")
    return milli


def pod_requests(spec: PodSpec) -> dict[str, Decimal]:
    """Return what a pod requests, by resource, as kube-scheduler counts it.

    The containers and sidecars run at the same time. The other init containers run before them, one by one, each beside
    the sidecars that were started before it.
    """
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            add_amounts(running, _requests(container))
            _raise_to(peak, running)
        else:
            during = dict(running)
            add_amounts(during, _requests(container))
            _raise_to(peak, during)
    for container in spec.containers:
        add_amounts(running, _requests(container))
    _raise_to(peak, running)
    add_amounts(peak, _parse_all(spec.overhead))
    return peak


def used_by(pod: Pod) -> dict[str, Decimal]:
    """Return what a pod uses. One with a part of a GPU uses all of it: which GPU it has is not known."""
    try:
        requests = pod_requests(pod.spec)
    except BadValue:  # a pod of another scheduler, with amounts that Refold cannot represent
        return {}
    used = {name: amount for name, amount in requests.items() if is_counted(name)}
    if FRACTION_ANNOTATION in pod.metadata.annotations and not any(map(is_accelerator, used)):
        used[GPU_RESOURCE] = Decimal(1)
    return used


def is_foreign(pod: Pod) -> bool:
    """Whether another scheduler has bound a pod with GPUs, which has not ended."""
    if pod.spec.scheduler_name == SCHEDULER_NAME or not pod.is_bound or pod.has_ended:
        return False
    return any(amount and is_accelerator(name) for name, amount in used_by(pod).items())


def is_counted(resource: str) -> bool:
    return resource in ("cpu", "memory") or is_accelerator(resource)


def all_requests(pod: Pod) -> dict[str, Decimal]:
    """Return what a pod requests, with its part of a GPU; nothing if amounts are invalid."""
    try:
        requested = pod_requests(pod.spec)
        if fraction := pod.metadata.annotations.get(FRACTION_ANNOTATION):
            add_amounts(requested, {GPU_RESOURCE: Decimal(_parse_fraction(fraction)) / WHOLE})
    except BadValue:
        return {}
    return {name: amount for name, amount in requested.items() if amount}


def other_requests(spec: PodSpec) -> dict[str, Decimal]:
    """Return what a pod requests besides GPUs, CPUs and memory; nothing if amounts are invalid."""
    try:
        requested = pod_requests(spec)
    except BadValue:
        return {}
    return {name: amount for name, amount in requested.items() if amount and not is_counted(name)}


def _requests(container: Container) -> dict[str, Decimal]:
    """Return the requests of a container; a limit without a request is also the request."""
    return _parse_all({**container.resources.limits, **container.resources.requests})


def _parse_all(amounts: Amounts) -> dict[str, Decimal]:
    return {name: parse_amount(amount) for name, amount in amounts.items()}


def add_amounts(total: dict[str, Decimal], amounts: Mapping[str, Decimal]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, Decimal(0)) + amount


def total_amounts(each: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for amounts in each:
        add_amounts(total, amounts)
    return total


def _raise_to(total: dict[str, Decimal], amounts: Mapping[str, Decimal]) -> None:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, Decimal(0)), amount)


def largest_need(needs: Iterable[PodNeed]) -> PodNeed:
    """Return a need that covers each of several pods. Raises BadValue if they need different kinds of GPUs."""
    listed = list(needs)
    resources = sorted({need.resource for need in listed} - {""})
    if len(resources) > 1:
        raise BadValue(f"the pods of the gang request {' and '.join(resources)}, expected one kind of GPU")
    with_gpus = [need for need in listed if need.resource]
    if len({need.gpu_milli for need in with_gpus}) > 1:
        raise BadValue("the pods of the gang request different parts of a GPU, expected equal ones")
    return PodNeed(
        resources[0] if resources else "",
        max(need.gpus for need in listed),
        with_gpus[0].gpu_milli if with_gpus else WHOLE,
        max(need.cpu_milli for need in listed),
        max(need.memory_mib for need in listed),
    )


def to_milli(amount: Decimal) -> Milli:
    """Convert an amount to thousandths, rounded up."""
    return ceil(amount * WHOLE)


def to_mib_up(amount: Decimal | None) -> MiB:
    """Convert bytes to MiB, rounded up: what a pod requests."""
    return int(((amount or Decimal(0)) / _MIB).to_integral_value(ROUND_CEILING))


def to_mib_down(amount: Decimal | None) -> MiB:
    """Convert bytes to MiB, rounded down: what a node has."""
    return int(((amount or Decimal(0)) / _MIB).to_integral_value(ROUND_FLOOR))
