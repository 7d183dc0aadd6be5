"""Accuracy of estimated step times and memory without samples: `python -m benchmarks.accuracy.no_samples`.

Every published row is estimated by the analytical model. Rows to which constants were fitted
(`calibrate.is_fitted_on`) and held-out rows are reported separately; `--write` writes
benchmarks/accuracy/no_samples.md, and the tables of docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.calibrate import is_fitted_on
from benchmarks.accuracy.cases import (
    Batch,
    Predicted,
    by_group,
    measured_gib,
    measured_seconds,
    setting_of,
    with_peak_memory,
    with_step_time,
)
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import DOCS, run_report, write_section
from benchmarks.accuracy.tables import Case
from benchmarks.table import Row, as_markdown, at_least, at_most, markdown
from refold.model import MAX_DEGREE, Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import TrainingSetup, Tuning, build_machines, estimate
from refold.planning.plans import PlanLimits, best_plan

HERE = Path(__file__).parent
MIN_GROUP_SIZE = 5
"""Groups of plans are ranked if they have at least this many."""

GOOD_PICK_SHARE = 0.95
"""A plan is a good pick if it reaches this share of the best throughput."""


TIE = 1.01
"""A search prefers the simplest of plans whose step times differ by less."""


class Part(NamedTuple):
    """A selection of rows of a table, and its description."""

    table: str
    description: str
    includes: Callable[[Case], bool]


def _all_rows(_: Case) -> bool:
    return True


def _is_slow(case: Case) -> bool:
    return "times slower than line" in case.note


def _is_lora(case: Case) -> bool:
    return case.tuning.lora_rank > 0


def _is_titan(case: Case) -> bool:
    return case.source == "torchtitan"


def _is_held_out_mlperf(case: Case) -> bool:
    return case.source == "mlperf" and not is_fitted_on(case)


def _is_of_amd(case: Case, *, lora: bool) -> bool:
    return "MI3" in case.gpu and _is_lora(case) == lora and not is_fitted_on(case)


def _is_mpt(case: Case) -> bool:
    return "llm-foundry" in case.source


def _is_bridge(case: Case) -> bool:
    return "bridge" in case.source


def _is_nvfp4(case: Case) -> bool:
    return case.arithmetic == "nvfp4" and case.model.experts == 1 and not _is_lora(case)


def _is_hybrid(case: Case) -> bool:
    return case.model.linear is not None


def _is_held_out_lora(case: Case, layers: str) -> bool:
    return not is_fitted_on(case) and case.tuning.lora_layers == layers


def _is_of_bridge(release: str, kind: str, case: Case) -> bool:
    own = "LoRA" if _is_lora(case) else "experts" if case.model.experts > 1 else "dense"
    own = "hybrid" if _is_hybrid(case) else own
    return case.source == f"megatron-bridge {release}" and own == kind


def _is_of_earlier_bridge(case: Case) -> bool:
    return any(_is_of_bridge(release, "dense", case) for release in ("25.11", "26.02"))


def _is_full_of_cloud(case: Case) -> bool:
    return "dgx" in case.source and not _is_lora(case) and not _is_hybrid(case)


def _is_held_out_of_bridge(release: str, kind: str, case: Case) -> bool:
    return _is_of_bridge(release, kind, case) and not is_fitted_on(case)


PARTS = (
    Part("ultrascale_h100", "1B and 80B (fitted on)", is_fitted_on),
    Part("ultrascale_h100", "8B (held out)", lambda case: not is_fitted_on(case)),
    Part("ultrascale_h100", "all", _all_rows),
    Part("ultrascale_h100", "all but rows 3 × slower than a neighbour", lambda case: not _is_slow(case)),
    Part("ultrascale_h100", "8 to 128 GPUs, without those rows", lambda case: case.gpus <= 128 and not _is_slow(case)),
    Part("h200_measured", "BERT, GPT-2, ViT (fitted on)", is_fitted_on),
    Part("h200_measured", "RoBERTa, T5, LLaMA (held out)", lambda case: not is_fitted_on(case)),
    Part("transformers_h200", "full, 7 models (fitted on)", lambda case: not _is_lora(case) and is_fitted_on(case)),
    Part("transformers_h200", "full, 10 models (held out)", lambda case: not _is_lora(case) and not is_fitted_on(case)),
    Part("transformers_h200", "LoRA, 4 models (fitted on)", lambda case: _is_lora(case) and is_fitted_on(case)),
    Part("transformers_h200", "LoRA, 3 models (held out)", lambda case: _is_lora(case) and not is_fitted_on(case)),
    Part("transformers_h200_later", "full, 2 models (measured afterwards)", _all_rows),
    Part("modules_h200", "traced, 8 modules (fitted on)", is_fitted_on),
    Part("modules_h200", "traced, 7 modules (held out)", lambda case: not is_fitted_on(case)),
    Part("llm_foundry_a100", "A100-40GB (fitted on)", is_fitted_on),
    Part("llm_foundry_a100", "A100-80GB (held out)", lambda case: not is_fitted_on(case)),
    Part("bigscience_sweeps", "A100, even lines (fitted on)", lambda case: "A100" in case.gpu and is_fitted_on(case)),
    Part("bigscience_sweeps", "A100, odd lines (held out)", lambda case: "A100" in case.gpu and not is_fitted_on(case)),
    Part("bigscience_sweeps", "V100, even lines (fitted on)", lambda case: "V100" in case.gpu and is_fitted_on(case)),
    Part("bigscience_sweeps", "V100, odd lines (held out)", lambda case: "V100" in case.gpu and not is_fitted_on(case)),
    Part("rubick_measured", "all (held out)", _all_rows),
    Part("torchtitan_docs", "8 GPUs (fitted on)", is_fitted_on),
    Part("torchtitan_docs", "128 to 512 GPUs (held out)", lambda case: not is_fitted_on(case)),
    Part("published_2025", "torchtitan of 2025 (fitted on)", lambda case: _is_titan(case) and is_fitted_on(case)),
    Part("published_2025", "torchtitan of 2025 (held out)", lambda case: _is_titan(case) and not is_fitted_on(case)),
    Part(
        "published_2025", "MLPerf 5.1, LoRA (held out)", lambda case: case.source == "mlperf" and not is_fitted_on(case)
    ),
    Part(
        "published_2025", "litgpt, LoRA and QLoRA (held out)", lambda case: case.source == "litgpt" and _is_lora(case)
    ),
    Part("transformers_h200_long", "LoRA, llama-3.2-3b (fitted on)", is_fitted_on),
    Part("transformers_h200_long", "LoRA of all layers (held out)", lambda case: _is_held_out_lora(case, "all")),
    Part("transformers_h200_long", "LoRA of attention (held out)", lambda case: _is_held_out_lora(case, "attention")),
    Part("published", "MPT on H100, 1B and 7B (fitted on)", lambda case: _is_mpt(case) and is_fitted_on(case)),
    Part("published", "MPT on H100, others (held out)", lambda case: _is_mpt(case) and not is_fitted_on(case)),
    Part(
        "published",
        "MPT on H100, from 32,768 tokens (held out)",
        lambda case: _is_mpt(case) and not is_fitted_on(case) and case.sequence >= 32_768,
    ),
    Part("published", "Megatron-Bridge (fitted on)", lambda case: _is_bridge(case) and is_fitted_on(case)),
    *(
        Part(
            "published", f"Megatron-Bridge {release}, {kind} (held out)", partial(_is_held_out_of_bridge, release, kind)
        )
        for release in ("25.11", "26.02", "26.06")
        for kind in ("dense", "experts", "LoRA")
    ),
    Part("published", "Nemotron 3 Nano (held out)", lambda case: _is_hybrid(case) and case.model.experts > 1),
    Part("published", "Nemotron-H 56B (held out)", lambda case: _is_hybrid(case) and case.model.experts == 1),
    Part("published", "NVFP4, dense (held out)", lambda case: _is_nvfp4(case) and not is_fitted_on(case)),
    Part(
        "published",
        "DGX Cloud, full (held out)",
        _is_full_of_cloud,
    ),
    Part("published", "DGX Cloud, LoRA (held out)", lambda case: "dgx" in case.source and _is_lora(case)),
    Part(
        "published",
        "MLPerf 5.1, 8B and 405B (held out)",
        lambda case: "mlperf" in case.source and not _is_lora(case) and "MI3" not in case.gpu,
    ),
    Part("published", "Instinct, 8B on MI355X (fitted on)", lambda case: "MI3" in case.gpu and is_fitted_on(case)),
    Part("published", "Instinct, 8B on MI350X and MI355X (held out)", lambda case: _is_of_amd(case, lora=False)),
    Part(
        "published", "Instinct, LoRA on MI300X, MI350X and MI355X (held out)", lambda case: _is_of_amd(case, lora=True)
    ),
    Part("megatron_bridge", "dense (fitted on)", lambda case: case.model.experts == 1 and is_fitted_on(case)),
    Part("megatron_bridge", "dense (held out)", lambda case: case.model.experts == 1 and not is_fitted_on(case)),
    Part("megatron_bridge", "experts (fitted on)", lambda case: case.model.experts > 1 and is_fitted_on(case)),
    Part("megatron_bridge", "experts (held out)", lambda case: case.model.experts > 1 and not is_fitted_on(case)),
    Part("dgx_cloud_h100", "70B (fitted on)", is_fitted_on),
    Part("dgx_cloud_h100", "8B (held out)", lambda case: not is_fitted_on(case)),
    Part("large_runs", "Llama-3 405B on 8,192 and 16,384 H100 (held out)", lambda case: case.model.experts == 1),
    Part("large_runs", "DeepSeek-V3 on 2,048 H800 (held out)", lambda case: case.model.experts > 1),
    Part("korthikanti2022_table5", "full recomputation (fitted on)", is_fitted_on),
    Part("korthikanti2022_table5", "selective (held out)", lambda case: not is_fitted_on(case)),
    Part("korthikanti2022_fig1_memory", "all (held out)", _all_rows),
    Part("dlperf_megatron_v100", "even lines (fitted on)", is_fitted_on),
    Part("dlperf_megatron_v100", "odd lines (held out)", lambda case: not is_fitted_on(case)),
)


_ESTIMATES: dict[Case, tuple[float, float, bool]] = {}
"""Step time, memory, and whether it fits: of the cases that were estimated before."""


def predicted(cases: Sequence[Case]) -> Predicted:
    """Estimate cases with the constants of the catalogue; most belong to several rows and goals."""
    new = [case for case in dict.fromkeys(cases) if case not in _ESTIMATES]
    found = Batch(new).predict(find_gpu, find_engine)
    _ESTIMATES.update(zip(new, zip(found.seconds, found.memory_gib, found.fits, strict=True), strict=True))
    seconds, memory, fits = zip(*(_ESTIMATES[case] for case in cases), strict=True)
    return Predicted(np.array(seconds), np.array(memory), np.array(fits))


class TimeErrors(NamedTuple):
    """Errors of step times, and the quality of the ranking of plans in groups.

    `rank`: median rank correlation; `picked`: share of groups in which the estimated best plan is a good pick.
    """

    rows: int
    median: float
    p90: float
    groups: int
    rank: float
    picked: float


def time_errors(cases: Sequence[Case]) -> TimeErrors | None:
    """Compute the errors; None if there are no cases."""
    if not cases:
        return None
    estimates, measured = predicted(cases), measured_seconds(cases)
    modelled = estimates.seconds
    errors = np.abs(modelled / measured - 1)
    ranked = [np.array(indices) for indices in by_group(cases).values() if len(indices) >= MIN_GROUP_SIZE]
    ranks = [_rank_correlation(modelled[group], measured[group]) for group in ranked]
    choice = np.where(estimates.fits, modelled, np.inf)  # plans that do not fit are not chosen
    shares = [measured[group].min() / measured[group][choice[group].argmin()] for group in ranked]
    return TimeErrors(
        len(cases),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        len(ranked),
        float(np.median(ranks)) if ranks else np.nan,
        float(np.mean(np.array(shares) >= GOOD_PICK_SHARE)) if shares else np.nan,
    )


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def _time_row(part: Part) -> tuple[str, ...] | None:
    found = time_errors([case for case in with_step_time(read_cases(part.table)) if part.includes(case)])
    if found is None:
        return None
    ranking = (f"{found.groups}", f"{found.rank:.2f}", _percent(found.picked)) if found.groups else ("", "", "")
    return (part.table, part.description, f"{found.rows:,}", _percent(found.median), _percent(found.p90), *ranking)


def _memory_row(part: Part) -> tuple[str, ...] | None:
    found = memory_errors([case for case in read_cases(part.table) if part.includes(case) and case.usable])
    if not found.peaks and not found.out_of_memory:
        return None
    peak = (f"{found.peaks:,}", _percent(found.median)) if found.peaks else ("", "")
    fits = ("", "", "")
    if found.known_fits:
        fits = (f"{found.known_fits:,}", f"{found.out_of_memory:,}", _percent(found.correct))
    return (part.table, part.description, *peak, *fits)


class MemoryErrors(NamedTuple):
    """Median error of peak memory, and the share of rows for which `fits` is predicted correctly.

    `peaks`: rows with a measured peak; `known_fits`: rows known to have run or to have run out of memory, of which
    `out_of_memory` ran out.
    """

    peaks: int
    median: float
    known_fits: int
    out_of_memory: int
    correct: float


def memory_errors(cases: Sequence[Case]) -> MemoryErrors:
    """Compute the errors over rows with a peak, and over rows known to have run or to have run out of memory."""
    with_peak, known_fits = with_peak_memory(cases), [case for case in cases if case.fits is not None]
    errors = np.abs(predicted(with_peak).memory_gib / measured_gib(with_peak) - 1) if with_peak else np.array([np.nan])
    fits = np.array([case.fits for case in known_fits], bool)
    correct = float((predicted(known_fits).fits == fits).mean()) if known_fits else np.nan
    return MemoryErrors(len(with_peak), float(np.median(errors)), len(known_fits), int((~fits).sum()), correct)


GOALS = (
    ("ultrascale_h100", "", _all_rows),
    ("llm_foundry_a100", "", _all_rows),
    ("bigscience_sweeps", " (A100)", lambda case: "A100" in case.gpu),
    ("bigscience_sweeps", " (V100)", lambda case: "V100" in case.gpu),
    ("torchtitan_docs", "", _all_rows),
)
"""Tables with goals; fitted and held-out rows together."""


def recipe_goals() -> list[Row]:
    """Return the goals for published recipes: rows that were not fitted, dense models and mixtures of experts apart."""
    recipes = [case for table in ("megatron_bridge", "dgx_cloud_h100") for case in read_cases(table)]
    rows: list[Row] = []
    for kind, has_experts in (("dense", False), ("experts", True)):
        held_out = [one for one in recipes if not is_fitted_on(one) and (one.model.experts > 1) == has_experts]
        found = time_errors(held_out)
        if found is not None:
            name = f"recipes, {kind}, held out"
            rows.append(at_most(f"{name}: median error", 100 * found.median, 10, _percent(found.median), "%"))
            rows.append(at_most(f"{name}: p90", 100 * found.p90, 25, _percent(found.p90), "%"))
    if recipes:
        fits = float(predicted(recipes).fits.mean())
        rows.append(at_least("recipes: published plans that fit", 100 * fits, 95, _percent(fits), "%"))
        slower = sum(map(_pick_is_slower, recipes))
        rows.append(at_most("recipes: our pick is slower than the published plan", slower, 0, f"{slower}", ""))
    for case in read_cases("large_runs"):
        error = float(abs(predicted([case]).seconds[0] / measured_seconds([case])[0] - 1))
        goal = 20 if case.model.experts > 1 else 10
        name = f"{case.model.name} on {case.gpus:,} {case.gpu}: error"
        rows.append(at_most(name, 100 * error, goal, _percent(error), "%"))
    return rows


def _pick_is_slower(case: Case) -> bool:
    """Whether the plan that a search finds is slower than the published one, both as estimated."""
    setup = setting_of(case, find_gpu, find_engine)
    limits = PlanLimits(max_expert=MAX_DEGREE, max_context=case.plan.context, max_interleave=16, uneven=True)
    best = best_plan(setup, limits)
    published = predicted([case])
    return bool(published.fits[0]) and (best is None or best.step_seconds > TIE * published.seconds[0])


HELD_OUT_GOALS = (
    Part("transformers_h200", "full training, held out", lambda case: not _is_lora(case) and not is_fitted_on(case)),
    Part("transformers_h200", "LoRA, held out", lambda case: _is_lora(case) and not is_fitted_on(case)),
    Part("transformers_h200_later", "measured afterwards", _all_rows),
)
"""Goals for Hugging Face's models on one H200."""


