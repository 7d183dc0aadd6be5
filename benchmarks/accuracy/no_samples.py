"""How well steps and memory are estimated without a single sample: `python -m benchmarks.accuracy.no_samples`.

Every published row is put to the analytical model as it is. Rows that constants were fitted on
(`calibrate.is_fitted_on`) and rows that were held out are reported apart; `--write` keeps the tables in
benchmarks/accuracy/no_samples.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.calibrate import is_fitted_on
from benchmarks.accuracy.cases import Batch, Predicted, by_group, measured_gib, measured_seconds, timed, weighed
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import print_and_keep
from benchmarks.accuracy.tables import Case
from benchmarks.table import Row, as_markdown, at_least, at_most, markdown
from refold.catalogue import find_engine, find_gpu

HERE = Path(__file__).parent
LEAST = 5
"""A group of plans is ranked if it has at least so many."""

NEAR = 0.95
"""A plan is as good as the best if it has this share of its throughput."""


class Part(NamedTuple):
    """Some rows of a table: which, and in whose words."""

    table: str
    what: str
    takes: Callable[[Case], bool]


def _every(_: Case) -> bool:
    return True


def _is_slow(case: Case) -> bool:
    return "times slower than line" in case.note


PARTS = (
    Part("ultrascale_h100", "1B and 80B (fitted on)", is_fitted_on),
    Part("ultrascale_h100", "8B (held out)", lambda case: not is_fitted_on(case)),
    Part("ultrascale_h100", "all", _every),
    Part("ultrascale_h100", "all but rows 3 × slower than a neighbour", lambda case: not _is_slow(case)),
    Part("ultrascale_h100", "8 to 128 GPUs, without those rows", lambda case: case.gpus <= 128 and not _is_slow(case)),
    Part("h200_measured", "BERT, GPT-2, ViT (fitted on)", is_fitted_on),
    Part("h200_measured", "RoBERTa, T5, LLaMA (held out)", lambda case: not is_fitted_on(case)),
    Part("llm_foundry_a100", "A100-40GB (fitted on)", is_fitted_on),
    Part("llm_foundry_a100", "A100-80GB (held out)", lambda case: not is_fitted_on(case)),
    Part("bigscience_sweeps", "A100, even lines (fitted on)", lambda case: "A100" in case.gpu and is_fitted_on(case)),
    Part("bigscience_sweeps", "A100, odd lines (held out)", lambda case: "A100" in case.gpu and not is_fitted_on(case)),
    Part("bigscience_sweeps", "V100, even lines (fitted on)", lambda case: "V100" in case.gpu and is_fitted_on(case)),
    Part("bigscience_sweeps", "V100, odd lines (held out)", lambda case: "V100" in case.gpu and not is_fitted_on(case)),
    Part("rubick_measured", "all (held out)", _every),
    Part("torchtitan_docs", "8 GPUs (fitted on)", is_fitted_on),
    Part("torchtitan_docs", "128 GPUs (held out)", lambda case: not is_fitted_on(case)),
    Part("korthikanti2022_table5", "full recomputation (fitted on)", is_fitted_on),
    Part("korthikanti2022_table5", "selective (held out)", lambda case: not is_fitted_on(case)),
    Part("korthikanti2022_fig1_memory", "all (held out)", _every),
    Part("dlperf_megatron_v100", "even lines (fitted on)", is_fitted_on),
    Part("dlperf_megatron_v100", "odd lines (held out)", lambda case: not is_fitted_on(case)),
)


def predicted(cases: Sequence[Case]) -> Predicted:
    """What the model says, with the constants of the catalogue."""
    return Batch(cases).predict(find_gpu, find_engine)


class TimeErrors(NamedTuple):
    """Errors of step times over some rows, and how well plans are ranked in groups that can be."""

    rows: int
    median: float
    p90: float
    groups: int
    rank: float
    picked: float


def time_errors(cases: Sequence[Case]) -> TimeErrors | None:
    """None where nothing was timed."""
    if not cases:
        return None
    said, measured = predicted(cases), measured_seconds(cases)
    modelled = said.seconds
    errors = np.abs(modelled / measured - 1)
    ranked = [np.array(indices) for indices in by_group(cases).values() if len(indices) >= LEAST]
    ranks = [_rank_correlation(modelled[group], measured[group]) for group in ranked]
    choice = np.where(said.fits, modelled, np.inf)  # what does not fit is not chosen
    shares = [measured[group].min() / measured[group][choice[group].argmin()] for group in ranked]
    return TimeErrors(
        len(cases),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        len(ranked),
        float(np.median(ranks)) if ranks else np.nan,
        float(np.mean(np.array(shares) >= NEAR)) if shares else np.nan,
    )


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def _time_row(part: Part) -> tuple[str, ...] | None:
    found = time_errors([case for case in timed(read_cases(part.table)) if part.takes(case)])
    if found is None:
        return None
    ranking = (f"{found.groups}", f"{found.rank:.2f}", _percent(found.picked)) if found.groups else ("", "", "")
    return (part.table, part.what, f"{found.rows:,}", _percent(found.median), _percent(found.p90), *ranking)


def _memory_row(part: Part) -> tuple[str, ...] | None:
    found = memory_errors([case for case in read_cases(part.table) if part.takes(case) and case.usable])
    if not found.peaks and not found.out:
        return None
    peak = (f"{found.peaks:,}", _percent(found.median)) if found.peaks else ("", "")
    right = (f"{found.called:,}", f"{found.out:,}", _percent(found.right)) if found.called else ("", "", "")
    return (part.table, part.what, *peak, *right)


class MemoryErrors(NamedTuple):
    """Median error of peaks, and the share of rows where it was said right whether they fit."""

    peaks: int
    median: float
    called: int
    out: int
    right: float


def memory_errors(cases: Sequence[Case]) -> MemoryErrors:
    """Over rows with a peak, and over rows known to have run or to have run out of memory."""
    with_peak, called = weighed(cases), [case for case in cases if case.fits is not None]
    errors = np.abs(predicted(with_peak).memory_gib / measured_gib(with_peak) - 1) if with_peak else np.array([np.nan])
    did = np.array([case.fits for case in called], bool)
    right = float((predicted(called).fits == did).mean()) if called else np.nan
    return MemoryErrors(len(with_peak), float(np.median(errors)), len(called), int((~did).sum()), right)


GOALS = (
    ("ultrascale_h100", "", _every),
    ("llm_foundry_a100", "", _every),
    ("bigscience_sweeps", " (A100)", lambda case: "A100" in case.gpu),
    ("bigscience_sweeps", " (V100)", lambda case: "V100" in case.gpu),
    ("torchtitan_docs", "", _every),
)
"""Tables for which there are goals; fitted and held-out rows together."""


def goals() -> list[Row]:
    """What was asked for, and what came out."""
    rows: list[Row] = []
    for table, which, takes in GOALS:
        cases = [case for case in read_cases(table) if case.usable and takes(case)]
        name, time, memory = table + which, time_errors(timed(cases)), memory_errors(cases)
        if time is None:
            continue
        rows.append(at_most(f"{name}: median error of step times", 100 * time.median, 15, _percent(time.median), "%"))
        rows.append(at_most(f"{name}: p90", 100 * time.p90, 35, _percent(time.p90), "%"))
        if time.groups > 1:
            rows.append(at_least(f"{name}: rank correlation in a group", time.rank, 0.9, f"{time.rank:.2f}", ""))
            share = _percent(time.picked)
            rows.append(at_least(f"{name}: groups with a pick within 5 %", 100 * time.picked, 80, share, "%"))
        if memory.out:
            share = _percent(memory.right)
            rows.append(at_least(f"{name}: out of memory called right", 100 * memory.right, 90, share, "%"))
        if memory.peaks:
            share = _percent(memory.median)
            rows.append(at_most(f"{name}: median error of peak memory", 100 * memory.median, 10, share, "%"))
    return rows


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def report() -> str:
    """All tables, as markdown."""
    times = [row for part in PARTS if (row := _time_row(part)) is not None]
    memories = [row for part in PARTS if (row := _memory_row(part)) is not None]
    return "\n\n".join(
        (
            "Step times. Rank: Spearman's correlation of plans, the median over groups of five or more plans for the "
            "same model and GPUs. Picked: share of those groups where the plan estimated to be fastest, of those "
            "estimated to fit, has at least 95 % of the best measured throughput.",
            markdown(("table", "rows", "number", "median error", "p90", "groups", "rank", "picked"), times),
            "Memory. Peak: estimated against measured. Called: rows known to have run or to have run out of memory, "
            "and the share of them where `fits` was right.",
            markdown(("table", "rows", "peaks", "median error", "called", "out of memory", "called right"), memories),
            "What was asked for, over all rows of a table.",
            as_markdown(goals()),
        )
    )


def main() -> None:
    """Print the tables; keep them with --write."""
    print_and_keep(report, "no_samples")


if __name__ == "__main__":
    main()
