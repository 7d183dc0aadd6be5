"""Comparison tables."""

from __future__ import annotations

import pytest
from journals import start, step, submitted

from refold.core.events import RunFinished
from refold.journal.history import History
from refold.simulator.results.measures import MeasureGroup, Measures, OutcomeCounts, Spread, measure
from refold.simulator.results.tables import MAIN_MEASURES, MORE_MEASURES, Cell, format_value, group_table, measure_table
from refold.testing import make_cluster, make_job


def measures_with_wait(seconds: float) -> Measures:
    """Return the measures of two jobs of 100 s, of which the second is submitted at 50 s and waits for `seconds`."""
    begin = 50 + seconds
    entries = (
        step(0, submitted(make_job("a")), start("a")),
        step(50, submitted(make_job("b", at=50))),
        step(begin, start("b", gpus=(1,))),
        step(max(100, begin), RunFinished("a", 1)),
        step(begin + 100, RunFinished("b", 1)),
    )
    return measure(History.from_entries(make_cluster(2), entries))


def column(measured: list[tuple[str, Measures]], key: str) -> list[Cell]:
    table = measure_table(measured)
    index = next(index for index, one in enumerate(table.columns) if one.key == key)
    return [row.cells[index] for row in table.rows]


def test_the_best_value_of_a_column_is_marked_and_ratios_are_to_the_largest() -> None:
    cells = column([("slow", measures_with_wait(30)), ("fast", measures_with_wait(10))], "waiting_mean")
    assert cells == [Cell(15.0, "15 s", False, 1.0), Cell(5.0, "5 s", True, 1 / 3)]


def test_values_with_the_same_text_are_equally_good() -> None:
    assert [
        cell.best for cell in column([("a", measures_with_wait(10)), ("b", measures_with_wait(10))], "waiting_mean")
    ] == [False, False]
    three = [("a", measures_with_wait(10)), ("b", measures_with_wait(10.001)), ("c", measures_with_wait(40))]
    assert [cell.best for cell in column(three, "completion_p99")] == [True, True, False]


def test_no_value_is_best_in_a_single_row_or_in_a_neutral_column() -> None:
    assert not any(cell.best for row in measure_table([("a", measures_with_wait(10))]).rows for cell in row.cells)
    assert not any(
        cell.best for cell in column([("a", measures_with_wait(10)), ("b", measures_with_wait(20))], "preemptions")
    )


def test_unknown_values_are_shown_as_a_dash() -> None:
    empty = measure(History.from_entries(make_cluster(2), ()))
    for cell in (
        cell
        for table in (MAIN_MEASURES, MORE_MEASURES)
        for row in measure_table([("a", empty)], table).rows
        for cell in row.cells
    ):
        assert cell.value is not None or cell == Cell(None, "–")


def test_every_row_has_one_cell_per_column() -> None:
    for measures in (MAIN_MEASURES, MORE_MEASURES):
        table = measure_table([("a", measures_with_wait(10)), ("b", measures_with_wait(20))], measures)
        assert [len(row.cells) for row in table.rows] == [len(table.columns)] * 2


def test_the_number_of_unfinished_jobs_is_the_first_column_if_there_are_any() -> None:
    infeasible = measure(History.from_entries(make_cluster(2), (step(0, submitted(make_job("a", gpus=3))),)))
    for measures in (MAIN_MEASURES, (*MAIN_MEASURES, MORE_MEASURES[0])):
        table = measure_table([("all", measures_with_wait(10)), ("some", infeasible)], measures)
        assert table.columns[0].key == "not_finished"
        assert [row.cells[0].text for row in table.rows] == ["0", "1"]
    assert "not_finished" not in [one.key for one in measure_table([("all", measures_with_wait(10))]).columns]
    assert "not_finished" not in [one.key for one in measure_table([("some", infeasible)], MORE_MEASURES).columns]


def group(name: str, completion: float, gpu_hours: float = 1.0) -> MeasureGroup:
    spread = Spread(1, completion, completion, completion, completion, completion)
    return MeasureGroup(name, 1, OutcomeCounts(finished=1), spread, spread, spread, gpu_hours, 0)


def test_groups_are_compared_between_policies() -> None:
    table = group_table([("p", [group("x", 10), group("y", 20)]), ("q", [group("x", 5)])], "completion")
    assert [one.name for one in table.columns] == ["p", "q"]
    assert [(row.name, [cell.text for cell in row.cells], [cell.best for cell in row.cells]) for row in table.rows] == [
        ("x", ["10 s", "5 s"], [False, True]),
        ("y", ["20 s", "–"], [False, False]),
    ]


def test_max_rows_selects_the_groups_with_the_most_gpu_hours_in_their_order() -> None:
    groups = [group("a", 1, 5), group("b", 1, 1), group("c", 1, 9)]
    assert [row.name for row in group_table([("p", groups)], "waiting", max_rows=2).rows] == ["a", "c"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (5400.0, "s", "1 h 30 min"),
        (0.1234, "%", "12.3 %"),
        (1.5, "×", "1.50 ×"),
        (1234.5, "×", "1,234 ×"),
        (0.98765, "index", "0.988"),
        (2.25, "h", "2.2"),
        (12345.6, "h", "12,346"),
        (1200, "", "1,200"),
    ],
)
def test_values_are_formatted_by_unit(value: float | None, unit: str, text: str) -> None:
    assert format_value(value, unit) == text