class NewRows(NamedTuple):
    """Rows that were published since 2023, and the goal of the median error of those held out, in percent; 0: none."""

    what: str
    tables: tuple[str, ...]
    includes: Callable[[Case], bool]
    goal: float


NEW_ROWS = (
    NewRows("torchtitan, December 2024", ("torchtitan_docs",), _all_rows, 10),
    NewRows("torchtitan, June 2025", ("published_2025",), _is_titan, 10),
    NewRows("LoRA with transformers, 2,048 to 32,768 tokens", ("transformers_h200_long",), _all_rows, 10),
    NewRows(
        "LoRA in Megatron-Core, DGX Cloud", ("published",), lambda case: "dgx" in case.source and _is_lora(case), 12
    ),
    NewRows(
        "LoRA in Megatron-Core, Megatron-Bridge", ("published",), lambda case: _is_bridge(case) and _is_lora(case), 12
    ),
    NewRows(
        "LoRA in Megatron-Core, MLPerf 5.1 (NVIDIA)",
        ("published", "published_2025"),
        lambda case: "mlperf" in case.source and _is_lora(case) and "MI3" not in case.gpu,
        12,
    ),
    NewRows("experts, Megatron-Bridge 26.06", ("published",), partial(_is_of_bridge, "26.06", "experts"), 12),
    NewRows("dense, Megatron-Bridge 26.06", ("published",), partial(_is_of_bridge, "26.06", "dense"), 0),
    NewRows("dense, Megatron-Bridge 25.11 and 26.02", ("published",), _is_of_earlier_bridge, 0),
    NewRows("DGX Cloud, full training", ("published",), _is_full_of_cloud, 0),
    NewRows("hybrid models", ("published",), _is_hybrid, 12),
    NewRows("NVFP4, dense", ("published",), _is_nvfp4, 12),
    NewRows("MPT on H100", ("published",), _is_mpt, 0),
    NewRows(
        "MPT on H100, from 32,768 tokens", ("published",), lambda case: _is_mpt(case) and case.sequence >= 32_768, 15
    ),
    NewRows(
        "MLPerf 5.1, Llama 3.1 405B",
        ("published",),
        lambda case: "mlperf" in case.source and case.model.name == "llama-3.1-405b",
        10,
    ),
    NewRows(
        "MLPerf 5.1, Llama 3.1 8B",
        ("published",),
        lambda case: "mlperf" in case.source and case.model.name == "llama-3.1-8b" and "MI3" not in case.gpu,
        10,
    ),
    NewRows(
        "AMD Instinct, LoRA", ("published", "published_2025"), lambda case: "MI3" in case.gpu and _is_lora(case), 12
    ),
    NewRows("AMD Instinct, full training", ("published",), lambda case: "MI3" in case.gpu and not _is_lora(case), 12),
)
"""Sources of step times that are not in older tables."""


