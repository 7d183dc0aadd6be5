"""The table of jobs that Refold keeps between rounds."""

from math import nan
from random import Random

import numpy as np

from refold.policies.refold.table import EstimateRow, EstimateTable, GpuUse

NO_USE = GpuUse(0.0, 0.0, nan, False, 0.0, 0.0, 0, 0.0, 0, 0)


def row(**fields: float) -> EstimateRow:
    return EstimateRow(*(fields.get(name, nan if name == "computing_since" else 0) for name in EstimateRow._fields))  # type: ignore[arg-type]


def test_rows_are_found_after_others_were_added_and_dropped() -> None:
    random, table, expected = Random(1), EstimateTable(), dict[str, float]()
    for number in range(3000):
        job_id = f"job-{random.randrange(300)}"
        if random.random() < 0.4:
            table.drop(job_id)
            expected.pop(job_id, None)
        else:
            table.put(job_id, row(work=float(number)), NO_USE)
            expected[job_id] = float(number)
        assert len(table) == len(expected)
    assert dict(zip(table.ids, table.column("work"), strict=True)) == expected
    assert table.column("work")[table.rows(expected)].tolist() == list(expected.values())


def test_rows_are_sorted_by_all_keys_and_then_by_job() -> None:
    random, table = Random(2), EstimateTable()
    jobs = {f"job-{random.random()}": (random.randrange(3), random.randrange(4) / 2) for _ in range(200)}
    for job_id, (priority, work) in jobs.items():
        table.put(job_id, row(priority=priority, work=work), NO_USE)
    chosen = table.rows(random.sample(sorted(jobs), 150))
    ordered = table.ids[table.sort(chosen, -table.column("priority")[chosen], table.column("work")[chosen])].tolist()
    assert ordered == sorted(table.ids[chosen], key=lambda job_id: (-jobs[job_id][0], jobs[job_id][1], job_id))


def test_sorting_few_rows() -> None:
    table = EstimateTable()
    assert table.sort(table.rows([]), np.zeros(0)).tolist() == []
    table.put("a", row(), NO_USE)
    assert table.sort(table.rows(["a"]), np.zeros(1)).tolist() == [0]


def test_work_done_grows_while_a_run_computes() -> None:
    table = EstimateTable()
    table.put("waiting", row(reported_done=7.0), NO_USE)
    table.put("running", row(reported_done=7.0, computing_since=100.0), NO_USE)
    assert table.done(table.rows(["waiting", "running"]), 130.0).tolist() == [7.0, 37.0]
