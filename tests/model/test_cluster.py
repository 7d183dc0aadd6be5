"""Clusters, nodes, racks and tenants: what they accept, and how their parts are looked up."""

from collections.abc import Callable
from math import inf, nan

import pytest

from refold.errors import BadValue, UnknownName
from refold.model import ETHERNET, MAX_AMOUNT, PCIE, Cluster, GpuType, Link, Node, Rack, Tenant


def rejection(build: Callable[[], object]) -> str:
    """The message with which a value is rejected."""
    with pytest.raises(BadValue) as raised:
        build()
    return str(raised.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GpuType("", speed=2.0), "a GPU type needs a name"),
        (lambda: GpuType("A100", memory_gib=-0.1), "GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        (lambda: GpuType("A100", speed=0.0), "GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        (lambda: GpuType("A100", speed=nan), "GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        (lambda: GpuType("A100", memory_gib=inf), "GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        (lambda: GpuType("A100", busy_watts=inf), "GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        (
            lambda: GpuType("A100", idle_watts=60.0, busy_watts=59.5),
            "GPU type 'A100': busy_watts is 59.5, expected at least idle_watts, 60",
        ),
        (lambda: Link("ib", 25.0, -1.0), "link 'ib': bandwidth must be > 0 and latency ≥ 0"),
        (lambda: Link("ib", 0.0), "link 'ib': bandwidth must be > 0 and latency ≥ 0"),
        (lambda: Link("ib", nan), "link 'ib': bandwidth must be > 0 and latency ≥ 0"),
        (lambda: Link("ib", inf), "link 'ib': bandwidth must be > 0 and latency ≥ 0"),
        (lambda: Node(""), "a node needs a name"),
        (lambda: Node("n0", gpus=-1, gpu_type="A100"), "node 'n0' has -1 GPUs, expected 0 to 62"),
        (lambda: Node("n0", gpus=63, gpu_type="A100"), "node 'n0' has 63 GPUs, expected 0 to 62"),
        (lambda: Node("n0", gpus=2), "node 'n0' has GPUs but no gpu_type"),
        (lambda: Node("n0", cpu_milli=-1), "node 'n0': CPUs, memory and power must be 0 to 1099511627776"),
        (lambda: Node("n0", cpu_milli=2**63), "node 'n0': CPUs, memory and power must be 0 to 1099511627776"),
        (lambda: Node("n0", memory_mib=-1), "node 'n0': CPUs, memory and power must be 0 to 1099511627776"),
        (lambda: Node("n0", idle_watts=nan), "node 'n0': CPUs, memory and power must be 0 to 1099511627776"),
        (
            lambda: Node("n0", idle_watts=200.0, busy_watts=199.0),
            "node 'n0': busy_watts is 199, expected at least idle_watts, 200",
        ),
        (lambda: Rack(""), "a rack needs a name"),
        (lambda: Rack("r1", -1.0), "rack 'r1': limit_watts is -1, expected watts ≥ 0 (0: no limit)"),
        (lambda: Rack("r1", nan), "rack 'r1': limit_watts is nan, expected watts ≥ 0 (0: no limit)"),
        (lambda: Tenant(""), "a tenant needs a name"),
        (lambda: Tenant("vision", -1.0), "tenant 'vision': quota_gpus is -1.0, expected GPUs ≥ 0"),
        (lambda: Tenant("vision", inf), "tenant 'vision': quota_gpus is inf, expected GPUs ≥ 0"),
        (lambda: Tenant("vision", 1, nan), "tenant 'vision': limit_gpus is nan, expected GPUs ≥ 0 (0: no limit)"),
        (lambda: Cluster(()), "a cluster needs at least one node"),
        (
            lambda: Cluster((Node("n0"), Node("n1"), Node("n0")), name="lab"),
            "two nodes of cluster 'lab' have the same name",
        ),
        (
            lambda: Cluster((Node("n0"),), racks=(Rack("r1"), Rack("r1", 5.0))),
            "two racks of cluster 'cluster' have the same name",
        ),
        (
            lambda: Cluster((Node("n0"),), tenants=(Tenant("vision"), Tenant("vision", 4))),
            "two tenants of cluster 'cluster' have the same name",
        ),
    ],
)
def test_an_invalid_part_of_a_cluster_is_rejected_by_name(build: Callable[[], object], message: str) -> None:
    assert rejection(build) == message


def test_values_at_their_bounds_are_accepted() -> None:
    assert Node("n0", 62, "A100", MAX_AMOUNT, MAX_AMOUNT).gpus == 62
    assert Node("cpu-only").gpus == 0
    assert Node("n0", idle_watts=200.0, busy_watts=200.0).busy_watts == 200.0
    assert GpuType("A100", idle_watts=60.0, busy_watts=60.0).busy_watts == 60.0
    assert Rack("r1", float(MAX_AMOUNT)).limit_watts == MAX_AMOUNT
    assert Tenant("vision", 0.0, 0.0).limit_gpus == 0


def test_zero_busy_watts_mean_that_the_power_under_load_is_unknown() -> None:
    assert GpuType("A100", idle_watts=60.0).busy_watts == 0
    assert Node("n0", idle_watts=200.0).busy_watts == 0


def make_cluster_of_types(count: int) -> Cluster:
    return Cluster(tuple(Node(f"n{index}", 1, f"T{index:02}") for index in range(count)))


def test_a_cluster_has_at_most_62_gpu_types() -> None:
    assert len(make_cluster_of_types(62).type_names) == 62
    assert rejection(lambda: make_cluster_of_types(63)) == "cluster 'cluster' has more than 62 GPU types"


def test_only_the_types_of_gpus_that_exist_count() -> None:
    cluster = Cluster((Node("login", 0, "H100"), Node("n0", 2, "A100")), (GpuType("B200", speed=4.0),))
    assert cluster.type_names == ("A100",)
    assert cluster.gpu_type("A100") == GpuType("A100")
    assert cluster.gpu_type("B200") == GpuType("B200", speed=4.0)  # described, though no node has it
    with pytest.raises(UnknownName) as raised:
        cluster.gpu_type("H100")
    assert str(raised.value) == "unknown GPU type 'H100'; did you mean 'A100'? (known: A100)"


def test_totals_are_sums_over_the_nodes() -> None:
    nodes = (Node("n0", 8, "A100", 64_000, 512_000), Node("n1", 4, "V100", 32_500, 1), Node("n2", 0, "", 500, 0))
    cluster = Cluster(nodes)
    assert (cluster.gpus, cluster.cpu_milli, cluster.memory_mib) == (12, 97_000, 512_001)
    assert dict(cluster.index_of_node) == {"n0": 0, "n1": 1, "n2": 2}


def test_a_cluster_without_tenants_has_no_quotas() -> None:
    assert Cluster((Node("n0"),)).quota_gpus("anyone") == inf


def test_tenants_that_are_not_listed_have_no_quota() -> None:
    cluster = Cluster((Node("n0"),), tenants=(Tenant("vision", 8.0), Tenant("speech")))
    assert [cluster.quota_gpus(name) for name in ("vision", "speech", "robotics")] == [8.0, 0.0, 0.0]


def test_the_default_links_are_pcie_inside_and_ethernet_between_nodes() -> None:
    assert Node("n0").inside == PCIE == Link("pcie", 16.0)
    assert Cluster((Node("n0"),)).network == ETHERNET == Link("ethernet", 1.25)