def _errors_of_source(source: NewRows, *, fitted: bool) -> TimeErrors | None:
    cases = [case for table in source.tables for case in read_cases(table) if source.includes(case)]
    return time_errors([case for case in with_step_time(cases) if is_fitted_on(case) == fitted])


def sources() -> str:
    """Return a table with the errors of step times for each source since 2023, fitted and held-out rows apart."""
    rows = []
    for source in NEW_ROWS:
        fitted, held_out = (_errors_of_source(source, fitted=each) for each in (True, False))
        if fitted or held_out:
            rows.append((source.what, *_source_cells(fitted), *_source_cells(held_out)))
    return markdown(("source", "fitted: rows", "median", "p90", "held out: rows", "median", "p90"), rows)


def _source_cells(found: TimeErrors | None) -> tuple[str, str, str]:
    return (f"{found.rows}", _percent(found.median), _percent(found.p90)) if found else ("", "", "")


def _new_row_goals() -> list[Row]:
    """Return the goals for rows published since 2024: the median error of those that were not fitted."""
    rows: list[Row] = []
    for new in NEW_ROWS:
        found = _errors_of_source(new, fitted=False)
        if found is not None and new.goal:
            what = f"{new.what}, held out ({found.rows}): median error"
            rows.append(at_most(what, 100 * found.median, new.goal, _percent(found.median), "%"))
    for size in ("8B", "70B", "405B"):
        ran = [case for case in read_cases("torchtitan_docs") if case.model.name.endswith(f" {size}")]
        peaks = with_peak_memory([case for case in ran if case.usable])
        if peaks:
            least = float((predicted(peaks).memory_gib / measured_gib(peaks)).min() - 1)
            what = f"torchtitan, December 2024, {size}: least estimated / measured memory"
            rows.append(at_least(what, 100 * least, -5, _percent(least), "%"))
    held_out = [case for case in read_cases("ultrascale_h100") if case.usable and not is_fitted_on(case)]
    if (found := time_errors(with_step_time(held_out))) is not None:
        name = "ultrascale_h100, 8B, held out"
        rows.append(at_most(f"{name}: p90", 100 * found.p90, 40, _percent(found.p90), "%"))
        rows.append(at_least(f"{name}: rank correlation in a group", found.rank, 0.88, f"{found.rank:.2f}", ""))
    return [*rows, *_asynchronous_goals(), *_dequantization_goals()]


