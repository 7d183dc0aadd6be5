"""The committed accuracy figures equal the output of the benchmark commands."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.accuracy import device_fit, rubick, rubick_all
from benchmarks.accuracy.calibrate import FITS, Fit, is_fitted_on
from benchmarks.accuracy.device import measurements, read_cases
from benchmarks.accuracy.no_samples import report, time_errors
from benchmarks.accuracy.questions import QUESTIONS, Question, answer
from benchmarks.accuracy.tables import data_folder

from refold.planning.catalogue import find_engine, find_gpu
from refold.planning.perf.hardware import Efficiency

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "accuracy" / "no_samples.md"
DOCS = Path(__file__).parents[3] / "docs" / "accuracy.md"

published = pytest.mark.skipif(data_folder() is None, reason="the published tables are not available (../shared/data)")


def assert_same_figures(committed: str, current: str) -> None:
    """Compare texts, and numbers up to the last digits, in which fits differ between machines."""
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", committed) == number.sub("#", current)
    figures = [[float(found) for found in number.findall(text)] for text in (committed, current)]
    assert figures[0] == pytest.approx(figures[1], rel=0.02, abs=0.2), "run the benchmark with --write"


@pytest.mark.long  # figures on a page; test_worked_examples.py checks the model
@published
def test_the_committed_tables_equal_the_output_of_the_command() -> None:
    assert_same_figures(COMMITTED.read_text(encoding="utf-8"), report() + "\n")


def test_the_page_shows_the_committed_table() -> None:
    committed = COMMITTED.read_text(encoding="utf-8")
    table = committed[committed.index("| source | fitted") :].partition("\n\n")[0].strip()
    assert table in DOCS.read_text(encoding="utf-8")


def test_the_page_shows_the_missed_goals() -> None:
    _, _, table = COMMITTED.read_text(encoding="utf-8").partition("| what | measured")
    missed = [line for line in table.splitlines() if line.endswith("| **missed** |")]
    shown = DOCS.read_text(encoding="utf-8").partition("<!-- goals: begin -->")[2].partition("<!-- goals: end -->")[0]
    assert [line for line in shown.splitlines() if line.startswith("| ")][1:] == missed
    assert f" of {table.count(' met |') + len(missed)} goals are met" in shown


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_the_page_shows_what_the_command_answers(question: Question) -> None:
    *cells, _cpu_time = answer(question)
    assert f"| {' | '.join(cells)} |" in (DOCS.parent / "plan.md").read_text(encoding="utf-8")


def test_the_page_shows_the_errors_of_fits_to_seven_samples() -> None:
    committed = (COMMITTED.parent / "device_fit.md").read_text(encoding="utf-8").strip()
    assert committed in (DOCS.parent / "fit.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_errors_of_fits_to_seven_samples_equal_the_output_of_the_command() -> None:
    committed = (COMMITTED.parent / "device_fit.md").read_text(encoding="utf-8")
    assert_same_figures(committed.strip(), device_fit.report())


@pytest.mark.long
@published
@pytest.mark.parametrize("benchmark", [rubick, rubick_all])
def test_the_committed_rubick_tables_equal_the_output_of_the_command(benchmark: ModuleType) -> None:
    committed = COMMITTED.parent / f"{benchmark.__name__.rpartition('.')[2]}.md"
    assert_same_figures(committed.read_text(encoding="utf-8"), benchmark.report() + "\n")


def test_the_h200_measurements_are_estimated_within_ten_percent() -> None:
    assert len(measurements()) > 100
    held_out = [case for case in read_cases("h200_measured") if not is_fitted_on(case) and case.step_seconds]
    found = time_errors(held_out)
    assert found is not None
    assert found.median < 0.10


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.name)
def test_every_fitted_constant_exists(fit: Fit) -> None:
    for free in fit.free:
        for owner in free.owners:
            holder = find_gpu(owner).efficiency if free.field in Efficiency.__struct_fields__ else find_engine(owner)
            assert getattr(holder, free.field) > 0
