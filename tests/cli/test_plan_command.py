"""`refold plan`: the best plans, what they are made of, why the others lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.catalogue import USUAL, find_gpu
from refold.cli.inputs.plan_request import (
    USUAL_ENGINE,
    gib_from_text,
    layout_text,
    machines_from,
    network_from_text,
    pins_from_text,
    rate_text,
    seconds_text,
)
from refold.perf.hardware import machines_of
from refold.plans import Pins

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]

LLAMA = ("plan", "llama-2-7b", "--gpus", "8xA100-80GB", "--batch", "64", "--seq", "2048")
NARROW = ("plan", "llama-2-7b", "--gpus", "1xT4", "--batch", "8", "--seq", "2048")


def test_the_best_plans_come_with_time_memory_and_what_became_of_the_others(said: Said) -> None:
    printed = said(*LLAMA)
    assert printed.startswith("llama-2-7b on 8 × A100-80GB, 1 node: 64 samples of 2,048 tokens a step, megatron\n")
    for told in ("samples/s", "tokens/s", "MFU", "GiB of 74.4", "Why not another", "out of memory by", "compute"):
        assert told in printed
    assert "docs/accuracy.md" in printed.splitlines()[-2]


def test_as_many_plans_as_asked_for_and_the_fastest_leads(told: Told) -> None:
    document = told(*LLAMA, "--top", "3")
    assert len(document["best"]) == 3
    first = document["best"][0]
    assert first["fits"] and first["memory_gib"] < 74.4
    assert sum(first["seconds"].values()) == pytest.approx(first["step_seconds"])
    assert first["samples_per_second"] == pytest.approx(64 / first["step_seconds"])
    assert first["degrees"]["data"] * first["degrees"]["tensor"] * first["degrees"]["pipeline"] == 8
    fastest = min(one["step_seconds"] for one in document["best"])
    assert first["step_seconds"] <= fastest * 1.01
    assert {one["reason"] for one in document["lost"]} <= {"slower", "memory", "host memory", "rule"}


def test_columns_that_say_nothing_are_left_out(said: Said) -> None:
    header = said(*LLAMA, "--pin", "tp1 pp1 recompute none", "--no-offload").splitlines()[1]
    assert header.split()[:2] == ["DP", "ZeRO"]
    assert "offload" not in header and "interleave" not in header


@pytest.mark.parametrize(("width", "first_column"), [(80, "plan"), (100, "plan"), (120, "DP"), (160, "DP")])
def test_where_there_is_no_room_for_columns_a_plan_is_one(
    width: int, first_column: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table, _, _ = said("plan", "llama-3-70b", "--gpus", "64xH100").partition("\nof ")
    title, *lines = table.splitlines()
    assert first_column in next(line for line in lines if "samples/s" in line).split()[0]
    assert max(map(len, lines)) <= width
    assert title.startswith("llama-3-70b on 64 × H100-80GB, 8 nodes")


def test_what_is_not_said_is_what_is_usual_and_it_is_told(typed: Typed, told: Told) -> None:
    notes = told("plan", "gpt2-xl", "--gpus", "2xT4", "--nodes", "2")["notes"]
    assert notes[:2] == [
        "--batch 16 --seq 1024 are what is usual for gpt2-xl",
        "--network 12.5GB/s is what nodes of T4 usually have",
    ]
    assert any("--cpus 16 is assumed" in note for note in notes)
    assert any("no --host-memory was given" in note for note in notes)
    result = typed("plan", "gpt2-xl", "--gpus", "1xT4", "--batch", "16")
    assert "note: --seq 1024 is what is usual for gpt2-xl" in result.stderr
    told_all = ["--batch", "16", "--seq", "1024", "--cpus", "16", "--host-memory", "200GB"]
    assert told("plan", "gpt2-xl", "--gpus", "1xT4", *told_all)["notes"] == []


def test_more_tokens_than_a_model_has_positions_for_are_noted(told: Told) -> None:
    notes = told("plan", "bert-large", "--gpus", "1xA100", "--seq", "4096")["notes"]
    assert "bert-large has learned positions for 512 tokens, and --seq is 4,096" in notes


def test_nothing_fits_with_what_would_help(typed: Typed) -> None:
    result = typed(*NARROW)
    assert result.exit_code == 1
    assert result.stdout.startswith("Nothing fits: llama-2-7b on 1 × T4")
    assert "nearest misses" in result.stdout
    assert "× T4 would do: " in result.stdout


def test_no_plan_is_possible_and_the_rules_say_why(typed: Typed) -> None:
    result = typed("plan", "llama-2-7b", "--gpus", "7xA100", "--batch", "8", "--seq", "2048")
    assert result.exit_code == 1
    assert result.stdout.startswith("No plan is possible: llama-2-7b on 7 × A100-80GB")
    assert "batch 8 does not divide by 7" in result.stdout
    assert "4 × A100-80GB would do: " in result.stdout


def test_what_does_not_fit_is_status_1_for_programs_too(typed: Typed) -> None:
    result = typed(*NARROW, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["best"]) == (1, [])
    assert document["misses"][0]["spare_gib"] < 0
    assert document["enough_gpus"] == 2


def test_a_pin_holds_for_every_plan(told: Told) -> None:
    for found in told(*LLAMA, "--pin", "tp4 zero1")["best"]:
        assert (found["degrees"]["tensor"], found["degrees"]["zero"]) == (4, 1)
    assert all(found["degrees"]["tensor"] == 1 for found in told(*LLAMA, "--pin", "tp1")["best"])


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("tp4 zero1", Pins(tensor=4, zero=1)),
        ("TP1", Pins(tensor=1)),
        ("dp8,recompute none", Pins(data=8, recompute="none")),
        ("ZeRO-0 offload accumulate 4", Pins(zero=0, offload=True, accumulation=4)),
        ("pp2 interleave 4 sp", Pins(pipeline=2, interleave=4, sequence_parallel=True)),
    ],
)
def test_only_what_is_said_is_pinned(text: str, pins: Pins) -> None:
    assert pins_from_text(text) == pins


def test_offload_and_tensor_groups_across_nodes_can_be_had_or_not(told: Told) -> None:
    assert not any(found["degrees"]["offload"] for found in told(*LLAMA, "--no-offload", "--top", "500")["best"])
    wide = ("plan", "llama-2-7b", "--gpus", "2x2:A100", "--batch", "64", "--top", "1000")
    assert max(found["degrees"]["tensor"] for found in told(*wide)["best"]) == 2
    assert max(found["degrees"]["tensor"] for found in told(*wide, "--tensor-across-nodes")["best"]) == 4


def test_a_slower_network_makes_a_slower_step(told: Told) -> None:
    def step(rate: str) -> float:
        words = ("plan", "llama-2-7b", "--gpus", "2x8:A100", "--pin", "dp16 zero3", "--network", rate)
        return float(told(*words, "--batch", "16")["best"][0]["step_seconds"])

    assert step("10GB/s") == step("80Gb/s") > step("200GB/s")


def test_a_model_of_ones_own_is_a_file(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128, batch: 8}")
    assert said("plan", str(path), "--gpus", "2xT4").startswith("mine on 2 × T4, 1 node: 8 samples of 128 tokens")


def test_of_an_opaque_model_tokens_are_not_counted(said: Said) -> None:
    printed = said("plan", "resnet50", "--gpus", "8xV100")
    assert printed.startswith("resnet50 on 8 × V100-32GB, 1 node: 256 samples a step")
    assert "tokens/s" not in printed


# One plan.


def test_every_formula_of_a_plan_stands_there_with_its_numbers(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printed = said(*LLAMA, "--explain", "dp8 zero1 accumulate 8")
    lines = printed.splitlines()
    assert lines[1] == "DP8 ZeRO-1 accumulate 8: every formula, with its numbers"
    assert max(map(len, lines)) <= 100
    assert "  tokens          = batch * sequence / (data * micro_batches)" in lines
    assert "                  = 64 * 2048 / (8 * 8)" in lines
    assert any(line.startswith("                  = 2048 tokens ") and line.endswith("a micro-batch") for line in lines)
    for section in ("Given", "One layer, one micro-batch", "Talk", "A step", "Memory of the fullest GPU"):
        assert section in lines


def test_a_plan_can_be_named_by_its_place(told: Told) -> None:
    second = told(*LLAMA)["best"][1]["plan"]
    document = told(*LLAMA, "--explain", "2")
    assert document["estimate"]["plan"] == second
    step = next(line for part in document["sections"] for line in part["lines"] if line["name"] == "step")
    assert step["value"] == pytest.approx(document["estimate"]["step_seconds"])


def test_an_explained_plan_that_breaks_a_rule_says_so_first(typed: Typed) -> None:
    result = typed(*LLAMA, "--explain", "dp3 tp7")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:4] == [
        "DP3 TP7: not possible",
        "  the plan uses 21 GPUs, and the machines have 8",
        "  32 heads do not divide by tensor 7",
    ]
    assert "\nA step\n" in result.stdout


@pytest.mark.parametrize(
    ("plan", "status", "answer"),
    [
        ("dp8", 1, "DP8: not possible\n  out of memory by"),
        ("tp3 dp2", 1, "  32 heads do not divide by tensor 3"),
        ("dp8 zero3 recompute full accumulate 8", 0, " × as long as the best ("),
        ("1", 0, "possible, and the best: "),
    ],
)
def test_why_a_plan_is_not_the_best(plan: str, status: int, answer: str, typed: Typed) -> None:
    result = typed(*LLAMA, "--why", plan)
    assert (result.exit_code, answer in result.stdout) == (status, True), result.stdout


def test_why_for_programs(told: Told, typed: Typed) -> None:
    document = told(*LLAMA, "--why", "dp8 zero3 recompute full accumulate 8")
    assert document["possible"] and document["why_not"] == []
    assert document["times_as_long"] > 1.01
    document = json.loads(typed(*LLAMA, "--why", "dp8", "--json").stdout)
    assert not document["possible"] and document["times_as_long"] is None
    assert "out of memory" in document["why_not"][0]


# What cannot be.


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpus", "8"), "--gpus 8: expected how many of which type, such as 8xA100-80GB"),
        (("--gpus", "A100"), "expected how many of which type"),
        (("--gpus", ""), "expected how many of which type"),
        (("--gpus", "nanxA100"), "expected how many of which type"),
        (("--gpus", "8xA1000"), "no GPU 'A1000'; did you mean 'A100-80GB'?"),
        (("--gpus", "0xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", f"{'9' * 5000}xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", "200000xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", "8xA100", "--nodes", "9"), "8 GPUs cannot be spread over so many nodes"),
        (("--gpus", "8xA100", "--nodes", "0"), "'--nodes'"),
        (("--gpus", "2x8:A100", "--nodes", "3"), "is 2 nodes, and --nodes says 3"),
        (("--gpus", "8xA100", "--batch", "0"), "'--batch'"),
        (("--gpus", "8xA100", "--batch", "-1"), "'--batch'"),
        (("--gpus", "8xA100", "--batch", "nan"), "'--batch'"),
        (("--gpus", "8xA100", "--seq", "1000000000"), "'--seq'"),
        (("--gpus", "8xA100", "--cpus", "nan"), "'--cpus'"),
        (("--gpus", "8xA100", "--cpus", "-1"), "'--cpus'"),
        (("--gpus", "8xA100", "--host-memory", "lots"), "--host-memory lots: expected memory such as 1600GB"),
        (("--gpus", "8xA100", "--host-memory", "0"), "expected memory such as 1600GB"),
        (("--gpus", "16xA100", "--network", "100"), "--network 100: expected a rate such as 100GB/s"),
        (("--gpus", "16xA100", "--network", "100gb/s"), "800Gb/s in bits"),
        (("--gpus", "8xA100", "--network", "100GB/s"), "changes nothing on one node"),
        (("--gpus", "8xA100", "--engine", "megaton"), "no engine 'megaton'; did you mean 'megatron'?"),
        (("--gpus", "8xA100", "--pin", "eight"), "'eight' is not a plan"),
        (("--gpus", "8xA100", "--pin", ""), "'' is not a plan"),
        (("--gpus", "8xA100", "--pin", "offload", "--no-offload"), "leave one of them out"),
        (("--gpus", "8xA100", "--no-offload", "--cpus", "8"), "--cpus is for plans that offload"),
        (("--gpus", "8xA100", "--why", "dp8 \x1b[31m"), "is not a plan at"),
        (("--gpus", "8xA100", "--explain", "99"), "there is no plan number 99: expected 1 to 10"),
        (("--gpus", "8xA100", "--explain", "9" * 5000), "there is no plan number"),
        (("--gpus", "8xA100", "--explain", "1", "--why", "1"), "two questions"),
        (("--gpus", "8xA100", "--top", "0"), "'--top'"),
        ((), "Missing option '--gpus'"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], problem: str, refuses: Said) -> None:
    assert problem in refuses("plan", "llama-2-7b", *words)


def test_a_model_that_nobody_knows_is_one_line(refuses: Said, tmp_path: Path) -> None:
    assert "no model 'lama-2-7b'; did you mean 'llama-2-7b'?" in refuses("plan", "lama-2-7b", "--gpus", "1xT4")
    assert "is not there" in refuses("plan", str(tmp_path / "mine.yaml"), "--gpus", "1xT4")
    assert "--seq 8 changes nothing" in refuses("plan", "resnet50", "--gpus", "1xT4", "--seq", "8")


def test_where_nothing_fits_no_plan_has_a_place(refuses: Said) -> None:
    assert "nothing fits, so no plan has a place" in refuses(*NARROW, "--explain", "1")


# What the text of options means.


@pytest.mark.parametrize(
    "text", ["8xA100-80GB", "8 x a100", "A100:8", " A100-80GB : 8 ", "8×A100", "8XA100", "1x8:A100"]
)
def test_ways_to_say_eight_gpus(text: str) -> None:
    assert machines_from(text, None, None, None, None) == machines_of(find_gpu("A100-80GB"), 8)


def test_nodes_are_counted_or_named() -> None:
    two = machines_of(find_gpu("A100"), 8, nodes=2)
    assert machines_from("2x4:A100", None, None, None, None) == machines_from("8xA100", 2, None, None, None) == two
    assert machines_from("8x4090", None, None, None, None).gpu.name == "RTX-4090"


def test_units_of_memory_and_networks() -> None:
    assert gib_from_text("512") == gib_from_text("512GiB") == gib_from_text("0.5 TiB") == 512
    assert gib_from_text("1600GB") == pytest.approx(1490.1, abs=0.1)
    assert network_from_text("100GB/s").gigabytes_per_second == 100
    assert network_from_text("800Gb/s") == network_from_text("800 Gbps") == network_from_text("100GB/s")


def test_amounts_as_people_read_them() -> None:
    assert [seconds_text(one) for one in (0.4784, 0.00012, 1.0, 60.708, 1487.69)] == [
        "478.4 ms",
        "0.1 ms",
        "1.00 s",
        "60.71 s",
        "1,488 s",
    ]
    assert [rate_text(one) for one in (16.721, 3854.88, 0.342, 9.999, 99.97)] == [
        "16.7",
        "3,855",
        "0.342",
        "10.0",
        "100",
    ]
    assert [layout_text(one) for one in ((8,), (8, 8), (8, 8, 4))] == ["1 node", "2 nodes", "3 nodes of 2 × 8 + 4 GPUs"]


def test_the_engine_that_help_names_is_the_one_of_the_catalogue() -> None:
    assert USUAL_ENGINE == USUAL


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("refold plan llama-2-1", {"llama-2-13b"}),
        ("refold plan mixtral-8x2", {"mixtral-8x22b"}),
        ("refold plan llama-2-7b --gpus 8xV100-P", {"8xV100-PCIe-16GB", "8xV100-PCIe-32GB"}),
        ("refold plan llama-2-7b --engine deepspeed-2022", {"deepspeed-2022", "deepspeed-2022-bf16"}),
        ("refold curve llama-2-7b --gpu H2", {"H200"}),
    ],
)
def test_the_shell_completes_models_gpus_and_engines(line: str, completed: set[str], tmp_path: Path) -> None:
    asked = {"_REFOLD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    script = "import sys; sys.argv = ['refold']; from refold.cli.app import main; main()"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=os.environ | asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert set(found.stdout.split()) == completed, found.stderr


def test_help_does_not_wait_for_what_only_the_answer_needs() -> None:
    script = (
        "import sys; import refold.cli.app; "
        "print([name for name in ('numpy', 'msgspec', 'yaml', 'rich.table') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
