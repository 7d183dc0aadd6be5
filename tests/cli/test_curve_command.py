"""`refold curve`: throughput against GPUs and CPUs, as tables and pictures."""

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

from refold.catalogue import find_gpu
from refold.cli.inputs.hardware import GpuPool, sources_from
from refold.model import Link
from refold.results.plan_curve_chart import CurveChart, CurveStep, Stair, page

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]

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


def test_a_table_has_the_numbers_of_gpus_that_are_worth_having(said: Said) -> None:
    title, header, *rows = said(*GPT2, "--gpu", "A100-80GB", "--gpus-up-to", "8").splitlines()
    assert title == "gpt2-xl on up to 8 × A100-80GB: 16 samples of 1,024 tokens a step, megatron"
    assert header.split() == ["GPUs", "samples/s", "per", "GPU", "best", "plan"]
    steps = [row.split()[0] for row in rows if "DP" in row]
    assert {"1", "2", "4", "8"} <= set(steps)
    assert "7" not in steps  # which neither layers nor batch divide by
    assert "100.0 %" in rows[0]
    assert rows[len(steps)].startswith("numbers in between are no faster")


def test_a_curve_rises_and_is_told_against_a_straight_line(told: Told) -> None:
    document = told(*GPT2, "--gpu", "A100", "--gpus-up-to", "16")
    (curve,) = document["by_gpus"]
    points = curve["points"]
    assert (curve["gpu"], curve["up_to"]) == ("A100-80GB", 16)
    assert [one["gpus"] for one in points] == sorted(one["gpus"] for one in points)
    assert [one["samples_per_second"] for one in points] == sorted(one["samples_per_second"] for one in points)
    assert max(one["of_linear"] for one in points) == 1
    for one in points:
        degrees = one["degrees"]
        assert degrees["data"] * degrees["tensor"] * degrees["pipeline"] == one["gpus"]


def test_a_cluster_has_a_curve_for_each_type_of_gpu(cluster: str, told: Told) -> None:
    document = told(*GPT2, "--cluster", cluster)
    assert [(one["gpu"], one["up_to"]) for one in document["by_gpus"]] == [("A100-80GB", 10), ("T4", 2)]
    (only,) = told(*GPT2, "--cluster", cluster, "--gpu", "t4")["by_gpus"]
    assert only["gpu"] == "T4"


def a100s(cluster: str, network: str | None = None) -> GpuPool:
    (source,), _ = sources_from(cluster, "A100", None, network)
    return source


def test_the_largest_nodes_are_filled_first_with_their_cpus_memory_and_links(cluster: str) -> None:
    machines = a100s(cluster).machines_for(9)
    assert machines.gpus_on_node == (4, 4, 1)
    assert (machines.cpus, machines.memory_gib) == (64 + 64 + 16, 512 + 512 + 128)
    assert machines.inside == Link("nvlink", 200)  # the slower one; that of the small node is A100's own
    assert machines.network == Link("infiniband", 25)
    assert a100s(cluster).machines_for(2).gpus_on_node == (2,)
    assert a100s(cluster).cpus_beside(5) == 128
    assert a100s(cluster, "400Gb/s").machines_for(9).network == Link("network", 50)


def test_what_a_cluster_does_not_say_is_as_usual_for_its_gpus() -> None:
    machines = a100s("2x8:A100").machines_for(16)
    gpu = find_gpu("A100")
    assert machines.inside == gpu.link
    assert machines.network.gigabytes_per_second == gpu.node_network_gigabytes_per_second
    assert (machines.cpus, machines.memory_gib) == (0, 0)


def test_gpus_whose_type_nobody_said_are_of_the_type_that_is_asked_for(told: Told) -> None:
    (curve,) = told(*GPT2, "--cluster", "2x2", "--gpu", "V100")["by_gpus"]
    assert (curve["gpu"], curve["up_to"]) == ("V100-32GB", 4)


