"""`refold curve`: throughput by GPUs and CPUs, as tables and charts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import Result

from refold.cli.inputs.hardware import GpuPool, parse_gpu_pools
from refold.model import Link
from refold.planning.catalogue import find_gpu
from refold.simulator.results.plan_curve_chart import CurveChart, CurveStep, StepCurve, render_page

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

GPT2 = ("curve", "gpt2-xl", "--batch", "16", "--seq", "1024")
CLUSTER = """
network: {kind: infiniband, gigabytes_per_second: 25}
nodes:
  - {name: small, gpus: 2, gpu_type: A100, cpus: 32, memory_gib: 256}
  - name: big
    count: 2
    gpus: 4
    gpu_type: a100-80gb
    cpus: 64
    memory_gib: 512
    inside: {kind: nvlink, gigabytes_per_second: 200}
  - {name: old, gpus: 2, gpu_type: T4, cpus: 16, memory_gib: 64}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Three kinds of nodes, with GPUs of two types."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def test_a_table_lists_the_numbers_of_gpus_that_increase_throughput(stdout_of: TextOf) -> None:
    title, header, *rows = stdout_of(*GPT2, "--gpu", "A100-80GB", "--gpus-up-to", "8", "--even").splitlines()
    assert title == "gpt2-xl on up to 8 × A100-80GB: 16 samples of 1,024 tokens per step, megatron-core (NeMo 26.06)"
    assert header.split() == ["GPUs", "samples/s", "efficiency", "best", "plan"]
    steps = [row.split()[0] for row in rows if "DP" in row]
    assert {"1", "2", "4", "8"} <= set(steps)
    assert "7" not in steps  # divides neither the layers nor the batch
    assert "100.0 %" in rows[0]
    assert rows[len(steps)].startswith("missing numbers are no faster")


def test_a_curve_increases_and_has_efficiencies(json_of: JsonOf) -> None:
    document = json_of(*GPT2, "--gpu", "A100", "--gpus-up-to", "16")
    (curve,) = document["by_gpus"]
    points = curve["points"]
    assert (curve["gpu"], curve["up_to"]) == ("A100-80GB", 16)
    assert [one["gpus"] for one in points] == sorted(one["gpus"] for one in points)
    assert [one["samples_per_second"] for one in points] == sorted(one["samples_per_second"] for one in points)
    assert max(one["efficiency"] for one in points) == 1
    for one in points:
        degrees = one["degrees"]
        assert degrees["data"] * degrees["tensor"] * degrees["pipeline"] == one["gpus"]


def test_a_cluster_has_a_curve_for_each_type_of_gpu(cluster: str, json_of: JsonOf) -> None:
    document = json_of(*GPT2, "--cluster", cluster)
    assert [(one["gpu"], one["up_to"]) for one in document["by_gpus"]] == [("A100-80GB", 10), ("T4", 2)]
    (only,) = json_of(*GPT2, "--cluster", cluster, "--gpu", "t4")["by_gpus"]
    assert only["gpu"] == "T4"


def a100s(cluster: str, network: str | None = None) -> GpuPool:
    (pool,), _ = parse_gpu_pools(cluster, "A100", None, network)
    return pool


def test_the_largest_nodes_are_filled_first_with_their_cpus_memory_and_links(cluster: str) -> None:
    machines = a100s(cluster).machines_for(9)
    assert machines.gpus_on_node == (4, 4, 1)
    assert (machines.cpus, machines.memory_gib) == (64 + 64 + 16, 512 + 512 + 128)
    assert machines.inside == Link("nvlink", 200)  # the slower one; the small node has the default link of the A100
    assert machines.network == Link("infiniband", 25)
    assert a100s(cluster).machines_for(2).gpus_on_node == (2,)
    assert a100s(cluster).cpus_beside(5) == 128
    assert a100s(cluster, "400Gb/s").machines_for(9).network == Link("network", 50)


def test_missing_hardware_data_default_to_those_of_the_gpu_type() -> None:
    machines = a100s("2x8:A100").machines_for(16)
    gpu = find_gpu("A100")
    assert machines.inside == gpu.link
    assert machines.network.gigabytes_per_second == gpu.node_network_gigabytes_per_second
    assert (machines.cpus, machines.memory_gib) == (0, 0)