def _asynchronous_goals() -> list[Row]:
    """Return the errors of what asynchronous tensor parallelism gains; its overlap was fitted to the 8B model."""
    rows: list[Row] = []
    of_70b = [case for case in read_cases("published_2025") if _is_titan(case) and "70b" in case.model.name]
    for precision, name in (("half", "bf16"), ("fp8", "float8")):
        pair = sorted((case for case in of_70b if case.arithmetic == precision), key=lambda case: case.asynchronous)
        if pair:
            estimated, measured = (times[1] / times[0] for times in (predicted(pair).seconds, measured_seconds(pair)))
            ratios = f"{estimated:.2f} × the time, measured {measured:.2f} ×"
            what = f"asynchronous TP, 70B in {name}, held out: {ratios}: error"
            error = abs(estimated / measured - 1)
            rows.append(at_most(what, 100 * error, 5, _percent(error), "%"))
    return rows


QLORA_MINUTES = {"llama-2-7b": (2.36, 3.68), "llama-2-13b": (3.19, 6.38)}
"""Minutes for 1,000 steps of LoRA and of QLoRA on an A100 with litgpt (tutorials/resource-tables.md): adapters for
queries and values, samples of Alpaca one at a time, most of them of less than 256 tokens."""


def _dequantization_goals() -> list[Row]:
    rows: list[Row] = []
    machines, engine = build_machines(find_gpu("A100-40GB"), 1), find_engine("transformers-bf16")
    for name, (full, quantized) in QLORA_MINUTES.items():
        tunings = (Tuning(8, with_4_bits, lora_layers="attention") for with_4_bits in (False, True))
        setups = [TrainingSetup(find_model(name), machines, engine, 1, 256, tuning) for tuning in tunings]
        seconds = [estimate(setup, Plan()).step_seconds for setup in setups]
        ratio, measured = seconds[1] / seconds[0], quantized / full
        what = f"QLoRA / LoRA, {name} on A100: {ratio:.2f} ×, measured {measured:.2f} ×: error"
        error = abs(ratio / measured - 1)
        rows.append(at_most(what, 100 * error, 12, _percent(error), "%"))
    return rows


