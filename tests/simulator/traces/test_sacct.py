"""Slurm accounting as sites export it: old columns, odd job names, requeued and heterogeneous jobs, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.errors import BadFile, BadRow
from refold.model import Demand, Job
from refold.simulator.traces import Trace, read_trace
from refold.simulator.traces.sacct_cells import GpuAmount, parse_gpus
from refold.simulator.traces.text_source import BadCell

HEADER = "JobID|JobName|User|Account|State|Submit|Start|End|NNodes|NCPUS|ReqTRES|AllocTRES"


def read(folder: Path, *rows: str, header: str = HEADER, **options: Any) -> Trace:
    path = folder / "history.txt"
    path.write_text("\n".join((header, *rows)) + "\n")
    return read_trace(path, **options)


def row(job: str = "7", name: str = "train", state: str = "COMPLETED", hour: int = 8, tres: str = "gres/gpu=2") -> str:
    times = f"2026-03-01T{hour:02}:00:00|2026-03-01T{hour:02}:10:00|2026-03-01T{hour:02}:40:00"
    return f"{job}|{name}|ana|vision|{state}|{times}|1|8|{tres}|{tres}"


def test_a_bar_in_a_job_name_does_not_split_the_row(tmp_path: Path) -> None:
    trace = read(tmp_path, row(name="lr=1e-3|seed=4|big"))
    assert [(job.group, job.user, job.work) for job in trace.jobs] == [("lr=1e-3|seed=4|big", "ana", 1800.0)]


def test_of_several_columns_of_free_text_the_one_with_the_bar_is_found(tmp_path: Path) -> None:
    header = "JobID|JobName|Submit|Start|End|AllocTRES|Comment"
    times = "2026-03-01T08:00:00|2026-03-01T08:10:00|2026-03-01T08:40:00|gres/gpu=1"
    trace = read(tmp_path, f"1|plain|{times}|a|b", f"2|a|b|{times}|plain", header=header)
    assert [(job.id, job.group) for job in trace.jobs] == [("1", "plain"), ("2", "a|b")]


def test_a_row_that_no_joining_repairs_is_left_out_and_reported(tmp_path: Path) -> None:
    good = [row(str(number)) for number in range(10)]
    trace = read(tmp_path, *good, "x|y|z|1|2|3|4|soon|6|7|8|9|10|11")
    assert len(trace.jobs) == 10
    assert [str(bad).partition(": ")[2] for bad in trace.skipped_rows] == ["row is '14 cells', expected 12 cells"]


def test_a_few_bad_rows_are_left_out_without_skip_bad(tmp_path: Path) -> None:
    good = [row(str(number)) for number in range(9)]
    trace = read(tmp_path, *good, row("9", tres="gres/gpu=many"))
    assert (len(trace.jobs), len(trace.skipped_rows)) == (9, 1)


def test_an_export_with_many_bad_rows_is_an_error(tmp_path: Path) -> None:
    rows = [*(row(str(number)) for number in range(8)), row("8", tres="gres/gpu=many"), row("9", tres="gres/gpu=all")]
    with pytest.raises(BadRow, match=r"line 10: gres/gpu is 'many'"):
        read(tmp_path, *rows)
    assert len(read(tmp_path, *rows, skip_bad=True).jobs) == 8


def test_the_rows_of_a_requeued_job_are_one_job(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        row("7", state="NODE_FAIL", hour=8),
        row("7", state="REQUEUED", hour=9),
        row("7", state="COMPLETED", hour=11),
        row("8", hour=12),
    )
    assert [(job.id, job.submitted, job.work) for job in trace.jobs] == [("7", 0.0, 1800.0), ("8", 4 * 3600.0, 1800.0)]
    assert "in the whole file: 2 runs of requeued jobs skipped: a job is its first submission and its last run" in (
        trace.notes
    )


def test_an_id_that_was_used_again_is_another_job(tmp_path: Path) -> None:
    trace = read(tmp_path, row("7", hour=8), row("7", hour=9), row("7", "other", "PREEMPTED", 10), row("7", hour=11))
    assert [job.id for job in trace.jobs] == ["7", "7.2", "7.3", "7.4"]


def test_the_components_of_a_heterogeneous_job_are_separate_jobs(tmp_path: Path) -> None:
    trace = read(tmp_path, row("1013+0"), row("1013+1", tres="cpu=4"), row("1013+0.batch"))
    assert [(job.id, job.demand.gpus) for job in trace.jobs] == [("1013+0", 2), ("1013+1", 0)]
    assert "in the whole file: 2 components of heterogeneous jobs read as separate jobs" in trace.notes


def test_a_file_without_a_column_of_gpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="does not state the GPUs of a job; run sacct with one of ReqTRES, AllocTRES"):
        read(tmp_path, "7|2026-03-01T08:00:00|2026-03-01T09:00:00", header="JobID|Submit|Start")


def test_a_file_in_which_no_job_has_gpus_says_why_that_may_be(tmp_path: Path) -> None:
    assert any("AccountingStorageTRES" in note for note in read(tmp_path, row(tres="cpu=8")).notes)
    assert not any("AccountingStorageTRES" in note for note in read(tmp_path, row()).notes)


@pytest.mark.parametrize(
    ("requested", "allocated", "demand"),
    [
        ("gpu:2", "gpu:4", Demand(2, 2)),
        ("gpu:a100:2", "", Demand(2, 2, gpu_types=("a100",))),
        ("gpu:tesla:1(S:0-1)", "gpu:tesla:2", Demand(2, 1, gpu_types=("tesla",))),
        ("craynetwork:1,gpu:1", "craynetwork:2,gpu:2", Demand(2, 1)),
        ("gpu", "", Demand(2, 1)),
        ("", "", Demand(2, 0)),
    ],
)
def test_the_columns_of_older_versions_are_read(tmp_path: Path, requested: str, allocated: str, demand: Demand) -> None:
    header = "JobID|Submit|Start|End|NNodes|ReqGRES|AllocGRES"
    times = "2020-03-01T08:00:00|2020-03-01T08:10:00|2020-03-01T08:40:00"
    (job,) = read(tmp_path, f"7|{times}|2|{requested}|{allocated}", header=header).jobs
    assert job.demand == demand


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:8", GpuAmount(8)),
        ("gpu:a100:8", GpuAmount(8, ("a100",))),
        ("gres:gpu:v100:1,gres:gpu:a100:1", GpuAmount(2, ("a100", "v100"))),
        ("gres/gpu:3090:2", GpuAmount(2, ("3090",))),
        ("gpu:nvidia_a100-sxm4-80gb:1(IDX:0,2)", GpuAmount(1, ("nvidia_a100-sxm4-80gb",))),
        ("license:matlab:1", GpuAmount(0)),
        ("gpumem:40", GpuAmount(0)),
    ],
)
def test_generic_resources_are_parsed(text: str, gpus: GpuAmount) -> None:
    assert parse_gpus(text, "ReqGRES") == gpus


def test_a_gres_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(BadCell):
        parse_gpus("gpu:a100:four:2", "ReqGRES")


def json_job(id: int = 7, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": id,
        "name": "train",
        "user": "ana",
        "account": "vision",
        "allocation_nodes": 2,
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            "submission": 1_770_000_000,
            "start": 1_770_000_600,
            "end": 1_770_002_400,
            "elapsed": 1800,
            "limit": {"set": True, "infinite": False, "number": 90},
        },
        "tres": {
            "requested": [
                {"type": "cpu", "name": "", "id": 1, "count": 16},
                {"type": "mem", "name": "", "id": 2, "count": 65536},
                {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 4},
            ],
            "allocated": [{"type": "gres", "name": "gpu", "id": 1001, "count": 4}],
        },
    } | fields


def read_json(folder: Path, *jobs: dict[str, Any], **options: Any) -> Trace:
    path = folder / "history.json"
    path.write_text(json.dumps({"meta": {"slurm": {"release": "24.05"}}, "jobs": jobs, "errors": []}, indent=1))
    return read_trace(path, **options)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": -1}]}},
            "gres/gpu is '-1', expected a number",
        ),
        ({"name": 7}, "name is 7, expected str"),
        ({"tres": {"allocated": [{"count": 1}]}}, r"tres.allocated\[0\].type is None, expected a value"),
        ({"time": "now"}, "time is 'now', expected object"),
        ({"job_id": "x"}, "job_id is 'x', expected int"),
    ],
)
def test_a_bad_job_in_json_is_named_by_its_line_and_does_not_spoil_the_others(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    bad = json_job(9) | fields
    with pytest.raises(BadRow, match=rf"history\.json line 62: {problem}"):
        read_json(tmp_path, json_job(), bad)
    trace = read_json(tmp_path, json_job(), bad, skip_bad=True)
    assert ([job.id for job in trace.jobs], len(trace.skipped_rows)) == (["7"], 1)


def test_json_is_read_like_the_table(tmp_path: Path) -> None:
    demand = Demand(2, 2, cpu_milli=8000, memory_mib=32768, gpu_types=("a100",))
    job = Job("7", 0.0, demand, 1800.0, tenant="vision", user="ana", group="train", time_limit=5400.0)
    assert read_json(tmp_path, json_job()).jobs == (job,)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"array": {"job_id": 5, "task_id": {"set": True, "infinite": False, "number": 3}}}, "5_3"),
        ({"array": {"job_id": 5, "task_id": 3}}, "5_3"),
        ({"array": {"job_id": 0, "task_id": None}}, "7"),
        ({"array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}}}, "7"),
        ({"het": {"job_id": 6, "job_offset": {"set": True, "infinite": False, "number": 1}}}, "6+1"),
        ({"het": {"job_id": 0, "job_offset": None}}, "7"),
    ],
)
def test_ids_of_arrays_and_heterogeneous_jobs_are_those_that_sacct_prints(
    tmp_path: Path, fields: dict[str, Any], expected: str
) -> None:
    assert [job.id for job in read_json(tmp_path, json_job(**fields)).jobs] == [expected]


def test_json_of_older_versions_and_jobs_that_never_started_are_read(tmp_path: Path) -> None:
    times = {"submission": 1_770_000_000, "start": 1_770_000_600, "end": 1_770_002_400, "elapsed": 1800, "limit": 90}
    pending = json_job(8, time=times | {"start": 0, "end": 0}, state={"current": "PENDING"})
    trace = read_json(tmp_path, json_job(time=times, state={"current": "COMPLETED"}), pending)
    assert [(job.id, job.time_limit) for job in trace.jobs] == [("7", 5400.0)]
    assert "in the whole file: 1 job skipped that never started" in trace.notes


@pytest.mark.parametrize("text", ['{"jobs": 7}', '{"jobs": [', '{"what": 1}', "{}", '{"jobs": ' + "[" * 5000])
def test_json_that_is_not_of_sacct_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"is not the output of sacct --json|nested too deeply"):
        read_trace(path)


def test_a_requeued_job_waited_until_its_last_run(tmp_path: Path) -> None:
    trace = read(tmp_path, row("7", state="NODE_FAIL", hour=8), row("7", hour=9), row("8", hour=9))
    assert trace.waits == {"7": 4200.0, "8": 600.0}


def test_a_job_waits_from_the_time_at_which_it_is_eligible(tmp_path: Path) -> None:
    header = "JobID|Submit|Eligible|Start|End|AllocTRES"
    day = "2026-03-01T"
    held = f"1|{day}06:00:00|{day}08:00:00|{day}08:10:00|{day}09:00:00|gres/gpu=1"
    unknown = f"2|{day}08:00:00|Unknown|{day}08:30:00|{day}09:00:00|gres/gpu=1"
    trace = read(tmp_path, held, unknown, header=header)
    assert [(job.id, job.submitted) for job in trace.jobs] == [("1", 0.0), ("2", 0.0)]
    assert trace.waits == {"1": 600.0, "2": 1800.0}


def test_without_submissions_nothing_is_known_about_waits(tmp_path: Path) -> None:
    times = "2026-03-01T08:10:00|2026-03-01T08:40:00"
    assert read(tmp_path, f"1|{times}|gres/gpu=1", header="JobID|Start|End|AllocTRES").waits == {}


def test_of_a_job_whose_submission_is_unknown_nothing_is_known_about_its_wait(tmp_path: Path) -> None:
    header = "JobID|Submit|Eligible|Start|End|AllocTRES"
    lost = "1|Unknown|None|2026-03-01T08:10:00|2026-03-01T09:00:00|gres/gpu=1"
    trace = read(tmp_path, lost, lost.replace("1|Unknown", "2|2026-03-01T08:00:00", 1), header=header)
    assert trace.waits == {"2": 600.0}


def test_json_has_the_time_at_which_a_job_is_eligible(tmp_path: Path) -> None:
    times = {"submission": 1_000, "eligible": 4_000, "start": 4_600, "end": 5_000, "elapsed": 400}
    held = json_job(1, time=times)
    trace = read_json(tmp_path, held, json_job(2, time=times | {"eligible": 0}))
    assert trace.waits == {"1": 600.0, "2": 3_600.0}