def test_gpus_of_unknown_type_are_taken_to_be_of_the_given_type(json_of: JsonOf) -> None:
    (curve,) = json_of(*GPT2, "--cluster", "2x2", "--gpu", "V100")["by_gpus"]
    assert (curve["gpu"], curve["up_to"]) == ("V100-32GB", 4)


def test_gpu_memory_that_differs_from_the_catalogue_is_noted(tmp_path: Path, json_of: JsonOf) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gpu_types: [{name: A100, memory_gib: 40}]\nnodes: [{name: n, gpus: 1, gpu_type: A100}]\n")
    assert (
        "the cluster's A100 with 40 GiB is modelled as A100-80GB with 79.2 GiB"
        in json_of(*GPT2, "--cluster", str(path))["notes"]
    )


def test_cpus_speed_up_plans_with_offload(json_of: JsonOf, stdout_of: TextOf) -> None:
    words = (*GPT2, "--gpu", "T4", "--gpus-up-to", "1", "--cpus-at", "1", "--engine", "megatron")
    (curve,) = json_of(*words)["by_cpus"]
    assert (curve["gpus"], curve["up_to"]) == (1, 32)
    assert [one["cpus"] for one in curve["points"]][:3] == [1, 2, 3]
    assert all(one["degrees"]["offload"] for one in curve["points"])
    assert "gpt2-xl on 1 × T4 with up to 32 CPUs" in stdout_of(*words)


def test_a_footnote_says_that_cpus_have_no_effect(stdout_of: TextOf) -> None:
    printed = stdout_of(*GPT2, "--gpu", "A100", "--gpus-up-to", "2", "--cpus-at", "2")
    assert re.search(r"constant: DP2 .* does not offload, so CPUs have no effect", printed)


def test_cpus_are_those_of_the_nodes(cluster: str, json_of: JsonOf) -> None:
    (curve,) = json_of(*GPT2, "--cluster", cluster, "--gpu", "T4", "--cpus-at", "2")["by_cpus"]
    assert curve["up_to"] == 16
    both = json_of(*GPT2, "--cluster", cluster, "--cpus-at", "4")["by_cpus"]
    assert [one["gpu"] for one in both] == ["A100-80GB"]  # the cluster has only two T4


def test_assumptions_are_noted(json_of: JsonOf) -> None:
    notes = json_of("curve", "gpt2-xl", "--gpu", "T4", "--gpus-up-to", "16")["notes"]
    assert notes == [
        "assuming --batch 16 --seq 1024, the defaults for gpt2-xl",
        "assuming --engine transformers-bf16, the default for GPUs that PCIe connects",
        "assuming --network 12.5GB/s, the default for nodes with T4",
        "assuming 8 CPUs per GPU and no limit on host memory for plans with offload",
    ]


def test_if_no_plan_fits_the_status_is_1_and_the_next_command_is_shown(invoke: Invoke) -> None:
    result = invoke("curve", "gpt3-175b", "--gpu", "T4", "--gpus-up-to", "2", "--cpus-at", "1")
    assert result.exit_code == 1
    assert "no plan fits; `refold plan gpt3-175b --gpus 2xT4` shows what is missing" in result.stdout
    result = invoke("curve", "gpt3-175b", "--gpu", "T4", "--gpus-up-to", "2", "--json")
    assert (result.exit_code, json.loads(result.stdout)["by_gpus"][0]["points"]) == (1, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "no GPUs given: use --gpu A100-80GB"),
        (("--gpu", "A1000"), "unknown GPU 'A1000'; did you mean 'A100-80GB'?"),
        (("--cluster", "2x8"), "has GPUs of unknown type"),
        (("--cluster", "2x8:A1000"), "unknown GPU 'A1000'; did you mean"),
        (("--cluster", "2x0"), "has no GPUs"),
        (("--cluster", "demo", "--gpu", "H100"), "cluster 'demo' has no H100-80GB, only A100-80GB, T4, V100-32GB"),
        (("--cluster", "nothing.yaml"), "nothing.yaml: no such file"),
        (("--gpu", "T4", "--gpus-up-to", "0"), "'--gpus-up-to'"),
        (("--gpu", "T4", "--gpus-up-to", "100000"), "'--gpus-up-to'"),
        (("--gpu", "T4", "--gpus-up-to", "4", "--cpus-at", "5"), "more GPUs than available (4 T4)"),
        (("--gpu", "T4", "--no-offload", "--cpus-at", "1"), "--cpus-at applies only to plans with offload"),
        (("--gpu", "T4", "--out", "curve.png"), "curve.png: expected a file name that ends in .svg or .html"),
        (("--gpu", "T4", "--out", "no/such/folder/curve.svg"), "the folder does not exist"),
        (("--gpu", "T4", "--network", "fast"), "--network fast: expected a rate"),
        (("--gpu", "T4", "--batch", "0"), "'--batch'"),
    ],
)
def test_bad_input_gives_a_one_line_error(words: tuple[str, ...], problem: str, error_of: TextOf) -> None:
    assert problem in error_of("curve", "llama-2-7b", *words)


