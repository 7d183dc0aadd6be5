"""The demo workload and cluster that ship with the package: `python tools/demo_trace.py` makes them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from refold.model import DAY, Cluster, Demand, GpuType, Link, Node, Rack
from refold.simulator.traces import (
    Lognormal,
    PoissonArrivals,
    SizeClass,
    Trace,
    WorkloadShape,
    generate,
    write_cluster,
    write_trace,
)
from refold.simulator.traces.synthetic import OFFICE_HOURS

SHIPPED = Path(__file__).parent.parent / "src" / "refold" / "simulator" / "traces" / "shipped"

A100, V100, T4 = "A100-80GB", "V100-32GB", "T4"
JOBS, LOAD, SEED = 1500, 0.9, 20

_A100_NODE = Node(
    name="any",
    gpus=8,
    gpu_type=A100,
    cpu_milli=128_000,
    memory_mib=1024 * 1024,
    inside=Link("nvlink", 300.0, 2.0),
    idle_watts=500,
    busy_watts=1200,
)
_V100_NODE = Node(
    name="any",
    gpus=8,
    gpu_type=V100,
    cpu_milli=96_000,
    memory_mib=512 * 1024,
    inside=Link("nvlink", 150.0, 2.0),
    idle_watts=300,
    busy_watts=700,
)
_SMALL_V100_NODE = msgspec.structs.replace(_V100_NODE, gpus=4, cpu_milli=48_000, memory_mib=256 * 1024)
_T4_NODE = Node("any", 2, T4, 32_000, 128 * 1024, idle_watts=120, busy_watts=300)


def demo_cluster() -> Cluster:
    """Return a heterogeneous cluster: 16 nodes with 92 GPUs of three types in four racks."""
    nodes = [
        *_nodes("a100", range(3), _A100_NODE, "rack-1"),
        *_nodes("a100", range(3, 6), _A100_NODE, "rack-2"),
        *_nodes("v100", range(3), _V100_NODE, "rack-3"),
        *_nodes("v100", range(3, 6), _SMALL_V100_NODE, "rack-3"),
        *_nodes("t4", range(4), _T4_NODE, "rack-4"),
    ]
    return Cluster(
        nodes=tuple(nodes),
        gpu_types=(
            GpuType(A100, memory_gib=80, idle_watts=60, busy_watts=400),
            GpuType(V100, memory_gib=32, idle_watts=40, busy_watts=300),
            GpuType(T4, memory_gib=16, idle_watts=10, busy_watts=70),
        ),
        racks=(Rack("rack-1", 15000), Rack("rack-2", 15000), Rack("rack-3", 15000), Rack("rack-4", 3000)),
        network=Link("infiniband", 25.0, 5.0),
        name="demo",
    )


def _nodes(prefix: str, numbers: range, template: Node, rack: str) -> list[Node]:
    return [msgspec.structs.replace(template, name=f"{prefix}-{number}", rack=rack) for number in numbers]


def demo_shape() -> WorkloadShape:
    """Most jobs are small and short, and many use a fraction of a GPU; most GPU time goes to gangs and long jobs."""
    any_type, large_types = (), (A100, V100)
    return WorkloadShape(
        jobs=JOBS,
        arrivals=PoissonArrivals(12.0, OFFICE_HOURS, burst=1.4, burst_seconds=60.0),
        classes=(
            SizeClass(_demand(1, any_type, milli=200, cpus=2), 0.09, Lognormal(1200, 1.7, DAY), 0.6),
            SizeClass(_demand(1, any_type, milli=500, cpus=4), 0.14, Lognormal(2400, 1.7, DAY), 0.5),
            SizeClass(_demand(1, large_types, milli=700, cpus=4), 0.05, Lognormal(3600, 1.6, DAY), 0.3),
            SizeClass(_demand(1, any_type), 0.25, Lognormal(3600, 1.9, DAY), 0.3),
            SizeClass(_demand(1, (A100,)), 0.11, Lognormal(7200, 1.8, DAY), 0.2),
            SizeClass(_demand(2, any_type), 0.11, Lognormal(7200, 1.6, DAY), 0.3),
            SizeClass(_demand(4, large_types), 0.12, Lognormal(5400, 1.5, DAY), 0.2),
            SizeClass(_demand(8, large_types), 0.06, Lognormal(7200, 1.4, DAY), 0.1),
            SizeClass(_demand(8, (A100,)), 0.04, Lognormal(9000, 1.3, DAY), 0.1),
            SizeClass(_demand(8, large_types, instances=2), 0.02, Lognormal(7200, 1.1, DAY), 0.0),
            SizeClass(_demand(8, (A100,), instances=4), 0.01, Lognormal(5400, 1.0, DAY / 2), 0.0),
        ),
        tenants=(("vision", 0.40), ("language", 0.30), ("speech", 0.18), ("robotics", 0.12)),
        users_per_tenant=6,
        user_correlation=0.6,
        time_limits=True,
        name="demo",
    )


def _demand(gpus: int, types: tuple[str, ...], *, milli: int = 1000, cpus: int = 8, instances: int = 1) -> Demand:
    memory_mib = gpus * (32 if milli == 1000 else 16) * 1024
    return Demand(instances, gpus, milli, gpus * cpus * 1000, memory_mib, tuple(sorted(types)))


def demo_trace() -> Trace:
    """Generate the jobs, at a load that is high enough for queues to form and policies to differ."""
    return generate(demo_shape().for_load(demo_cluster(), LOAD), SEED)


if __name__ == "__main__":
    write_trace(demo_trace(), SHIPPED / "demo.csv")
    write_cluster(demo_cluster(), SHIPPED / "demo.yaml")
