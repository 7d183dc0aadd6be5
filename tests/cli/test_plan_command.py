"""`refold plan`: the best plans, their breakdown, and the reasons for rejecting others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.cli.inputs.plan_request import MachineOptions
from refold.cli.inputs.plan_values import parse_gib, parse_network, parse_pins
from refold.cli.views.plans import format_layout, format_rate, format_step_time
from refold.planning.catalogue import find_gpu
from refold.planning.perf.hardware import build_machines
from refold.planning.plans import Pins

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

LLAMA = ("plan", "llama-2-7b", "--gpus", "8xA100-80GB", "--batch", "64", "--seq", "2048")
NARROW = ("plan", "llama-2-7b", "--gpus", "1xT4", "--batch", "8", "--seq", "2048")


def test_the_best_plan_of_a_framework_is_printed_as_a_command(stdout_of: TextOf, json_of: JsonOf) -> None:
    printed = stdout_of(*LLAMA, "--launch", "deepspeed")
    command = "torchrun --standalone --nproc-per-node 8 train.py --deepspeed --deepspeed_config deepspeed.json"
    assert f"REFOLD_DEEPSPEED_CONFIG=deepspeed.json {command}\n" in printed
    config = json.loads(printed[printed.rindex("\ndeepspeed.json\n") + len("\ndeepspeed.json\n") :])
    assert config["train_batch_size"] == 64
    document = json_of(*LLAMA, "--launch", "deepspeed")
    assert document["setup"]["engine"]["name"] == "deepspeed"
    assert document["launch"]["command"] == command
    assert json.loads(document["launch"]["files"]["deepspeed.json"]) == config
    assert {plan["degrees"]["pipeline"] for plan in document["best"]} == {1}


def test_torchrun_starts_fsdp(json_of: JsonOf) -> None:
    assert json_of(*LLAMA, "--launch", "torchrun")["launch"] == json_of(*LLAMA, "--launch", "fsdp")["launch"]


def test_the_margin_is_memory_that_plans_leave_free(json_of: JsonOf, stdout_of: TextOf, error_of: TextOf) -> None:
    for margin in (0.0, 30.0):
        best = json_of(*LLAMA, "--margin", f"{margin:g}")["best"][0]
        assert best["memory_gib"] + best["spare_gib"] == pytest.approx(79.2 * (1 - margin / 100))
    assert "GiB of 55.4" in stdout_of(*LLAMA, "--margin", "30")
    assert "--margin" in error_of(*LLAMA, "--margin", "100")


def test_a_risky_plan_is_marked_and_a_safer_one_named(json_of: JsonOf, stdout_of: TextOf) -> None:
    """The margin is chosen so that the best plan has one GiB to spare."""
    best = json_of(*LLAMA)["best"][0]
    percent = 100 * (1 - (best["memory_gib"] + 1) / 79.2)
    document = json_of(*LLAMA, "--margin", f"{percent:.6f}")
    risky, safer = document["best"][0], document["safer"]
    assert (risky["plan"], risky["risky"], safer["risky"]) == (best["plan"], True, False)
    assert safer["spare_gib"] >= 3
    assert safer["step_seconds"] >= risky["step_seconds"] / 1.01
    printed = stdout_of(*LLAMA, "--margin", f"{percent:.6f}")
    assert "! 1.0" in printed
    assert (
        f"risky: the best plan has less than 3 GiB to spare, and estimates have errors; {safer['plan']} has" in printed
    )
    assert document["best"][0]["fits"] and json_of(*LLAMA)["safer"] is None


def test_a_plan_without_accumulation_says_so(invoke: Invoke) -> None:
    result = invoke(*LLAMA, "--why", "dp8 zero1")
    assert "DP8 ZeRO-1 has one micro-batch of 8 samples per step; 'accumulate" in result.stderr
    assert "micro-batch" not in invoke(*LLAMA, "--why", "dp8 zero1 accumulate 4").stderr


def test_adapters_are_trained_beside_frozen_weights(json_of: JsonOf, error_of: TextOf, stdout_of: TextOf) -> None:
    one = ("plan", "mistral-7b", "--gpus", "1xH200", "--batch", "4", "--seq", "1024", "--engine", "transformers")
    full, lora, qlora = (
        json_of(*one, "--pin", "ga1", *options)["best"][0]["memory"]
        for options in ((), ("--lora", "16"), ("--qlora", "--lora", "16"))
    )
    assert lora["optimizer"] < full["optimizer"] / 100
    assert qlora["weights"] < lora["weights"] / 3
    title = stdout_of(*one, "--qlora", "--optimizer", "adamw-8bit").splitlines()[0]
    assert title.endswith("transformers (transformers 5), QLoRA of rank 16 (41.9 M weights trained), adamw-8bit")
    assert "unknown optimizer 'sgd'" in error_of(*one, "--optimizer", "sgd")
    assert "LoRA needs the shapes of resnet50" in error_of("plan", "resnet50", "--gpus", "1xH200", "--lora", "4")


def test_the_precision_is_that_of_the_products(json_of: JsonOf, error_of: TextOf, stdout_of: TextOf) -> None:
    hopper = ("plan", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--seq", "2048")
    half, low = (json_of(*hopper, "--precision", name)["best"][0]["step_seconds"] for name in ("bf16", "fp8"))
    assert 0.5 * half < low < 0.9 * half
    assert stdout_of(*hopper, "--precision", "fp8").splitlines()[0].endswith("megatron-core (NeMo 26.06) in fp8")
    assert "unknown precision 'fp9'; did you mean 'fp8'?" in error_of(*hopper, "--precision", "fp9")
    assert "A100-80GB has no matrix products in fp8" in error_of(*LLAMA, "--precision", "fp8")


def test_the_command_trains_what_was_planned_and_names_what_it_leaves_to_the_script(json_of: JsonOf) -> None:
    words = (*LLAMA, "--launch", "megatron")
    document = json_of(*words)
    assert "--seq-length 2048 --max-position-embeddings 2048 --bf16 " in document["launch"]["command"]
    assert not any("does not set" in note for note in document["notes"])
    notes = json_of(*words, "--optimizer", "adamw-8bit", "--frozen-layers", "2")["notes"]
    assert "the command does not set what your script must: frozen layers, adamw-8bit" in notes


def test_a_plan_that_the_framework_cannot_run_is_not_valid(invoke: Invoke) -> None:
    result = invoke(*LLAMA, "--launch", "trainer", "--why", "tp2 dp4")
    assert result.exit_code == 1
    assert "trainer cannot run it: it has no setting for tensor parallelism" in result.stdout


def test_an_unknown_framework_is_an_error(error_of: TextOf) -> None:
    assert "unknown launch engine 'deepsped'; did you mean 'deepspeed'?" in error_of(*LLAMA, "--launch", "deepsped")


def test_the_best_plans_are_shown_with_time_memory_and_rejected_plans(stdout_of: TextOf) -> None:
    printed = stdout_of(*LLAMA)
    assert printed.startswith(
        "llama-2-7b (6.7 B weights) on 8 × A100-80GB, 1 node: 64 samples of 2,048 tokens per step, "
        "megatron-core (NeMo 26.06)\n"
    )
    for text in ("samples/s", "tokens/s", "MFU", "GiB of 74.4", "Rejected plans", "out of memory: at least", "compute"):
        assert text in printed
    assert "docs/accuracy.md" in printed.splitlines()[-2]


def test_top_limits_the_number_of_plans_and_the_fastest_is_first(json_of: JsonOf) -> None:
    document = json_of(*LLAMA, "--top", "3")
    assert len(document["best"]) == 3
    first = document["best"][0]
    assert first["fits"] and first["memory_gib"] < 74.4
    assert sum(first["seconds"].values()) == pytest.approx(first["step_seconds"])
    assert first["samples_per_second"] == pytest.approx(64 / first["step_seconds"])
    assert first["degrees"]["data"] * first["degrees"]["tensor"] * first["degrees"]["pipeline"] == 8
    fastest = min(one["step_seconds"] for one in document["best"])
    assert first["step_seconds"] <= fastest * 1.01
    assert {one["reason"] for one in document["rejected"]} <= {"slower", "memory", "host memory", "rule"}


def test_columns_with_defaults_only_are_hidden(stdout_of: TextOf) -> None:
    header = stdout_of(*LLAMA, "--pin", "tp1 pp1 recompute none", "--no-offload").splitlines()[1]
    assert header.split()[:2] == ["DP", "ZeRO"]
    assert "offload" not in header and "interleave" not in header


@pytest.mark.parametrize(("width", "first_column"), [(80, "plan"), (100, "plan"), (140, "DP"), (160, "DP")])
def test_on_narrow_screens_a_plan_is_one_column(
    width: int, first_column: str, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table, _, _ = stdout_of("plan", "llama-3-70b", "--gpus", "64xH100").partition("\nbest of ")
    title, *lines = table.splitlines()
    assert first_column in next(line for line in lines if "samples/s" in line).split()[0]
    assert max(map(len, lines)) <= width
    assert title.startswith("llama-3-70b (70.6 B weights) on 64 × H100-80GB, 8 nodes")


def test_assumed_defaults_are_noted(invoke: Invoke, json_of: JsonOf) -> None:
    notes = json_of("plan", "gpt2-xl", "--gpus", "2xT4", "--nodes", "2")["notes"]
    assert notes[:4] == [
        "assuming --batch 16 --seq 1024, the defaults for gpt2-xl",
        "assuming --engine transformers-bf16, the default for GPUs that PCIe connects",
        "T4 has no bfloat16: half precision is float16, with loss scaling",
        "assuming --network 12.5GB/s, the default for nodes with T4",
    ]
    assert any("assuming --cpus 16" in note for note in notes)
    assert any("assuming unlimited host memory" in note for note in notes)
    result = invoke("plan", "gpt2-xl", "--gpus", "1xT4", "--batch", "16")
    assert "note: assuming --seq 1024, the default for gpt2-xl" in result.stderr
    all_options = ["--batch", "16", "--seq", "1024", "--cpus", "16", "--host-memory", "200GB", "--engine", "fsdp"]
    assert json_of("plan", "gpt2-xl", "--gpus", "1xA10", *all_options)["notes"] == []


def test_more_tokens_than_position_embeddings_are_noted(json_of: JsonOf) -> None:
    notes = json_of("plan", "bert-large", "--gpus", "1xA100", "--seq", "4096")["notes"]
    assert "bert-large has position embeddings for 512 tokens, but --seq is 4,096" in notes


def test_if_no_plan_fits_advice_is_shown(invoke: Invoke) -> None:
    result = invoke(*NARROW)
    assert result.exit_code == 1
    assert result.stdout.startswith("No plan fits: llama-2-7b (6.7 B weights) on 1 × T4")
    assert "closest plans" in result.stdout
    assert "× T4 would be enough: " in result.stdout


def test_if_no_plan_is_valid_the_broken_rules_are_shown(invoke: Invoke) -> None:
    result = invoke("plan", "llama-2-7b", "--gpus", "7xA100", "--batch", "8", "--seq", "2048", "--even")
    assert result.exit_code == 1
    assert result.stdout.startswith("No plan is valid: llama-2-7b (6.7 B weights) on 7 × A100-80GB")
    assert "batch 8 is not divisible by 7" in result.stdout
    assert "with --batch 14, a multiple of 7 GPUs, this plan would fit: " in result.stdout
    assert "4 × A100-80GB would be enough: " in result.stdout


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("llama-3.1-405b --gpus 512xH100", "megatron-core"),
        ("llama-3.1-8b --gpus 1xH100", "transformers-bf16"),
        ("llama-3.1-8b --gpus 8xH100 --lora 16", "transformers-bf16"),
        ("llama-3.1-8b --gpus 2xRTX-A6000", "transformers-bf16"),
        ("gpt2-xl --gpus 1xH100 --precision fp8", "megatron-core"),
        ("llama-3.1-8b --gpus 8xH100 --lora 16 --precision fp8", "megatron-core"),
        ("qwen3-30b-a3b --gpus 8xGB200 --precision mxfp8", "megatron-core-graphs"),
        ("qwen3-30b-a3b --gpus 8xGB200", "megatron-core"),
        ("nemotron-3-nano-30b-a3b --gpus 8xGB200 --precision mxfp8", "megatron-core"),
        ("llama-3.1-8b --gpus 8xH100 --pin offload", "megatron"),
        ("llama-3.1-8b --gpus 8xH100 --cpus 64", "megatron"),
        ("vit-base-16 --gpus 8xH100", "megatron"),
        ("llama-3.1-8b --gpus 8xH100 --launch trainer", "fsdp"),
        ("llama-3.1-8b --gpus 8xH100 --engine fsdp", "fsdp"),
    ],
)
def test_the_default_engine_is_that_for_the_model_the_gpus_and_the_task(
    words: str, engine: str, json_of: JsonOf
) -> None:
    document = json_of("plan", *words.split())
    assert document["setup"]["engine"]["name"] == engine
    given = any(option in words for option in ("--engine", "--launch"))
    assert any(f"assuming --engine {engine}, the default" in note for note in document["notes"]) is not given


def test_fine_tuning_has_its_own_batch_and_sequence(invoke: Invoke, json_of: JsonOf) -> None:
    words = ("plan", "llama-3.1-8b", "--gpus", "1xRTX4090", "--lora", "16")
    document = json_of(*words)
    assert (document["setup"]["batch"], document["setup"]["sequence"]) == (16, 2048)
    assert "assuming --batch 16 --seq 2048, the defaults for LoRA" in document["notes"]
    assert document["best"][0]["fits"]
    printed = invoke(*words, "--batch", "512", "--seq", "8192").stdout
    advice = printed.partition("What would help\n")[2].splitlines()
    assert [line.partition(" would")[0].partition(" this")[0] for line in advice[:3]] == [
        "with --qlora",
        "with --seq 2048",
        "4 × RTX-4090",
    ]


def test_seven_gpus_get_a_batch_that_they_divide(json_of: JsonOf) -> None:
    document = json_of("plan", "llama-3.1-8b", "--gpus", "7xH100")
    assert document["setup"]["batch"] % 7 == 0
    assert document["best"][0]["degrees"]["data"] == 7
    assert (
        "assuming --batch 532 --seq 8192, the defaults for llama-3.1-8b (batch 512, rounded up for 7 GPUs)"
        in document["notes"]
    )
    advice = json_of("plan", "llama-3.1-8b", "--gpus", "7xH100", "--batch", "512")["advice"]
    assert advice[0].startswith("with --batch 532, a multiple of 7 GPUs, DP7 ")
    for gpus in ("64xH100", "384xH100"):  # a multiple of 384 GPUs would be a third more
        assert json_of("plan", "llama-3.1-8b", "--gpus", gpus)["setup"]["batch"] == 512


def test_the_largest_runs_are_planned_with_uneven_stages(json_of: JsonOf) -> None:
    words = ("plan", "llama-3.1-405b", "--gpus", "16384xH100")
    best = json_of(*words)["best"][0]
    assert (best["degrees"]["tensor"], best["degrees"]["pipeline"]) == (8, 8)
    assert 0.43 < best["mfu"] < 0.49  # Llama 3 herd of models, Table 4: 41 % with software of 2024
    assert 126 % json_of(*words, "--even")["best"][0]["degrees"]["pipeline"] == 0
    for publishers in (
        "dp128 tp8 pp16 sp zero1 accumulate 16",
        "dp128 tp8 pp16 interleave 7 sp zero1 recompute selective ga16",
    ):
        assert json_of(*words, "--why", publishers)["valid"]


def test_if_no_plan_fits_the_status_is_1_with_json_too(invoke: Invoke) -> None:
    result = invoke(*NARROW, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["best"]) == (1, [])
    assert document["misses"][0]["spare_gib"] < 0
    assert document["enough_gpus"] == 2


def test_a_pin_applies_to_every_plan(json_of: JsonOf) -> None:
    for found in json_of(*LLAMA, "--pin", "tp4 zero1")["best"]:
        assert (found["degrees"]["tensor"], found["degrees"]["zero"]) == (4, 1)
    assert all(found["degrees"]["tensor"] == 1 for found in json_of(*LLAMA, "--pin", "tp1")["best"])


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
def test_only_given_fields_are_pinned(text: str, pins: Pins) -> None:
    assert parse_pins(text) == pins


def test_offload_can_be_excluded_and_tensor_groups_across_nodes_allowed(json_of: JsonOf) -> None:
    assert not any(found["degrees"]["offload"] for found in json_of(*LLAMA, "--no-offload", "--top", "500")["best"])
    wide = ("plan", "llama-2-7b", "--gpus", "2x2:A100", "--batch", "64", "--top", "1000")
    assert max(found["degrees"]["tensor"] for found in json_of(*wide)["best"]) == 2
    assert max(found["degrees"]["tensor"] for found in json_of(*wide, "--tensor-across-nodes")["best"]) == 4


def test_a_slower_network_increases_the_step_time(json_of: JsonOf) -> None:
    def step(rate: str) -> float:
        words = ("plan", "llama-2-7b", "--gpus", "2x8:A100", "--pin", "dp16 zero3", "--network", rate)
        return float(json_of(*words, "--batch", "16")["best"][0]["step_seconds"])

    assert step("10GB/s") == step("80Gb/s") > step("200GB/s")


def test_a_model_can_be_given_as_a_file(tmp_path: Path, stdout_of: TextOf) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128, batch: 8}")
    assert stdout_of("plan", str(path), "--gpus", "2xT4").startswith(
        "mine (3 M weights) on 2 × T4, 1 node: 8 samples of 128 tokens"
    )


def test_an_opaque_model_has_no_token_rates(stdout_of: TextOf) -> None:
    printed = stdout_of("plan", "resnet50", "--gpus", "8xV100")
    assert printed.startswith("resnet50 (26 M weights) on 8 × V100-32GB, 1 node: 256 samples per step")
    assert "tokens/s" not in printed


# One plan.


def test_explain_prints_every_formula_with_its_numbers(stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    printed = stdout_of(*LLAMA, "--explain", "dp8 zero1 accumulate 8")
    lines = printed.splitlines()
    assert lines[1] == "DP8 ZeRO-1 accumulate 8: formulas of the step time"
    assert max(map(len, lines[1:])) <= 100
    assert "  tokens          = batch * sequence / (data * micro_batches)" in lines
    assert "                  = 64 * 2048 / (8 * 8)" in lines
    assert any(
        line.startswith("                  = 2048 tokens ") and line.endswith("tokens per micro-batch")
        for line in lines
    )
    for section in ("Inputs", "One layer, one micro-batch", "Communication", "Step", "Memory of the fullest GPU"):
        assert section in lines


def test_a_plan_can_be_given_by_its_number(json_of: JsonOf) -> None:
    second = json_of(*LLAMA)["best"][1]["plan"]
    document = json_of(*LLAMA, "--explain", "2")
    assert document["estimate"]["plan"] == second
    step = next(line for part in document["sections"] for line in part["lines"] if line["name"] == "step")
    assert step["value"] == pytest.approx(document["estimate"]["step_seconds"])


def test_explain_lists_broken_rules_first(invoke: Invoke) -> None:
    result = invoke(*LLAMA, "--explain", "dp3 tp7")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:4] == [
        "DP3 TP7: not valid",
        "  the plan uses 21 GPUs, but the machines have 8",
        "  32 heads are not divisible by tensor 7",
    ]
    assert "\nStep\n" in result.stdout


@pytest.mark.parametrize(
    ("plan", "status", "answer"),
    [
        ("dp8", 1, "DP8: not valid\n  out of memory by"),
        ("tp3 dp2", 1, "  32 heads are not divisible by tensor 3"),
        ("dp8 zero3 recompute full accumulate 8", 0, " × the step time of the best plan ("),
        ("1", 0, "the best plan, "),
    ],
)
def test_why_compares_a_plan_with_the_best(plan: str, status: int, answer: str, invoke: Invoke) -> None:
    result = invoke(*LLAMA, "--why", plan)
    assert (result.exit_code, answer in result.stdout) == (status, True), result.stdout


def test_why_as_json(json_of: JsonOf, invoke: Invoke) -> None:
    document = json_of(*LLAMA, "--why", "dp8 zero3 recompute full accumulate 8")
    assert document["valid"] and document["reasons"] == []
    assert document["slowdown"] > 1.01
    document = json.loads(invoke(*LLAMA, "--why", "dp8", "--json").stdout)
    assert not document["valid"] and document["slowdown"] is None
    assert "out of memory" in document["reasons"][0]


# Bad input.


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpus", "8"), "--gpus 8: expected a number and a type, such as 8xA100-80GB"),
        (("--gpus", "A100"), "expected a number and a type"),
        (("--gpus", ""), "expected a number and a type"),
        (("--gpus", "nanxA100"), "expected a number and a type"),
        (("--gpus", "8xA1000"), "unknown GPU 'A1000'; did you mean 'A100-80GB'?"),
        (("--gpus", "0xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", f"{'9' * 5000}xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", "200000xA100"), "expected 1 to 131,072 GPUs"),
        (("--gpus", "8xA100", "--nodes", "9"), "--nodes 9: expected at most 8 nodes for 8 GPUs"),
        (("--gpus", "8xA100", "--nodes", "0"), "'--nodes'"),
        (("--gpus", "2x8:A100", "--nodes", "3"), "has 2 nodes but --nodes is 3"),
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
        (("--gpus", "8xA100", "--network", "100GB/s"), "has no effect on one node"),
        (("--gpus", "8xA100", "--engine", "megaton"), "unknown engine 'megaton'; did you mean 'megatron'?"),
        (("--gpus", "8xA100", "--pin", "eight"), "'eight' is not a plan"),
        (("--gpus", "8xA100", "--pin", ""), "'' is not a plan"),
        (("--gpus", "8xA100", "--pin", "offload", "--no-offload"), "leave one of them out"),
        (("--gpus", "8xA100", "--no-offload", "--cpus", "8"), "--cpus applies only to plans with offload"),
        (("--gpus", "8xA100", "--why", "dp8 \x1b[31m"), "is not a plan at"),
        (("--gpus", "8xA100", "--explain", "99"), "no plan number 99: expected 1 to 10"),
        (("--gpus", "8xA100", "--explain", "9" * 5000), "no plan number"),
        (("--gpus", "8xA100", "--explain", "1", "--why", "1"), "--explain and --why exclude each other"),
        (("--gpus", "8xA100", "--top", "0"), "'--top'"),
        ((), "Missing option '--gpus'"),
    ],
)
def test_bad_input_gives_a_one_line_error(words: tuple[str, ...], problem: str, error_of: TextOf) -> None:
    assert problem in error_of("plan", "llama-2-7b", *words)


def test_an_unknown_model_gives_a_one_line_error(error_of: TextOf, tmp_path: Path) -> None:
    assert "unknown model 'lama-2-7b'; did you mean 'llama-2-7b'?" in error_of("plan", "lama-2-7b", "--gpus", "1xT4")
    assert "does not exist" in error_of("plan", str(tmp_path / "mine.yaml"), "--gpus", "1xT4")
    assert "--seq 8 has no effect" in error_of("plan", "resnet50", "--gpus", "1xT4", "--seq", "8")


def test_if_no_plan_fits_plans_have_no_numbers(error_of: TextOf) -> None:
    assert "no plan fits, so plans have no numbers" in error_of(*NARROW, "--explain", "1")


# Parsing of options.


@pytest.mark.parametrize(
    "text", ["8xA100-80GB", "8 x a100", "A100:8", " A100-80GB : 8 ", "8×A100", "8XA100", "1x8:A100"]
)
def test_notations_of_eight_gpus(text: str) -> None:
    assert MachineOptions(text).parse() == build_machines(find_gpu("A100-80GB"), 8)


def test_nodes_are_given_in_the_text_or_by_an_option() -> None:
    two = build_machines(find_gpu("A100"), 8, nodes=2)
    assert MachineOptions("2x4:A100").parse() == MachineOptions("8xA100", nodes=2).parse() == two
    assert MachineOptions("8x4090").parse().gpu.name == "RTX-4090"


def test_units_of_memory_and_networks() -> None:
    assert parse_gib("512") == parse_gib("512GiB") == parse_gib("0.5 TiB") == 512
    assert parse_gib("1600GB") == pytest.approx(1490.1, abs=0.1)
    assert parse_network("100GB/s").gigabytes_per_second == 100
    assert parse_network("800Gb/s") == parse_network("800 Gbps") == parse_network("100GB/s")


def test_formatting_of_amounts() -> None:
    assert [format_step_time(one) for one in (0.4784, 0.00012, 1.0, 60.708, 1487.69)] == [
        "478.4 ms",
        "0.1 ms",
        "1.00 s",
        "60.71 s",
        "1,488 s",
    ]
    assert [format_rate(one) for one in (16.721, 3854.88, 0.342, 9.999, 99.97)] == [
        "16.7",
        "3,855",
        "0.342",
        "10.0",
        "100",
    ]
    assert [format_layout(one) for one in ((8,), (8, 8), (8, 8, 4))] == [
        "1 node",
        "2 nodes",
        "3 nodes of 2 × 8 + 4 GPUs",
    ]


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
def test_the_shell_completes_models_gpus_and_engines(
    line: str, completed: set[str], completions_of: Callable[[str], set[str]]
) -> None:
    assert completions_of(line) == completed


def test_the_application_imports_no_heavy_libraries() -> None:
    script = (
        "import sys; import refold.cli.app; "
        "print([name for name in ('numpy', 'msgspec', 'yaml', 'rich.table') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_adapters_are_advised_where_not_all_weights_can_be_trained(invoke: Invoke) -> None:
    def advice(*words: str) -> list[str]:
        printed = invoke("plan", *words).stdout.partition("What would help\n")[2]
        return [line.partition(" this plan would fit")[0] for line in printed.splitlines() if "would" in line]

    large = advice("gpt-oss-20b", "--gpus", "1xH100")
    assert (len(large), large[-1]) == (2, "with --lora 16")
    assert advice("llama-3.1-8b", "--gpus", "1xT4")[-1] == "with --qlora --seq 2048"


def test_options_of_stored_weights_and_cuda_graphs(json_of: JsonOf, invoke: Invoke) -> None:
    words = ("plan", "llama-2-70b", "--gpus", "1xB300", "--lora", "16", "--precision", "nvfp4")
    plain, stored = json_of(*words)["best"][0], json_of(*words, "--stored-weights")["best"][0]
    assert stored["memory"]["weights"] < 0.35 * plain["memory"]["weights"]
    wrong = invoke("plan", "llama-2-70b", "--gpus", "1xB300", "--stored-weights")
    assert "--stored-weights is for weights that --lora leaves frozen" in str(wrong.exception)
    graphs = json_of("plan", "gpt2-small", "--gpus", "1xH100", "--batch", "1", "--cuda-graphs")["best"][0]
    assert graphs["seconds"]["launch"] == 0