# Charts.


def test_a_chart_is_a_self_contained_svg(tmp_path: Path, stdout_of: TextOf) -> None:
    out = tmp_path / "curve.svg"
    printed = stdout_of(*GPT2, "--cluster", "demo", "--cpus-at", "2", "--out", str(out))
    assert printed.endswith(f"chart: {out}\nchart: {tmp_path / 'curve-cpus.svg'}\n")
    for path in (out, tmp_path / "curve-cpus.svg"):
        drawing = ElementTree.fromstring(path.read_text())
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in path.read_text()
        assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "")
        labels = ["".join(one.itertext()) for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert {"A100-80GB", "T4", "V100-32GB", "samples/s"} <= set(labels)


def test_a_page_has_both_charts_and_tables_of_their_steps(tmp_path: Path, json_of: JsonOf) -> None:
    out = tmp_path / "curve.html"
    document = json_of(*GPT2, "--gpu", "T4", "--gpus-up-to", "4", "--cpus-at", "1", "--out", str(out))
    text = out.read_text()
    assert document["charts"] == [str(out)]
    assert text.count("<svg ") == text.count("<table>") == 2
    for point in document["by_gpus"][0]["points"]:
        assert f"<td>{point['plan']}</td>" in text


STEP_CURVE = StepCurve(
    "A100", [CurveStep(1, 10.0, "DP1"), CurveStep(2, 18.0, "DP2"), CurveStep(4, 20.0, "DP4 ZeRO-1")], 8
)


def test_a_curve_is_drawn_as_steps_from_its_first_point_to_the_end() -> None:
    text = CurveChart("a model", "", "GPUs", [STEP_CURVE]).svg()
    # 898 units for 8 GPUs from 74 on, and 362 for 20 samples/s up from 466.
    assert 'd="M186.2 285H298.5V140.2H523V104H972"' in text
    assert "<title>A100, 2 GPUs: 18 samples/s, DP2</title>" in text


def test_every_plan_is_labelled_at_its_first_step_and_labels_do_not_overlap() -> None:
    again = StepCurve(
        "T4", [CurveStep(1, 5.0, "DP1 offload"), CurveStep(2, 6.0, "DP1 offload"), CurveStep(3, 6.1, "DP3 offload")], 8
    )
    text = CurveChart("a model", "", "CPUs", [again], linear=False).svg()
    assert re.findall(r'class="label[^>]*>([^<]*)<', text) == ["DP3 offload", "DP1 offload"]
    crowded = StepCurve(
        "T4", [CurveStep(100 + one, 1 + one / 1000, f"DP{one} with a long name") for one in range(50)], 5000
    )
    places = re.findall(r'class="label[^>]* x="([\d.]+)" y="([\d.]+)"', CurveChart("", "", "GPUs", [crowded]).svg())
    assert 1 <= len(places) < 10
    heights = sorted(float(y) for _, y in places)
    assert all(lower - higher >= 15 for higher, lower in pairwise(heights))


def test_an_empty_curve_gives_an_empty_chart() -> None:
    empty = CurveChart("a model", "", "GPUs", [StepCurve("T4", [], 1)])
    ElementTree.fromstring(empty.svg())
    assert "<table>" in render_page([empty])


def test_names_are_escaped_in_charts() -> None:
    evil = '"><script>alert(1)</script>'
    chart = CurveChart(evil, evil, "GPUs", [StepCurve(evil, [CurveStep(1, 1.0, evil)], 2)])
    ElementTree.fromstring(chart.svg())
    assert "<script" not in chart.svg()
    assert "<script" not in render_page([chart])
