"""Rack power limits of the daemon: the configuration, and a live daemon that keeps them."""

from pathlib import Path
from typing import Any

import pytest
from real_daemon import RealDaemon, wait_until

from refold.client.api import Submission
from refold.errors import RefoldError
from refold.model import Cluster, GpuType, Node, Rack
from refold.server.config.reader import parse_config
from refold.server.monitor.machine import Layout, SlotsMachine, build_layout
from refold.server.monitor.nvidia import DetectedGpu

NODES = "cluster: {nodes: {a: 4, b: 2}}\n"
RACK = "power: {racks: {r1: {limit_watts: 1300}}, gpu_watts: {idle: 50, busy: 300}}\n"


def layout(text: str, slots: int = 6) -> Layout:
    return build_layout(SlotsMachine(slots), parse_config(text, "refold.yaml"))


class GpuMachine(SlotsMachine):
    """A machine with one H100."""

    def gpus(self) -> list[DetectedGpu]:
        return [DetectedGpu(0, "GPU-1", "NVIDIA H100 80GB HBM3", "H100-80GB", 81_559)]


def test_racks_and_watts_are_those_of_the_cluster() -> None:
    power = """\
power:
  racks: {r1: {limit_watts: 1300, nodes: [a]}}
  gpu_watts: {idle: 50, busy: 300}
  node_watts: {idle: 200, busy: 500}
"""
    watts: dict[str, Any] = {"idle_watts": 200.0, "busy_watts": 500.0}
    assert layout(NODES + power).cluster == Cluster(
        (Node("a", 4, "slot", rack="r1", **watts), Node("b", 2, "slot", **watts)),
        (GpuType("slot", idle_watts=50.0, busy_watts=300.0),),
        (Rack("r1", 1300.0),),
        name="localhost",
        cpus_known=False,
        memory_known=False,
    )


def test_a_rack_without_nodes_has_all_and_gpus_draw_what_their_data_sheet_says() -> None:
    config = parse_config("power: {racks: {r1: {limit_watts: 600}}}", "refold.yaml")
    cluster = build_layout(GpuMachine(1), config).cluster
    assert [node.rack for node in cluster.nodes] == ["r1"]
    assert (cluster.gpu_types[0].idle_watts, cluster.gpu_types[0].busy_watts) == (0.0, 700.0)


def test_the_policy_places_jobs_within_limits() -> None:
    assert parse_config(NODES + RACK, "refold.yaml").policy_settings["placement"] == "genetic-power"
    assert "placement" not in parse_config(NODES, "refold.yaml").policy_settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power: {racks: {r1: {}}}", "line 2: power.racks.r1: limit_watts is missing, expected watts > 0"),
        ("power: {racks: {r1: {limit_watts: 0}}}", "line 2: power.racks.r1.limit_watts is 0, expected watts > 0"),
        ("power: {gpu_watts: {busy: 3}}", "line 2: power.gpu_watts: has no effect: no racks are configured"),
        (RACK.replace("idle: 50", "idle: 500"), "busy is 300, expected at least idle, 500"),
        (
            "power: {racks: {r1: {limit_watts: 9, nodes: [a]}, r2: {limit_watts: 9, nodes: [b, a]}}}",
            "line 2: power.racks.r2.nodes: node 'a' is already in rack 'r1'",
        ),
        (
            "power: {racks: {r1: {limit_watts: 9}, r2: {limit_watts: 9, nodes: [b]}}}",
            "power.racks.r1: nodes is missing: with several racks, each lists its nodes",
        ),
        (
            "power: {racks: {r1: {limit_watts: 9, nodes: [c]}}, gpu_watts: {busy: 3}}",
            "power.racks.r1.nodes: unknown node 'c'",
        ),
        (
            "power: {racks: {r1: {limit_watts: 900}}}",
            "power.gpu_watts is missing, and no data sheet of 'slot' is known",
        ),
        (
            RACK.replace("1300", "200"),
            "power.racks: rack 'r1': limit_watts is 200 W, but its nodes and GPUs draw 300 W when idle",
        ),
        ("policy: sia\n" + RACK, "power.racks: policy 'sia' does not keep power limits; policies that do: fifo,"),
        (
            "policy: {name: las, settings: {placement: fgd}}\n" + RACK,
            "power.racks: placement 'fgd' does not keep power limits; only genetic-power does",
        ),
    ],
)
def test_bad_configurations_are_rejected(text: str, message: str) -> None:
    with pytest.raises(RefoldError) as error:
        layout(NODES + text)
    assert message in str(error.value)


@pytest.mark.parametrize("policy", ["fifo-skip", "refold"])
def test_a_live_daemon_holds_a_job_back_until_its_rack_has_power(tmp_path: Path, policy: str) -> None:
    """The slots draw 200 W when idle, and 250 W more each when busy: three of four may be busy."""
    power = "{racks: {r1: {limit_watts: 950}}, gpu_watts: {idle: 50, busy: 300}}"
    with RealDaemon(tmp_path / "state", slots=4, policy=policy, power=power) as daemon:
        client = daemon.client()
        first, second = (
            client.submit(Submission(name=name, command=["sleep", "60"], gpus=2)).id for name in ("first", "second")
        )
        wait_until(lambda: client.job(first).state == "running")
        wait_until(lambda: client.job(second).reason == "Resources")
        assert client.job(second).message == "0 of 1 nodes fit: 1 is at the power limit of the rack"
        [node] = client.nodes()
        assert (node.rack, node.rack_watts, node.rack_limit_watts, node.free_gpus) == ("r1", 700.0, 950.0, 2.0)
        third = client.submit(Submission(name="third", command=["true"], gpus=1)).id
        wait_until(lambda: client.job(third).state == "finished")  # one more slot may be busy
        with pytest.raises(RefoldError, match="exceed the power limits of the racks"):
            client.submit(Submission(name="large", command=["true"], gpus=4))
        client.cancel(first)
        wait_until(lambda: client.job(second).state == "running")
        client.cancel(second)