def test_memory_that_a_cluster_says_otherwise_is_noted(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gpu_types: [{name: A100, memory_gib: 40}]\nnodes: [{name: n, gpus: 1, gpu_type: A100}]\n")
    assert (
        "the cluster's A100 has 40 GiB, and is taken for A100-80GB with 79.2 GiB"
        in told(*GPT2, "--cluster", str(path))["notes"]
    )


def test_cpus_help_plans_that_offload(told: Told, said: Said) -> None:
    words = (*GPT2, "--gpu", "T4", "--gpus-up-to", "1", "--cpus-at", "1")
    (curve,) = told(*words)["by_cpus"]
    assert (curve["gpus"], curve["up_to"]) == (1, 32)
    assert [one["cpus"] for one in curve["points"]][:3] == [1, 2, 3]
    assert all(one["degrees"]["offload"] for one in curve["points"])
    assert "gpt2-xl on 1 × T4 with up to 32 CPUs" in said(*words)


def test_where_cpus_do_not_help_it_says_so(said: Said) -> None:
    printed = said(*GPT2, "--gpu", "A100", "--gpus-up-to", "2", "--cpus-at", "2")
    assert re.search(r"flat: CPUs make no difference, since DP2 .* does not offload", printed)


def test_cpus_are_those_of_the_nodes(cluster: str, told: Told) -> None:
    (curve,) = told(*GPT2, "--cluster", cluster, "--gpu", "T4", "--cpus-at", "2")["by_cpus"]
    assert curve["up_to"] == 16
    both = told(*GPT2, "--cluster", cluster, "--cpus-at", "4")["by_cpus"]
    assert [one["gpu"] for one in both] == ["A100-80GB"]  # there are only two T4


def test_what_is_assumed_is_noted(told: Told) -> None:
    notes = told("curve", "gpt2-xl", "--gpu", "T4", "--gpus-up-to", "16")["notes"]
    assert notes == [
        "--batch 16 --seq 1024 are what is usual for gpt2-xl",
        "--network 12.5GB/s is what nodes of T4 usually have",
        "8 CPUs per GPU and no limit of host memory are assumed, for plans that offload",
    ]


def test_nothing_fits_is_status_1_and_the_next_question_is_named(typed: Typed) -> None:
    result = typed("curve", "gpt3-175b", "--gpu", "T4", "--gpus-up-to", "2", "--cpus-at", "1")
    assert result.exit_code == 1
    assert "nothing fits; `refold plan gpt3-175b --gpus 2xT4` says what is missing" in result.stdout
    result = typed("curve", "gpt3-175b", "--gpu", "T4", "--gpus-up-to", "2", "--json")
    assert (result.exit_code, json.loads(result.stdout)["by_gpus"][0]["points"]) == (1, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "say which GPUs: --gpu A100-80GB"),
        (("--gpu", "A1000"), "no GPU 'A1000'; did you mean 'A100-80GB'?"),
        (("--cluster", "2x8"), "does not say of which type its GPUs are"),
        (("--cluster", "2x8:A1000"), "no GPU 'A1000'; did you mean"),
        (("--cluster", "2x0"), "has no GPUs"),
        (("--cluster", "demo", "--gpu", "H100"), "cluster 'demo' has no H100-80GB, only A100-80GB, T4, V100-32GB"),
        (("--cluster", "nothing.yaml"), "nothing.yaml: no such file"),
        (("--gpu", "T4", "--gpus-up-to", "0"), "'--gpus-up-to'"),
        (("--gpu", "T4", "--gpus-up-to", "100000"), "'--gpus-up-to'"),
        (("--gpu", "T4", "--gpus-up-to", "4", "--cpus-at", "5"), "more GPUs than there are (4 T4)"),
        (("--gpu", "T4", "--no-offload", "--cpus-at", "1"), "--cpus-at is for plans that offload"),
        (("--gpu", "T4", "--out", "curve.png"), "curve.png: expected a name that ends in .svg or .html"),
        (("--gpu", "T4", "--out", "no/such/folder/curve.svg"), "has no folder to be in"),
        (("--gpu", "T4", "--network", "fast"), "--network fast: expected a rate"),
        (("--gpu", "T4", "--batch", "0"), "'--batch'"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], problem: str, refuses: Said) -> None:
    assert problem in refuses("curve", "llama-2-7b", *words)


