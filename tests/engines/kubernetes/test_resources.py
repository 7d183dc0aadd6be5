"""What pods request, in the units of the scheduler."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from kubernetes_objects import make_pod

from refold.engines.kubernetes.resources import PodNeed, largest_need, parse_amount, pod_need
from refold.errors import BadValue


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        (2, "2"),
        (0.5, "0.5"),
        ("1e3", "1000"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("512Mi", "536870912"),
        ("1.5Gi", "1610612736"),
        ("100u", "0.0001"),
        ("250000000n", "0.25"),
    ],
)
def test_quantities(text: str | int | float, amount: str) -> None:
    assert parse_amount(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["", "x", "1Q", "-1", "nan", "inf", "1e99", "1mm", "Ki"])
def test_invalid_quantities_are_rejected(text: str) -> None:
    with pytest.raises(BadValue, match=r"quantity|range"):
        parse_amount(text)


def container(**amounts: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {name.replace("_", "."): value for name, value in amounts.items()}}}


def test_a_pod_needs_the_sum_of_its_containers_and_the_overhead() -> None:
    pod = make_pod("p", containers=[container(cpu="500m", memory="1Gi"), container(cpu="1")], overhead={"cpu": "250m"})
    assert pod_need(pod) == PodNeed(cpu_milli=1750, memory_mib=1024)


def test_an_init_container_counts_only_if_it_needs_more_than_the_containers() -> None:
    pod = make_pod("p", containers=[container(cpu="1")], initContainers=[container(cpu="3"), container(cpu="2")])
    assert pod_need(pod).cpu_milli == 3000


def test_sidecars_run_beside_the_containers_and_the_later_init_containers() -> None:
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    pod = make_pod("p", containers=[container(cpu="1")], initContainers=[container(cpu="2"), sidecar])
    assert pod_need(pod).cpu_milli == 2000
    pod = make_pod("p", containers=[container(cpu="1")], initContainers=[sidecar, container(cpu="2")])
    assert pod_need(pod).cpu_milli == 3000


def test_a_limit_without_a_request_is_the_request() -> None:
    limited = {"name": "c", "resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "2"}, "requests": {"cpu": "1"}}}
    assert pod_need(make_pod("p", containers=[limited])) == PodNeed("nvidia.com/gpu", 2, cpu_milli=1000)


def test_mig_slices_are_gpus_of_their_own_kind() -> None:
    slices = {"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "2"}}}
    assert pod_need(make_pod("p", containers=[slices])) == PodNeed("nvidia.com/mig-1g.10gb", 2)


def test_a_fraction_of_a_gpu_is_requested_by_annotation() -> None:
    pod = make_pod("p", gpus=0, annotations={"refold.dev/gpu-fraction": "0.25"})
    assert pod_need(pod) == PodNeed("nvidia.com/gpu", 1, 250)


@pytest.mark.parametrize("fraction", ["0", "1.5", "-0.5", "nan", "inf", "half"])
def test_an_invalid_fraction_is_rejected(fraction: str) -> None:
    with pytest.raises(BadValue, match="expected a part of a GPU"):
        pod_need(make_pod("p", gpus=0, annotations={"refold.dev/gpu-fraction": fraction}))


def test_a_fraction_and_whole_gpus_exclude_each_other() -> None:
    with pytest.raises(BadValue, match="expected one"):
        pod_need(make_pod("p", gpus=1, annotations={"refold.dev/gpu-fraction": "0.5"}))


def test_a_gang_needs_for_each_pod_what_its_largest_pod_needs() -> None:
    needs = [PodNeed("nvidia.com/gpu", 8, cpu_milli=1000), PodNeed(cpu_milli=4000, memory_mib=10)]
    assert largest_need(needs) == PodNeed("nvidia.com/gpu", 8, cpu_milli=4000, memory_mib=10)


def test_the_pods_of_a_gang_need_one_kind_of_gpu() -> None:
    with pytest.raises(BadValue, match=r"nvidia.com/gpu and nvidia.com/mig-1g.10gb"):
        largest_need([PodNeed("nvidia.com/gpu", 1), PodNeed("nvidia.com/mig-1g.10gb", 1)])
