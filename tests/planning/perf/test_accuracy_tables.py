"""Reading the published tables. They are not part of the repository; without them most tests are skipped."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from benchmarks.accuracy.tables import TABLES, Case, Line, Table, data_folder, load_table, read_table, summary

from refold.errors import BadFile, BadRow, UnknownName
from refold.model.cluster import Link
from refold.model.plan import Plan

published = pytest.mark.skipif(data_folder() is None, reason="the published tables are not available (../shared/data)")

PEAK_TFLOPS = {
    "H100-80GB": 989.0,
    "H100-96GB": 989.0,
    "A100-80GB": 312.0,
    "A100-40GB": 312.0,
    "A800-80GB": 312.0,
    "V100-32GB": 125.0,
    "V100-16GB": 125.0,
}


@cache
def table(name: str) -> Table:
    return load_table(name)


def cases(name: str) -> tuple[Case, ...]:
    return table(name).cases


def case_at(name: str, row: int) -> Case:
    return next(case for case in cases(name) if case.row == row)


def utilisation(case: Case) -> float:
    """Share of the half-precision peak: 6 FLOPs per weight and token, and causal attention forward and backward."""
    assert case.step_seconds
    model = case.model
    per_token = 6 * model.parameters + 6 * model.attentions * model.query_width * case.sequence
    return per_token * case.tokens / case.step_seconds / case.gpus / (PEAK_TFLOPS[case.gpu] * 1e12)


@published
@pytest.mark.parametrize(
    ("name", "lines", "excluded", "usable", "timed", "with_memory", "out_of_memory"),
    [
        ("ultrascale_h100", 2445, 23, 2422, 1156, 1156, 952),
        ("llm_foundry_a100", 139, 0, 139, 139, 0, 0),
        ("bigscience_sweeps", 272, 8, 229, 218, 115, 11),
        ("torchtitan_docs", 21, 3, 18, 18, 18, 0),
        ("dlperf_megatron_v100", 18, 0, 18, 18, 0, 0),
        ("korthikanti2022_table5", 8, 0, 8, 8, 0, 0),
        ("korthikanti2022_fig1_memory", 8, 0, 8, 0, 8, 0),
        ("rubick_measured", 539, 4, 526, 526, 0, 0),
    ],
)
def test_every_line_is_a_case_or_excluded_with_a_reason(
    name: str, lines: int, excluded: int, usable: int, timed: int, with_memory: int, out_of_memory: int
) -> None:
    found = table(name)
    assert (found.lines, len(found.excluded)) == (lines, excluded)
    rows = [case.row for case in found.cases]
    assert sorted([*rows, *found.excluded]) == list(range(2, lines + 2))
    used = [case for case in found.cases if case.usable]
    assert len(used) == usable
    assert sum(case.step_seconds is not None for case in used) == timed
    assert sum(case.memory_gib is not None for case in used) == with_memory
    assert sum(case.fits is False for case in used) == out_of_memory
    assert all(case.note for case in found.cases if not case.usable)


@published
@pytest.mark.parametrize("name", TABLES)
def test_no_run_exceeds_the_peak_of_its_gpus(name: str) -> None:
    for case in cases(name):
        if case.usable and case.step_seconds:
            assert 0 < utilisation(case) < 0.85, (case.source, case.row)
        assert not (case.step_seconds and case.fits is False), (case.source, case.row)


@published
@pytest.mark.parametrize("name", TABLES)
def test_the_cases_of_a_group_differ_only_in_their_plans(name: str) -> None:
    seen: dict[str, tuple[object, ...]] = {}
    for case in cases(name):
        shape = (case.model.layers, case.model.hidden, case.model.kv_heads)
        same = (shape, case.gpu, case.gpus, case.network, case.batch, case.sequence)
        assert seen.setdefault(case.group, same) == same, (case.source, case.row)


@published
@pytest.mark.parametrize(
    ("name", "groups", "with_a_choice", "largest"),
    [
        ("ultrascale_h100", 23, 22, 121),
        ("llm_foundry_a100", 139, 0, 1),
        ("bigscience_sweeps", 81, 32, 25),
        ("torchtitan_docs", 12, 4, 3),
        ("dlperf_megatron_v100", 11, 2, 6),
        ("korthikanti2022_table5", 4, 4, 2),
        ("rubick_measured", 50, 33, 88),
    ],
)
def test_the_number_of_comparable_plans(name: str, groups: int, with_a_choice: int, largest: int) -> None:
    sizes = Counter(case.group for case in cases(name) if case.usable and case.step_seconds)
    assert (len(sizes), sum(size > 1 for size in sizes.values()), max(sizes.values())) == (
        groups,
        with_a_choice,
        largest,
    )


@published
def test_ultrascale_first_row() -> None:
    case = case_at("ultrascale_h100", 2)
    assert (case.group, case.engine) == ("1B on 8 H100-80GB, batch 256 × 4096", "nanotron")
    assert case.plan == Plan(8, accumulation=16)
    assert (case.micro_batch, case.batch, case.sequence, case.gpus_on_node) == (2, 256, 4096, (8,))
    assert case.step_seconds == pytest.approx(256 * 4096 / 321_200)
    assert (case.memory_gib, case.fits, case.network) == (50.2, True, Link("efa", 400.0))


@published
@pytest.mark.parametrize(
    ("row", "billions"),
    [(2, 1.34), (791, 1.61), (1175, 8.86)],
)
def test_ultrascale_shapes_follow_the_variant_or_the_majority(row: int, billions: float) -> None:
    assert case_at("ultrascale_h100", row).model.parameters / 1e9 == pytest.approx(billions, abs=0.005)


@published
def test_ultrascale_has_both_variants_of_80b() -> None:
    counts = Counter(round(case.model.parameters / 1e9, 1) for case in cases("ultrascale_h100") if case.fits)
    assert counts == {1.3: 164, 1.6: 363, 8.9: 491, 80.0: 124, 70.6: 14}


@published
def test_a_crash_is_not_out_of_memory_if_a_larger_plan_ran() -> None:
    case = case_at("ultrascale_h100", 171)
    assert (case.plan, case.micro_batch) == (Plan(8, 1, 2, accumulation=32), 1)
    assert case.fits is None
    assert "needs at least as much memory ran" in case.note


@published
def test_a_crash_with_too_few_micro_batches_is_not_out_of_memory() -> None:
    crashed = [case for case in cases("ultrascale_h100") if case.plan.accumulation < case.plan.pipeline - 1]
    assert len(crashed) == 155
    assert {case.fits for case in crashed} == {None}


@published
def test_ultrascale_slow_neighbours_are_noted() -> None:
    slow = case_at("ultrascale_h100", 1175)
    assert slow.note == "more than 3 times slower than line 1128"
    assert slow.usable
    assert sum("times slower" in case.note for case in cases("ultrascale_h100")) == 79


@published
def test_llm_foundry_parameters_match_the_file() -> None:
    stated = {"MPT 70b": 64_862_437_376, "MPT 30b": 29_975_214_080, "MPT 125m": 125_311_488}
    for case in cases("llm_foundry_a100"):
        if case.model.name in stated and case.sequence == 2048:
            assert case.model.parameters == stated[case.model.name] - 2 * case.model.hidden  # without the last norm


@published
def test_llm_foundry_row() -> None:
    case = case_at("llm_foundry_a100", 13)
    assert case.group == "MPT 13b on 8 A100-80GB, batch 48 × 2048"
    assert case.plan == Plan(8, zero=3, accumulation=3)
    assert case.step_seconds == pytest.approx(48 * 2048 / 18_097)
    assert (case.engine, case.fits, case.network) == ("llm-foundry", True, Link("roce", 200.0))
    assert case_at("llm_foundry_a100", 2).plan == Plan(64, zero=3, recompute="full", accumulation=4)


@published
@pytest.mark.parametrize(
    ("row", "gpu", "plan", "micro_batch", "seconds", "memory", "engine"),
    [
        (2, "V100-16GB", Plan(1, 4, 4, recompute="full", accumulation=4), 1, 0.661, None, "megatron-2021"),
        (42, "V100-32GB", Plan(1, 4, 16, recompute="full", accumulation=256), 4, 126.0, 32.0, "megatron-2021"),
        (46, "V100-32GB", Plan(2, 4, 8, 1, recompute="full", accumulation=256), 2, 150.0, None, "deepspeed-2021"),
        (89, "V100-32GB", Plan(64, zero=3, offload=True, recompute="full"), 12, 183.0, None, "hf-deepspeed-2021"),
        (104, "V100-32GB", Plan(8, zero=1, accumulation=64), 1, 23.0, 27.0, "deepspeed-2021"),
        (112, "V100-16GB", Plan(4, 1, 2, 1, recompute="full", accumulation=32), 4, 28.0, 13.0, "deepspeed-2021"),
        (179, "A100-80GB", Plan(4, 8, 12, recompute="full", accumulation=256), 2, 137.34, 72.0, "deepspeed-2022"),
        (
            269,
            "A100-80GB",
            Plan(8, 4, 12, 1, recompute="full", accumulation=128),
            2,
            102.03,
            59.0,
            "deepspeed-2022-bf16",
        ),
    ],
)
def test_bigscience_rows(
    row: int, gpu: str, plan: Plan, micro_batch: int, seconds: float, memory: float | None, engine: str
) -> None:
    case = case_at("bigscience_sweeps", row)
    assert (case.gpu, case.plan, case.micro_batch, case.engine) == (gpu, plan, micro_batch, engine)
    assert (case.step_seconds, case.memory_gib, case.fits, case.usable) == (seconds, memory, True, True)


@published
@pytest.mark.parametrize(
    ("row", "layers", "hidden", "heads", "billions"),
    [
        (132, 78, 14_400, 96, 197.7),
        (177, 10, 14_336, 64, 28.3),
        (253, 106, 12_288, 64, 195.2),
        (272, 70, 14_336, 64, 176.3),
    ],
)
def test_bigscience_shapes(row: int, layers: int, hidden: int, heads: int, billions: float) -> None:
    model = case_at("bigscience_sweeps", row).model
    assert (model.layers, model.hidden, model.heads) == (layers, hidden, heads)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.1)


@published
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (8, "duplicate of line 2"),
        (18, "TP × PP × DP is 32, not 16"),
        (40, "DP × accumulation × micro-batch is not 2048"),
        (75, "38.3 TFLOPs are stated, but model, batch and time give 43.1 to 43.9"),
        (178, "duplicate of line 164 with time and rate swapped; another run of line 164"),
    ],
)
def test_bigscience_contradictions_are_not_used(row: int, reason: str) -> None:
    case = case_at("bigscience_sweeps", row)
    assert (case.usable, case.note) == (False, reason)


@published
def test_bigscience_out_of_memory() -> None:
    rows = [case.row for case in cases("bigscience_sweeps") if case.fits is False and case.usable]
    assert rows == [73, 100, 113, 116, 119, 214, 221, 222, 258, 259, 273]


@published
def test_torchtitan_rows() -> None:
    eager, compiled, float8 = (case_at("torchtitan_docs", row) for row in (2, 3, 4))
    assert eager.plan == Plan(8, zero=3, recompute="selective")
    assert eager.step_seconds == pytest.approx(16 * 8192 / (5762 * 8))
    assert (eager.memory_gib, eager.fits, eager.gpu) == (82.4, True, "H100-96GB")
    assert (compiled.engine, compiled.fits) == ("torchtitan-compile", True)
    assert (float8.engine, float8.arithmetic, float8.usable) == ("torchtitan-compile", "fp8", True)
    long = case_at("torchtitan_docs", 6)
    assert (long.plan, long.sequence) == (Plan(4, context=2, zero=3, recompute="full"), 65_536)
    assert case_at("torchtitan_docs", 12).plan == Plan(32, 8, zero=3, recompute="full", sequence_parallel=True)


@published
def test_dlperf_row() -> None:
    case = case_at("dlperf_megatron_v100", 8)
    assert case.plan == Plan(2, 4, 4, recompute="full", accumulation=32)
    assert (case.gpus_on_node, case.micro_batch, case.step_seconds) == ((8, 8, 8, 8), 8, 15.33123)
    assert case_at("dlperf_megatron_v100", 11).gpus_on_node == (1,)


@published
def test_korthikanti_rows() -> None:
    case = case_at("korthikanti2022_table5", 5)
    plan = Plan(1, 8, 8, recompute="selective", accumulation=64, interleave=3, sequence_parallel=True)
    assert (case.plan, case.step_seconds) == (plan, 13.75)
    memory = case_at("korthikanti2022_fig1_memory", 5)
    assert (memory.plan, memory.step_seconds) == (plan, None)
    assert memory.memory_gib == pytest.approx(45.5625 + 12.3515625)


@published
@pytest.mark.parametrize(
    ("row", "plan", "placement", "parts"),
    [
        (2, Plan(8), (2, 3, 3), (0.03215, 0.08288, 0.14227)),
        (233, Plan(1), (1,), (0.22599, 0.39633, 0.02510)),
        (289, Plan(1, 4), (4,), (None, 0.80308, 0.02349)),
        (502, Plan(1, zero=2, offload=True, recompute="full"), (1,), (2.99014, 54.88156, 0.00174)),
        (508, Plan(4, 4, 2, accumulation=4), (8, 8, 8, 8), (None, None, None)),
    ],
)
def test_rubick_rows(row: int, plan: Plan, placement: tuple[int, ...], parts: tuple[float | None, ...]) -> None:
    case = case_at("rubick_measured", row)
    assert (case.plan, case.gpus_on_node, case.inside) == (plan, placement, Link("nvlink", 200.0))
    found = (case.forward_seconds, case.sync_seconds, case.optimizer_seconds)
    assert [part and round(part, 5) for part in found] == list(parts)


@published
def test_the_phases_of_rubicks_iterations_have_the_unit_of_the_total() -> None:
    for case in cases("rubick_measured"):
        parts = (case.forward_seconds, case.sync_seconds, case.optimizer_seconds)
        whole = case.step_seconds or 0.0
        if any(parts):
            assert 0.2 * whole < sum(part or 0.0 for part in parts) < 1.1 * whole, case.row


@published
def test_the_summary_has_a_line_for_each_table(capsys: pytest.CaptureFixture[str]) -> None:
    summary()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["table", *TABLES]


def test_the_data_folder_can_be_set_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFOLD_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(BadFile, match="No such file"):
        read_table("llm_foundry_a100")


def test_a_missing_data_folder_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFOLD_DATA", str(tmp_path / "absent"))
    assert data_folder() is None
    with pytest.raises(BadFile, match=r"no such folder; set \$REFOLD_DATA to another one"):
        read_table("llm_foundry_a100")
    summary()
    assert capsys.readouterr().out.startswith("the published tables are not available")


def test_an_unknown_table_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'torchtitan_docs'"):
        read_table("torchtitan")


@pytest.mark.parametrize(
    ("text", "number"), [("75GB", 75.0), ("664.64 (ms)", 664.64), ("5,762", 5762.0), ("0.661s", 0.661), ("5e8", 5e8)]
)
def test_a_number_is_parsed_with_its_unit(text: str, number: float) -> None:
    assert Line("file.csv", 2, {"speed": text}).real("speed") == number


def test_an_invalid_number_is_reported_with_its_cell() -> None:
    with pytest.raises(BadRow, match=r"file\.csv line 7: speed is 'OOM', expected a number > 0"):
        Line("file.csv", 7, {"speed": "OOM"}).real("speed")
