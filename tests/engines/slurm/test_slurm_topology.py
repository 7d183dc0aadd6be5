"""The levels of a cluster that are read from Slurm's topology."""

from __future__ import annotations

import asyncio

import pytest
from slurm_output import FakePrograms, job_json, node_line

from refold.cli import TraceOptions
from refold.cli.inputs.workload_reader import read_slurm_workload
from refold.engines.slurm import Programs, SlurmCluster, SlurmEngine, SlurmError, map_nodes, read_nodes
from refold.engines.slurm.history import COLUMNS
from refold.engines.slurm.observation import observe_slurm
from refold.engines.slurm.requests import NodeRequest, SlurmSettings, segment_arguments
from refold.engines.slurm.topology import SlurmTopology, parse_topology, read_topology, with_levels
from refold.simulator import Costs

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[4,5],login
SwitchName=m0 Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]
SwitchName=m1 Level=1 LinkSpeed=1 Nodes=login,n[4-5] Switches=s2
SwitchName=core Level=2 LinkSpeed=1 Nodes=login,n[0-5] Switches=m[0-1]
"""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[0-1] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2-3] BlockSize=2
BlockName=b2 BlockIndex=2 Nodes=n[4-5] BlockSize=2
"""
AGGREGATED = f"""{BLOCKS}AggregatedBlock=b[0-1] BlockIndex=3 Nodes=n[0-3] BlockSize=4
AggregatedBlock=b2 BlockIndex=4 Nodes=n[4-5] BlockSize=4
"""
OLD_BLOCKS = "BlockName=b0 BlockIndex=0 Nodes=n[0-3]\nBlockName=b1 BlockIndex=1 Nodes=n[4-5]\n"


def cluster(topology: str, nodes: int = 6) -> SlurmCluster:
    programs = FakePrograms([], [node_line(f"n{number}") for number in range(nodes)], topology=topology)
    return with_levels(map_nodes(read_nodes(programs.run)), read_topology(programs.run))


@pytest.mark.parametrize(
    ("topology", "levels", "domains"),
    [
        (TREE, ("switch1", "switch"), ["m0 s0", "m0 s0", "m0 s1", "m0 s1", "m1 s2", "m1 s2"]),
        (BLOCKS, ("block",), ["b0", "b0", "b1", "b1", "b2", "b2"]),
        (AGGREGATED, ("block4", "block"), ["b[0-1] b0", "b[0-1] b0", "b[0-1] b1", "b[0-1] b1", "b2 b2", "b2 b2"]),
        (OLD_BLOCKS, ("block",), ["b0", "b0", "b0", "b0", "b1", "b1"]),
    ],
)
def test_switches_and_blocks_are_levels(topology: str, levels: tuple[str, ...], domains: list[str]) -> None:
    found = cluster(topology)
    assert (found.cluster.level_names, found.notes) == (levels, ())
    assert [" ".join(node.domains) for node in found.cluster.nodes] == domains


def test_an_outer_level_with_one_domain_is_left_out_and_the_innermost_is_not() -> None:
    assert cluster(TREE, nodes=4).cluster.level_names == ("switch",)
    assert cluster(TREE, nodes=2).cluster.level_names == ("switch",)


def test_a_leaf_switch_at_the_core_is_a_domain_of_the_level_between() -> None:
    text = TREE.replace("SwitchName=m1 Level=1 LinkSpeed=1 Nodes=login,n[4-5] Switches=s2\n", "")
    assert cluster(text).cluster.nodes[4].domains == ("s2", "s2")


@pytest.mark.parametrize("text", ["", "\n", "No topology information available\n", "TopologyName=flat\n"])
def test_a_flat_topology_has_no_levels(text: str) -> None:
    found = cluster(text)
    assert found == map_nodes(read_nodes(FakePrograms([], [node_line(f"n{number}") for number in range(6)]).run))


def test_a_node_in_no_switch_or_in_two_leaves_the_cluster_without_levels_and_with_a_note() -> None:
    for text, problem in [
        (TREE.replace("n[4,5],login", "n4,login"), "node n5 is in no switch"),
        (OLD_BLOCKS.replace("n[4-5]", "n[3-5]"), "node n3 is in b0 and in b1"),
        (OLD_BLOCKS.replace("n[4-5]", "n[4-"), "'n[4-' is not a list of hosts such as n[1-4,7]"),
    ]:
        found = cluster(text)
        assert (found.cluster.levels, found.notes) == ((), (f"Slurm's topology is not used: {problem}",))