def goals() -> list[Row]:
    """Return the goals and whether they were met."""
    return [*recipe_goals(), *_table_goals(), *_held_out_goals(), *_new_row_goals()]


def _held_out_goals() -> list[Row]:
    rows: list[Row] = []
    for part in HELD_OUT_GOALS:
        cases = [case for case in read_cases(part.table) if part.includes(case)]
        time, memory = time_errors(with_step_time(cases)), memory_errors(cases)
        if time is not None:
            median, peak = 100 * time.median, 100 * memory.median
            text = f"{part.table}, {part.description}: median error of"
            rows.append(at_most(f"{text} step times", median, 10, _percent(time.median), "%"))
            rows.append(at_most(f"{text} peak memory", peak, 7, _percent(memory.median), "%"))
    return rows


def _table_goals() -> list[Row]:
    rows: list[Row] = []
    for table, selection, includes in GOALS:
        cases = [case for case in read_cases(table) if case.usable and includes(case)]
        name, time, memory = table + selection, time_errors(with_step_time(cases)), memory_errors(cases)
        if time is None:
            continue
        rows.append(at_most(f"{name}: median error of step times", 100 * time.median, 15, _percent(time.median), "%"))
        rows.append(at_most(f"{name}: p90", 100 * time.p90, 35, _percent(time.p90), "%"))
        if time.groups > 1:
            rows.append(at_least(f"{name}: rank correlation in a group", time.rank, 0.9, f"{time.rank:.2f}", ""))
            share = _percent(time.picked)
            rows.append(at_least(f"{name}: groups with a pick within 5 %", 100 * time.picked, 80, share, "%"))
        if memory.out_of_memory:
            share = _percent(memory.correct)
            rows.append(at_least(f"{name}: out of memory predicted correctly", 100 * memory.correct, 90, share, "%"))
        if memory.peaks:
            share = _percent(memory.median)
            rows.append(at_most(f"{name}: median error of peak memory", 100 * memory.median, 10, share, "%"))
    return rows


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def report() -> str:
    """Return all tables in Markdown."""
    times = [row for part in PARTS if (row := _time_row(part)) is not None]
    memories = [row for part in PARTS if (row := _memory_row(part)) is not None]
    return "\n\n".join(
        (
            "Step times. Rank: Spearman's rank correlation of plans, the median over groups of five or more plans for "
            "the same model and GPUs. Good picks: share of those groups in which the plan estimated to be fastest, of "
            "those estimated to fit, reaches at least 95 % of the best measured throughput.",
            markdown(("table", "rows", "number", "median error", "p90", "groups", "rank", "good picks"), times),
            "Memory. Median error: of the estimated peak. Known: rows known to have run or to have run out of memory; "
            "correct: share of them for which `fits` was predicted correctly.",
            markdown(("table", "rows", "peaks", "median error", "known", "out of memory", "correct"), memories),
            "Step times by source, since 2023.",
            sources(),
            "Goals, over all rows of a table unless stated.",
            as_markdown(goals()),
        )
    )


def missed_goals() -> str:
    """Return the number of goals that are met, and a table of the others."""
    rows = goals()
    missed = [row for row in rows if row.verdict == "missed"]
    return f"{len(rows) - len(missed)} of {len(rows)} goals are met. Missed are:\n\n{as_markdown(missed)}"


def main() -> None:
    """Print the tables; write them with --write."""
    if run_report(report, "no_samples", __doc__):
        write_section(DOCS / "accuracy.md", "sources", sources())
        write_section(DOCS / "accuracy.md", "goals", missed_goals())


if __name__ == "__main__":
    main()