# Pictures.


def test_a_picture_is_an_svg_that_stands_alone(tmp_path: Path, said: Said) -> None:
    out = tmp_path / "curve.svg"
    printed = said(*GPT2, "--cluster", "demo", "--cpus-at", "2", "--out", str(out))
    assert printed.endswith(f"picture: {out}\npicture: {tmp_path / 'curve-cpus.svg'}\n")
    for path in (out, tmp_path / "curve-cpus.svg"):
        drawing = ElementTree.fromstring(path.read_text())
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in path.read_text()
        assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "")
        told = ["".join(one.itertext()) for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert {"A100-80GB", "T4", "V100-32GB", "samples/s"} <= set(told)


def test_a_page_has_both_pictures_and_their_steps(tmp_path: Path, told: Told) -> None:
    out = tmp_path / "curve.html"
    document = told(*GPT2, "--gpu", "T4", "--gpus-up-to", "4", "--cpus-at", "1", "--out", str(out))
    text = out.read_text()
    assert document["pictures"] == [str(out)]
    assert text.count("<svg ") == text.count("<table>") == 2
    for point in document["by_gpus"][0]["points"]:
        assert f"<td>{point['plan']}</td>" in text


STAIR = Stair("A100", [CurveStep(1, 10.0, "DP1"), CurveStep(2, 18.0, "DP2"), CurveStep(4, 20.0, "DP4 ZeRO-1")], 8)


def test_a_curve_is_drawn_as_a_stair_from_its_first_step_to_the_end() -> None:
    text = CurveChart("a model", "", "GPUs", [STAIR]).svg()
    # 898 units for 8 GPUs from 74 on, and 362 for 20 samples/s up from 466.
    assert 'd="M186.2 285H298.5V140.2H523V104H972"' in text
    assert "<title>A100, 2 GPUs: 18 samples/s, DP2</title>" in text


def test_every_plan_is_told_where_it_begins_and_no_label_covers_another() -> None:
    again = Stair(
        "T4", [CurveStep(1, 5.0, "DP1 offload"), CurveStep(2, 6.0, "DP1 offload"), CurveStep(3, 6.1, "DP3 offload")], 8
    )
    text = CurveChart("a model", "", "CPUs", [again], linear=False).svg()
    assert re.findall(r'class="label[^>]*>([^<]*)<', text) == ["DP3 offload", "DP1 offload"]
    crowded = Stair(
        "T4", [CurveStep(100 + one, 1 + one / 1000, f"DP{one} with a long name") for one in range(50)], 5000
    )
    places = re.findall(r'class="label[^>]* x="([\d.]+)" y="([\d.]+)"', CurveChart("", "", "GPUs", [crowded]).svg())
    assert 1 <= len(places) < 10
    heights = sorted(float(y) for _, y in places)
    assert all(lower - higher >= 15 for higher, lower in pairwise(heights))


def test_nothing_to_draw_is_drawn_all_the_same() -> None:
    empty = CurveChart("a model", "", "GPUs", [Stair("T4", [], 1)])
    ElementTree.fromstring(empty.svg())
    assert "<table>" in page([empty])


def test_names_cannot_break_out_of_a_picture() -> None:
    evil = '"><script>alert(1)</script>'
    picture = CurveChart(evil, evil, "GPUs", [Stair(evil, [CurveStep(1, 1.0, evil)], 2)])
    ElementTree.fromstring(picture.svg())
    assert "<script" not in picture.svg()
    assert "<script" not in page([picture])
