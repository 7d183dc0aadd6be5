"""Tables that compare."""

from __future__ import annotations

import pytest
from journals import start, step, submitted

from refold.core.events import RunFinished
from refold.journal.history import History
from refold.results.measures import MeasureGroup, Measures, OutcomeCounts, Spread, measure
from refold.results.tables import MAIN, MORE, Cell, group_table, measure_table, text_of
from refold.testing import make_cluster, make_job


def waited(seconds: float) -> Measures:
    """One GPU, two jobs of 100 s; the second comes at 50 and waits so long."""
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
    index = next(place for place, one in enumerate(table.columns) if one.key == key)
    return [row.cells[index] for row in table.rows]


def test_the_best_of_a_column_is_marked_and_bars_are_parts_of_the_largest() -> None:
    cells = column([("slow", waited(30)), ("fast", waited(10))], "waiting_mean")
    assert cells == [Cell(15.0, "15 s", False, 1.0), Cell(5.0, "5 s", True, 1 / 3)]


def test_what_reads_the_same_is_equally_good() -> None:
    assert [cell.best for cell in column([("a", waited(10)), ("b", waited(10))], "waiting_mean")] == [False, False]
    three = [("a", waited(10)), ("b", waited(10.001)), ("c", waited(40))]
    assert [cell.best for cell in column(three, "completion_p99")] == [True, True, False]


def test_nothing_is_best_of_one_or_where_there_is_no_better() -> None:
    assert not any(cell.best for row in measure_table([("a", waited(10))]).rows for cell in row.cells)
    assert not any(cell.best for cell in column([("a", waited(10)), ("b", waited(20))], "preemptions"))


def test_what_is_not_known_is_a_dash() -> None:
    nothing = measure(History.from_entries(make_cluster(2), ()))
    for cell in (
        cell for table in (MAIN, MORE) for row in measure_table([("a", nothing)], table).rows for cell in row.cells
    ):
        assert cell.value is not None or cell == Cell(None, "–")


def test_every_row_has_a_cell_per_column() -> None:
    for measures in (MAIN, MORE):
        table = measure_table([("a", waited(10)), ("b", waited(20))], measures)
        assert [len(row.cells) for row in table.rows] == [len(table.columns)] * 2


def test_how_many_did_not_finish_comes_first_where_any_did_not() -> None:
    never = measure(History.from_entries(make_cluster(2), (step(0, submitted(make_job("a", gpus=3))),)))
    for measures in (MAIN, (*MAIN, MORE[0])):
        table = measure_table([("all", waited(10)), ("some", never)], measures)
        assert table.columns[0].key == "not_finished"
        assert [row.cells[0].text for row in table.rows] == ["0", "1"]
    assert "not_finished" not in [one.key for one in measure_table([("all", waited(10))]).columns]
    assert "not_finished" not in [one.key for one in measure_table([("some", never)], MORE).columns]


def group(name: str, completion: float, gpu_hours: float = 1.0) -> MeasureGroup:
    spread = Spread(1, completion, completion, completion, completion, completion)
    return MeasureGroup(name, 1, OutcomeCounts(finished=1), spread, spread, spread, gpu_hours, 0)


def test_groups_are_compared_across_policies() -> None:
    table = group_table([("p", [group("x", 10), group("y", 20)]), ("q", [group("x", 5)])], "completion")
    assert [one.name for one in table.columns] == ["p", "q"]
    assert [(row.name, [cell.text for cell in row.cells], [cell.best for cell in row.cells]) for row in table.rows] == [
        ("x", ["10 s", "5 s"], [False, True]),
        ("y", ["20 s", "–"], [False, False]),
    ]


def test_of_many_groups_those_with_most_gpu_hours_are_kept_in_their_order() -> None:
    groups = [group("a", 1, 5), group("b", 1, 1), group("c", 1, 9)]
    assert [row.name for row in group_table([("p", groups)], "waiting", most=2).rows] == ["a", "c"]


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
def test_values_read_well(value: float | None, unit: str, text: str) -> None:
    assert text_of(value, unit) == text
