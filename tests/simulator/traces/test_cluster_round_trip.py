"""Clusters that are written and read again are the same; node names may be given as ranges."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.errors import BadFile, BadValue
from refold.model import Cluster, GpuType, Level, Link, Node, Rack, Tenant
from refold.simulator.traces.formats import read_cluster, write_cluster
from refold.simulator.traces.shorthand import from_shorthand

watts = st.sampled_from([0.0, 0.5, 300.0])
links = st.builds(Link, st.sampled_from(["nvlink", "pcie", "no", "1"]), st.sampled_from([16.0, 0.125, 300.0]), watts)
node_names = st.from_regex(r"[a-z]{1,2}-?[0-9]{0,3}", fullmatch=True) | st.sampled_from(["yes", "0x1F", "é~", "12:30"])
nodes = st.builds(
    Node,
    node_names,
    st.integers(0, 62),
    st.sampled_from(["A100", "T4", "null"]),
    st.sampled_from([0, 1, 1500, 2**40]),
    st.sampled_from([0, 1, 1024, 2**40]),
    st.sampled_from(["", "r1", "007"]),
    links,
    busy_watts=watts,
)
clusters = st.builds(
    Cluster,
    st.lists(nodes, min_size=1, max_size=8, unique_by=lambda node: node.name).map(tuple),
    st.lists(
        st.builds(GpuType, st.sampled_from(["A100", "T4", "Z9"]), watts, st.sampled_from([0.5, 1.0, 2.0])),
        max_size=2,
        unique_by=lambda gpu_type: gpu_type.name,
    ).map(tuple),
    st.sampled_from([(), (Rack("r1", 9000.0), Rack("007"))]),
    links,
    st.sampled_from(["lab", "1", "on", "two words"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.builds(Tenant, st.sampled_from("xyz"), watts, watts), max_size=3, unique_by=lambda one: one.name).map(
        tuple
    ),
)


@given(clusters)
def test_any_cluster_is_read_back_unchanged(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        write_cluster(cluster, path)
        assert read_cluster(path) == cluster


TWO_LEVELS = Cluster(
    (
        Node("a0", 4, "GB200", rack="r0", domains=("b0", "r0")),
        Node("a1", 4, "GB200", rack="r0", domains=("b0", "r0")),
        Node("a2", 4, "GB200", rack="r1", domains=("b0", "r1")),
    ),
    levels=(Level("block"), Level("rack", Link("nvlink", 900.0))),
    cpus_known=False,
    memory_known=False,
)


def test_levels_and_domains_are_written_and_read(tmp_path: Path) -> None:
    write_cluster(TWO_LEVELS, tmp_path / "c.yaml")
    assert read_cluster(tmp_path / "c.yaml") == TWO_LEVELS
    assert msgspec.json.decode(msgspec.json.encode(TWO_LEVELS), type=Cluster) == TWO_LEVELS


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("name: a", "nodes[0]: domains has no 'rack', which is a level of the cluster"),
        ("name: a, domains: {row: x}", "nodes[0].domains.row: is not one of the levels of the cluster: rack"),
        ("name: a, domains: {rack: x, row: y}", "nodes[0].domains.row: is not one of the levels of the cluster: rack"),
    ],
)
def test_domains_must_match_the_levels(entry: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"levels: [{{name: rack}}]\nnodes:\n- {{{entry}}}\n")
    with pytest.raises(BadFile) as caught:
        read_cluster(path)
    assert problem in str(caught.value)


def test_the_domain_at_the_level_rack_may_be_given_as_rack(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("levels: [{name: rack}]\nnodes:\n- {name: a, rack: r7}\n")
    assert read_cluster(path).nodes == (Node("a", rack="r7", domains=("r7",)),)


def test_amounts_that_only_some_nodes_have_can_be_written_if_they_are_unknown(tmp_path: Path) -> None:
    cluster = Cluster((Node("a", cpu_milli=1000), Node("b", memory_mib=1024)), cpus_known=False, memory_known=False)
    write_cluster(cluster, tmp_path / "c.yaml")
    assert read_cluster(tmp_path / "c.yaml") == cluster


def test_equal_neighbours_share_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    write_cluster(Cluster(tuple(Node(f"gpu{number:02}", 8, "A100") for number in range(100)), name="big"), path)
    assert path.read_text().count("gpu_type") == 1
    assert "name: gpu[00-99]" in path.read_text()


def test_a_node_whose_name_looks_like_a_range_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"node 'a\[0-1\]' cannot be written: its name would be read as a range"):
        write_cluster(Cluster((Node("a[0-1]"),)), tmp_path / "c.yaml")


def test_a_cluster_that_cannot_be_written_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"c\.yaml: cannot be written: No such file or directory"):
        write_cluster(Cluster((Node("a"),)), tmp_path / "none" / "c.yaml")


def names_of(tmp_path: Path, entry: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(f"nodes:\n- {{{entry}}}\n")
    return [node.name for node in read_cluster(path).nodes]


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ("name: a", ["a"]),
        ("name: a, count: 1", ["a0"]),
        ("name: a, count: 3", ["a0", "a1", "a2"]),
        ("name: 'a[7]'", ["a7"]),
        ("name: 'a[8-11]'", ["a8", "a9", "a10", "a11"]),
        ("name: 'a[08-11]'", ["a08", "a09", "a10", "a11"]),
        ("name: 'a[1,3-4,009]b'", ["a1b", "a3b", "a4b", "a009b"]),
        ("name: '[0-1]'", ["0", "1"]),
        ("name: 'a[0-1]', count: 2", ["a0", "a1"]),
        ("name: 'a[x]'", ["a[x]"]),
    ],
)
def test_ranges_and_counts_expand_to_names(entry: str, names: list[str], tmp_path: Path) -> None:
    assert names_of(tmp_path, entry) == names


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("name: 'a[3-]'", "'3-' is not a range such as 0-15"),
        ("name: 'a[-3]'", "'-3' is not a range such as 0-15"),
        ("name: 'a[1,,2]'", "'' is not a range such as 0-15"),
        ("name: 'a[4-2]'", "'4-2' is not a range such as 0-15: it ends before it begins"),
        ("name: 'a[0-1]', count: 3", "count is 3, but 'a[0-1]' names 2 nodes"),
        ("name: a, count: 0", "count is 0, expected 1 to 100,000"),
        ("name: a, count: 100001", "count is 100001, expected 1 to 100,000"),
        ("name: 'a[0,0]'", "have the same name"),
    ],
)
def test_ranges_that_name_no_nodes_are_rejected(entry: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        names_of(tmp_path, entry)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("1x0", [("node0", 0, "")]),
        ("1x62:H100", [("node0", 62, "H100")]),
        ("1×2+1X1:T4", [("node0", 2, "GPU"), ("node1", 1, "T4")]),
        ("1x2:NVIDIA-A100-80GB", [("node0", 2, "NVIDIA-A100-80GB")]),
    ],
)
def test_shorthand_names_nodes_by_number(text: str, nodes: list[tuple[str, int, str]]) -> None:
    cluster = from_shorthand(text)
    assert [(node.name, node.gpus, node.gpu_type) for node in cluster.nodes] == nodes
    assert (cluster.name, cluster.cpus_known, cluster.memory_known) == (text, False, False)


def test_shorthand_names_domains_by_number() -> None:
    cluster = from_shorthand("2 blocks of 2 racks of 1x4:GB200+1 block of 1 rack of 2x8:H100")
    assert cluster.levels == (Level("block"), Level("rack"))
    assert [(node.name, node.domains) for node in cluster.nodes] == [
        ("node0", ("block0", "rack0")),
        ("node1", ("block0", "rack1")),
        ("node2", ("block1", "rack2")),
        ("node3", ("block1", "rack3")),
        ("node4", ("block2", "rack4")),
        ("node5", ("block2", "rack4")),
    ]


def test_all_parts_of_a_shorthand_have_the_same_levels() -> None:
    with pytest.raises(BadValue, match=r"has nodes in no levels and in rack, expected the same levels"):
        from_shorthand("2 racks of 4x8+4x8")


@pytest.mark.parametrize(
    "text", ["8", "x8", "2 racks 4x8", "2 racks of", "racks of 4x8", "8x", "8x8:", "8x8:A 100", "2x8+", "-1x8", "²x8"]
)
def test_text_that_is_no_shorthand_is_a_missing_file(text: str) -> None:
    with pytest.raises(BadFile, match="no such file, and not shorthand such as 16x8:A100"):
        read_cluster(text)


def test_a_file_is_preferred_to_shorthand_and_to_a_shipped_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("2x8", "demo"):
        Path(name).write_text("nodes:\n- {name: mine, gpus: 1}\n")
        assert [node.name for node in read_cluster(name).nodes] == ["mine"]


def test_a_table_without_known_columns_says_what_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("host,gpus\na,8\n")
    with pytest.raises(BadFile) as caught:
        read_cluster(path)
    assert caught.value.problem == (
        "has columns host, gpus; expected node_id, gpu_type, num_gpu, cpu, mem_gib or sn, model, gpu, cpu_milli,"
        " memory_mib"
    )


def test_two_rows_of_the_same_node_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node_id,gpu_type,num_gpu,cpu,mem_gib\na,T4,2,8,16\na,T4,2,8,16\n")
    with pytest.raises(BadFile, match="two nodes of cluster 'nodes' have the same name"):
        read_cluster(path)