def test_what_slurm_refuses_is_no_topology_and_no_answer_is_an_error() -> None:
    def refuse(*_: str) -> str:
        raise SlurmError("scontrol: Requested operation is not supported")

    def time_out(*_: str) -> str:
        raise SlurmError("scontrol did not answer within 120 s")

    assert read_topology(refuse) == SlurmTopology()
    with pytest.raises(SlurmError, match="did not answer"):
        read_topology(time_out)


def test_a_removed_node_keeps_its_domains_while_the_levels_stay() -> None:
    before, after = parse_topology(OLD_BLOCKS), parse_topology(OLD_BLOCKS.replace("n[4-5]", "n4"))
    assert after.after(before).domains["n5"] == ("b1",)
    assert "n5" not in after.after(parse_topology(TREE)).domains


def test_snapshots_have_levels_or_a_note() -> None:
    def look(nodes: int) -> tuple[tuple[str, ...], list[str]]:
        lines = [node_line(f"n{number}") for number in range(nodes)]
        found = observe_slurm(FakePrograms([job_json(1)], lines, sacct="", topology=BLOCKS).run, 3600.0)
        return found.header.cluster.level_names, [note for note in found.notes if "topology" in note]

    assert look(6) == (("block",), [])
    assert look(7) == ((), ["Slurm's topology is not used: node n6 is in no block"])


def test_the_daemon_schedules_a_cluster_with_levels_and_notices_other_ones() -> None:
    class Answers(Programs):
        topology = BLOCKS

        def without_user_environment(self) -> Programs:
            return self

        def run(self, program: str, *arguments: str, stdin: str = "") -> str:
            del stdin
            nodes = "\n".join(node_line(f"n{number}") for number in range(6))
            answers: dict[tuple[str, ...], str] = {("show", "nodes"): nodes, ("show", "topology"): self.topology}
            return answers.get(arguments[:2], "")

    engine = SlurmEngine(programs := Answers({}), "daemon", SlurmSettings())
    asyncio.run(engine.connect())
    assert engine.cluster.level_names == ("block",)
    known, site = dict(engine._known), engine._site
    assert not engine._has_changed(known, site, read_topology(programs.run))
    programs.topology = OLD_BLOCKS
    assert engine._has_changed(known, site, read_topology(programs.run))
    engine.rebuild()
    assert engine.cluster.nodes[3].domains == ("b0",)


@pytest.mark.parametrize(
    ("topology", "levels"), [(OLD_BLOCKS, ("block",)), (OLD_BLOCKS.replace("n[0-3]", "n[1-3]"), ())]
)
def test_comparisons_on_the_accounting_know_the_levels_or_say_why_not(
    topology: str, levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "JobID": "1", "Partition": "gpu", "User": "ada", "Account": "lab", "State": "COMPLETED", "Eligible": "1000",
        "Start": "1000", "End": "1060", "ElapsedRaw": "60", "NNodes": "2", "ReqTRES": "gres/gpu=16",
        "AllocTRES": "gres/gpu=16", "NodeList": "n[0-1]",
    }  # fmt: skip
    sacct = "\n".join(("|".join(COLUMNS), "|".join(values.get(column, "") for column in COLUMNS), ""))
    programs = FakePrograms([], [node_line(f"n{number}") for number in range(6)], sacct=sacct, topology=topology)
    monkeypatch.setattr("refold.engines.slurm.Programs", lambda: programs)
    found = read_slurm_workload(1e9, "", None, TraceOptions(), Costs())
    assert found.cluster.level_names == levels
    assert found.recorded is not None
    assert found.recorded.history.cluster == found.cluster
    assert [note for note in found.notes if "topology" in note] == (
        [] if levels else ["Slurm's topology is not used: node n0 is in no block"]
    )


def test_a_job_in_more_blocks_than_it_needs_has_segments_of_one_node() -> None:
    def arguments(topology: str, *nodes: int) -> list[str]:
        lines = [node_line(f"n{number}") for number in range(6)]
        cluster = with_levels(map_nodes(read_nodes(FakePrograms([], lines).run)), parse_topology(topology))
        return segment_arguments(cluster, [NodeRequest(f"n{number}", "gpu:8", 1, 1) for number in nodes])

    assert arguments(BLOCKS, 0, 1) == arguments(BLOCKS, 0) == arguments("", 0, 5) == []
    assert arguments(BLOCKS, 0, 5) == ["--segment=1"]
