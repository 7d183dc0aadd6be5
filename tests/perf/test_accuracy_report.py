"""The committed figures of accuracy are those that the commands give."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.accuracy import device_fit, rubick, rubick_all
from benchmarks.accuracy.calibrate import FITS, Fit, is_fitted_on
from benchmarks.accuracy.device import measurements, read_cases
from benchmarks.accuracy.no_samples import report, time_errors
from benchmarks.accuracy.tables import data_folder

from refold.catalogue import find_engine, find_gpu
from refold.perf.hardware import Efficiency

KEPT = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "no_samples.md"
DOCS = Path(__file__).parents[2] / "docs" / "accuracy.md"

published = pytest.mark.skipif(data_folder() is None, reason="the published tables are not here (../shared/data)")


def assert_same_figures(kept: str, now: str) -> None:
    """The same text, and the same numbers but for the last digits that a fit may have elsewhere on other machines."""
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", kept) == number.sub("#", now)
    figures = [[float(found) for found in number.findall(text)] for text in (kept, now)]
    assert figures[0] == pytest.approx(figures[1], rel=0.02, abs=0.2), "run the benchmark with --write"


@published
def test_the_kept_tables_are_what_the_command_prints() -> None:
    assert_same_figures(KEPT.read_text(encoding="utf-8"), report() + "\n")


def test_the_page_shows_the_goals_as_they_were_kept() -> None:
    kept = KEPT.read_text(encoding="utf-8")
    assert kept[kept.index("| what | measured") :].strip() in DOCS.read_text(encoding="utf-8")


def test_seven_samples_predict_the_rest_as_the_page_says() -> None:
    kept = (KEPT.parent / "device_fit.md").read_text(encoding="utf-8").strip()
    assert kept in (DOCS.parent / "fit.md").read_text(encoding="utf-8")
    assert_same_figures(kept, device_fit.report())


@published
@pytest.mark.parametrize("benchmark", [rubick, rubick_all], ids=lambda benchmark: benchmark.__name__)
def test_what_was_kept_of_rubick_is_what_the_command_prints(benchmark: ModuleType) -> None:
    kept = KEPT.parent / f"{benchmark.__name__.rpartition('.')[2]}.md"
    assert_same_figures(kept.read_text(encoding="utf-8"), benchmark.report() + "\n")


def test_what_was_measured_on_the_h200_is_here_and_estimated_within_a_tenth() -> None:
    assert len(measurements()) > 100
    held_out = [case for case in read_cases("h200_measured") if not is_fitted_on(case) and case.step_seconds]
    found = time_errors(held_out)
    assert found is not None
    assert found.median < 0.10


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.name)
def test_every_constant_that_is_fitted_exists(fit: Fit) -> None:
    for free in fit.free:
        for owner in free.owners:
            holder = find_gpu(owner).efficiency if free.field in Efficiency.__struct_fields__ else find_engine(owner)
            assert getattr(holder, free.field) > 0
