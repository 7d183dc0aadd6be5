"""Reading clusters from YAML, CSV and shorthand, and writing them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.lazy_group import app
from refold.errors import BadFile
from refold.model import Cluster, GpuType, Link, Node, Rack, Tenant
from refold.simulator.traces.formats import read_cluster, write_cluster

FIXTURES = Path(__file__).parent / "fixtures"

LAB = Cluster(
    nodes=(
        *(Node(name, 8, "A100", 128000, 1048576, "r1", Link("nvlink", 300.0), 500.0, 900.0) for name in ("a0", "a1")),
        *(Node(name, 2, "T4", 16500, 65536) for name in ("t08", "t09", "t12")),
        Node("login", cpu_milli=4000, memory_mib=8192),
    ),
    gpu_types=(GpuType("A100", 80.0, 2.0, 60.0, 400.0),),
    racks=(Rack("r1", 10000.0),),
    network=Link("infiniband", 25.0),
    name="lab",
)


def test_a_yaml_file_is_read() -> None:
    assert read_cluster(FIXTURES / "cluster.yaml") == LAB


def test_tenants_and_their_quotas_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text("tenants:\n- {name: research, quota_gpus: 6.5}\n- {name: guests}\nnodes:\n- {name: n, gpus: 8}\n")
    cluster = read_cluster(path)
    assert cluster.tenants == (Tenant("research", 6.5), Tenant("guests", 0.0))
    write_cluster(cluster, tmp_path / "again.yaml")
    assert read_cluster(tmp_path / "again.yaml") == cluster


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ("[{name: a, quota: 6}]", "tenants[0]: unknown field 'quota'; did you mean 'quota_gpus'?"),
        ("[{name: a, quota_gpus: -1}]", "tenant 'a': quota_gpus is -1.0, expected GPUs ≥ 0"),
        ("[{name: a}, {name: a}]", "two tenants of cluster 'shared' have the same name"),
    ],
)
def test_invalid_tenants_are_rejected(tmp_path: Path, tenants: str, problem: str) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(f"tenants: {tenants}\nnodes:\n- {{name: n, gpus: 8}}\n")
    with pytest.raises(BadFile, match=re.escape(problem)):
        read_cluster(path)


def test_a_counted_node_without_details_has_an_unknown_gpu_type(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("nodes:\n- {name: n, count: 2, gpus: 4}\n")
    assert read_cluster(path) == Cluster(
        (Node("n0", 4, "GPU"), Node("n1", 4, "GPU")), name="small", cpus_known=False, memory_known=False
    )


def test_node_lists_in_the_common_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node_id,gpu_type,num_gpu,cpu,mem_gib\nn1,CPU,0,32.5,\nn2,T4,2,96,\n")
    assert read_cluster(path) == Cluster(
        (Node("n1", cpu_milli=32500), Node("n2", 2, "T4", 96000)), name="nodes", memory_known=False
    )


def test_node_lists_in_the_openb_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "openb.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,32000,1024,0,\nn2,96000,2048,8,G2\n")
    assert read_cluster(path) == Cluster(
        (Node("n1", cpu_milli=32000, memory_mib=1024), Node("n2", 8, "G2", 96000, 2048)), name="openb"
    )


def test_shorthand_is_read() -> None:
    assert read_cluster("2x8:A100+1x2:T4") == Cluster(
        (Node("node0", 8, "A100"), Node("node1", 8, "A100"), Node("node2", 2, "T4")),
        name="2x8:A100+1x2:T4",
        cpus_known=False,
        memory_known=False,
    )
    assert read_cluster("135x8").gpus == 1080
    assert read_cluster("2X8").nodes == read_cluster("2x8").nodes


@pytest.mark.parametrize("name", ["lab", "12x8", "demo", "names", "unknown amounts"])
def test_written_clusters_are_read_back_unchanged(name: str, tmp_path: Path) -> None:
    odd_names = ("n8", "n9", "n10", "n010", "011", "x", "x07", "x08", "y99999999998", "y99999999999")
    clusters = {
        "lab": LAB,
        "names": Cluster(tuple(Node(node) for node in odd_names)),
        "unknown amounts": Cluster((Node("a", 1, "T4", 1000, 10),), cpus_known=False, memory_known=False),
    }
    cluster = clusters.get(name) or read_cluster(name)
    write_cluster(cluster, tmp_path / "cluster.yaml")
    assert read_cluster(tmp_path / "cluster.yaml") == cluster


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()
    path = tmp_path / "lab.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert (len(read_cluster(path).nodes), read_cluster(path).gpus) == (20, 136)
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    monkeypatch.chdir(tmp_path)
    for line in page.partition("```\n")[2].partition("```")[0].splitlines():
        words = line.partition("#")[0].split()
        assert words[0] == "refold"
        assert CliRunner().invoke(app, words[1:], catch_exceptions=False).exit_code == 0
