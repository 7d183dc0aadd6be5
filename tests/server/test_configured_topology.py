"""The section `topology` of `refold.yaml`: levels and domains, and the cluster that has them."""

from __future__ import annotations

import logging

import pytest

from refold.errors import RefoldError
from refold.model import Cluster, Level, Link, Node
from refold.server.config import Topology
from refold.server.config.reader import parse_config
from refold.server.monitor import SlotsMachine, build_layout, with_topology

LEVELS = "levels: [{name: block}, {name: rack, link: {kind: nvlink, gigabytes_per_second: 900}}]"
DOMAINS = "domains: {'a[0-1]': {block: b0, rack: r0}, a2: {block: b0, rack: r1}}"


def read(*lines: str) -> Topology:
    return parse_config("topology:\n" + "".join(f"  {line}\n" for line in lines), "refold.yaml").topology


def test_nodes_have_domains_by_expression() -> None:
    assert read(LEVELS, DOMAINS) == Topology(
        (Level("block"), Level("rack", Link("nvlink", 900.0))),
        {"a0": ("b0", "r0"), "a1": ("b0", "r0"), "a2": ("b0", "r1")},
    )
    assert parse_config("", "refold.yaml").topology == Topology()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((DOMAINS,), "line 2: topology.domains: has no effect: no levels are configured"),
        (("levels: [{name: rack}, {name: rack}]",), "expected levels with different names"),
        (("levels: [{name: node}]",), "a level is named 'node'"),
        ((LEVELS, "domains: {a: {rack: r0}}"), "expected a domain at each of the levels block, rack"),
        ((LEVELS, "domains: {'a[3-1]': {block: b, rack: r}}"), "'3-1' is not a range such as 0-15"),
        ((LEVELS, "domains: {'a[0-1]': {block: b, rack: r}, a1: {block: b, rack: r}}"), "node 'a1' is listed twice"),
    ],
)
def test_sections_that_are_wrong(lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(RefoldError) as error:
        read(*lines)
    assert problem in str(error.value)


def test_levels_of_the_file_replace_those_of_the_engine_and_nodes_not_listed_are_domains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(
        tuple(Node(f"a{number}", 8, "H100", domains=("s0",)) for number in range(4)), levels=(Level("switch"),)
    )
    with caplog.at_level(logging.WARNING):
        found = with_topology(cluster, read(LEVELS, DOMAINS))
    assert found.level_names == ("block", "rack")
    assert [(node.domains, node.rack) for node in found.nodes] == [
        (("b0", "r0"), "r0"),
        (("b0", "r0"), "r0"),
        (("b0", "r1"), "r1"),
        (("node/a3", "node/a3"), "node/a3"),
    ]
    assert caplog.messages == ["topology.domains: 1 node not listed, such as a3"]
    assert with_topology(cluster, Topology()) is cluster


def test_racks_with_power_limits_are_those_of_the_level() -> None:
    def racks(power: str) -> list[str]:
        text = f"cluster: {{nodes: {{a0: 2, a1: 2, a2: 2}}}}\ntopology:\n  {LEVELS}\n  {DOMAINS}\n{power}"
        return [node.rack for node in build_layout(SlotsMachine(6), parse_config(text, "x")).cluster.nodes]

    watts = "gpu_watts: {idle: 50, busy: 300}"
    assert racks("") == ["r0", "r0", "r1"]
    assert racks(f"power: {{racks: {{r0: {{limit_watts: 3000}}}}, {watts}}}") == ["r0", "r0", "r1"]
    with pytest.raises(RefoldError, match=r"power\.racks: node 'a2': rack is 'r0', but its domains are"):
        racks(f"power: {{racks: {{r0: {{limit_watts: 3000, nodes: [a2]}}}}, {watts}}}")
