"""Malformed rows of every format: the error names the line, the column, what was found and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.errors import BadFile, BadRow
from refold.model import Demand
from refold.simulator.traces.common_format import equal_instances
from refold.simulator.traces.formats import read_trace
from refold.simulator.traces.sacct_cells import parse_duration, parse_memory_mib, parse_time_limit, parse_tres
from refold.simulator.traces.text_source import BadCell

HEADERS = {
    "common": "job_id,submit_s,duration_s,num_inst,gpu_per_inst,num_gpu,gpu_milli,cpu_per_inst,extra\n",
    "helios": "job_id,gpu_num,cpu_num,node_num,submit_time,duration\n",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,scheduled_time,deletion_time\n",
    "pai": "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n",
    "rubick": "name,submission_time,duration,application,num_gpus,num_cpus,bandwidth,exec_plan,steps,is_sla\n",
}
GOOD = {
    "common": "a,0,10,1,2,2,1000,1,\n",
    "helios": "a,2,4,1,2020-04-01 00:00:00,60\n",
    "openb": "a,1000,1024,1,500,0,5,10\n",
    "pai": "a,worker,1.0,Terminated,5.0,6.0,100.0,1.0,100.0,T4\n",
    "rubick": "a,0,100,vit,2,16,0,zero-dp,500,1\n",
}

BAD_ROWS = [
    ("common", "b,0,10,0,2,,,,", "num_inst", "0", "a whole number ≥ 1"),
    ("common", "b,0,10,2,2,5,,,", "num_gpu", "5", "2 × 2, the product of num_inst and gpu_per_inst"),
    ("common", "b,0,10,,,1,1001,,", "gpu_milli", "1001", "a whole number from 1 to 1000"),
    ("common", "b,0,10,,,1,0,,", "gpu_milli", "0", "a whole number from 1 to 1000"),
    ("common", "b,0,10,,,1,,-1,", "cpu_per_inst", "-1", "a number from 0 to 1099511627776"),
    ("common", "b,0,10,,,,,,", "num_gpu", "", "a number ≥ 0"),
    ("common", "b,0,10,,,1,,", "row", "8 cells", "9 cells"),
    ("helios", "b,x,4,1,2020-04-01 00:00:00,60", "gpu_num", "x", "a number ≥ 0"),
    ("helios", "b,2,4,1,2020-04-31,60", "submit_time", "2020-04-31", "a time such as 2017-10-07 01:12:09"),
    ("helios", "b,2,4,1,2020-04-01 00:00:00,", "duration", "", "a number ≥ 0"),
    ("openb", "b,1000,1024,1,0,0,5,10", "gpu_milli", "0", "a whole number from 1 to 1000"),
    ("openb", "b,1000,1024,1,500,0,5,4", "deletion_time", "4", "a time ≥ 5"),
    ("openb", "b,0.5,1024,1,500,0,5,10", "cpu_milli", "0.5", "a whole number ≥ 0"),
    ("pai", "b,worker,2.5,Terminated,5.0,6.0,100.0,1.0,100.0,T4", "inst_num", "2.5", "a whole number ≥ 0"),
    ("pai", "b,worker,1.0,Terminated,5.0,6.0,many,1.0,100.0,T4", "plan_cpu", "many", "a number ≥ 0"),
    ("rubick", "b,0,100,vit,2,16,0,zero-dp,-1,1", "steps", "-1", "a number from 0 to 1099511627776"),
    ("rubick", "b,0,100,vit,x,16,0,zero-dp,500,1", "num_gpus", "x", "a number ≥ 0"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "row", "column", "found", "expected"), BAD_ROWS)
def test_a_bad_row_is_located_and_left_out_on_request(
    format: str, row: str, column: str, found: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADERS[format] + GOOD[format] + "\n" + row + "\n" + GOOD[format].replace("a,", "c,", 1))
    with pytest.raises(BadRow) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path} line 4: {column} is {found!r}, expected {expected}"
    trace = read_trace(path, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["a", "c"]
    assert [str(skipped) for skipped in trace.skipped_rows] == [str(caught.value)]


@pytest.mark.parametrize("format", HEADERS)
def test_a_header_without_rows_is_an_empty_trace(format: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADERS[format])
    assert read_trace(path).jobs == ()


@pytest.mark.parametrize("format", ["common", "helios", "openb", "rubick"])
def test_columns_may_be_in_any_order(format: str, tmp_path: Path) -> None:
    straight, turned = tmp_path / "straight.csv", tmp_path / "turned.csv"
    straight.write_text(HEADERS[format] + GOOD[format])
    turned.write_text(
        "".join(",".join(reversed(line.split(","))) + "\n" for line in (HEADERS[format] + GOOD[format]).splitlines())
    )
    assert read_trace(turned, format=format).jobs == read_trace(straight, format=format).jobs


def test_line_numbers_count_lines_inside_quotes(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text('job_id,submit_s,num_gpu\n"a\nb",0,1\nc,0,x\n')
    with pytest.raises(BadRow) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.found) == (4, "x")


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n\n\n"])
def test_any_line_ending_separates_rows(newline: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(newline.join(["job_id,submit_s,num_gpu", "a,0,1", "b,5,2", ""]).encode())
    assert [(job.id, job.demand.gpus) for job in read_trace(path).jobs] == [("a", 1), ("b", 2)]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xef\xbb\xbfjob_id,submit_s,num_gpu\na,0,1\n")
    assert [job.id for job in read_trace(path).jobs] == ["a"]


def test_a_file_of_another_format_is_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("when,what\n1,2\n")
    with pytest.raises(BadFile) as caught:
        read_trace(path)
    assert caught.value.problem == (
        "unknown format: the file begins with 'when,what'; choose one with --format"
        " (common, helios, openb, pai, philly, rubick, sacct)"
    )


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("time_limit=-5", "time limit is -5.0, expected seconds > 0"),
        ("class=urgent", "class"),
        ("priority=1.5", "priority"),
        ("plan={}x", "plan"),
        ("preemptible=yes", "preemptible"),
    ],
)
def test_a_bad_value_in_the_extra_column_names_its_key(extra: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_s,num_gpu,extra\na,0,1,{extra}\n")
    with pytest.raises(BadRow) as caught:
        read_trace(path)
    assert caught.value.line == 2
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("total", "per_instance", "split"),
    [
        (0, 8, (1, 0)),
        (1, 8, (1, 1)),
        (8, 8, (1, 8)),
        (9, 8, (3, 3)),
        (12, 8, (2, 6)),
        (13, 8, (13, 1)),
        (16, 1, (16, 1)),
    ],
)
def test_gpus_are_split_into_the_largest_equal_instances(total: int, per_instance: int, split: tuple[int, int]) -> None:
    assert equal_instances(total, per_instance) == split


def test_a_demand_may_be_given_in_part(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_inst,gpu_per_inst,num_gpu\na,0,,4,\nb,0,2,,8\nc,0,,,16\nd,0,3,0,\n")
    assert [job.demand for job in read_trace(path).jobs] == [Demand(1, 4), Demand(2, 4), Demand(2, 8), Demand(3, 0)]


# Cells of Slurm accounting


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00", 0.0),
        ("03:04", 184.0),
        ("02:03:04", 7384.0),
        ("1-02:03:04", 93784.0),
        ("00:01.500", 1.5),
        ("100:00:00", 360000.0),
    ],
)
def test_durations_of_slurm_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text, "Elapsed") == seconds


@pytest.mark.parametrize("text", ["", "5", "1-", "1:2:3:4", "-1:00", "999999999-00:00:00"])
def test_a_duration_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(BadCell) as caught:
        parse_duration(text, "Elapsed")
    assert (caught.value.column, caught.value.found) == ("Elapsed", text)


def test_a_missing_time_limit_is_none() -> None:
    assert [parse_time_limit(text) for text in ("UNLIMITED", "Partition_Limit", "", "00:00", "10:00")] == [
        None,
        None,
        None,
        None,
        600.0,
    ]


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("", 0),
        ("0", 0),
        ("4000M", 4000),
        ("4000", 4000),
        ("1K", 1),
        ("1.5G", 1536),
        ("2T", 2 * 1024**2),
        ("1GiB", 1024),
        ("1gb", 1024),
        ("1Gc", 8 * 1024),
        ("1Gn", 2 * 1024),
    ],
)
def test_memory_is_the_total_over_nodes_and_cpus(text: str, mib: int) -> None:
    assert parse_memory_mib(text, nodes=2, cpus=8.0) == mib


@pytest.mark.parametrize("text", ["much", "-1G", "1X", "9999999P"])
def test_memory_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(BadCell):
        parse_memory_mib(text, 1, 1.0)


def test_trackable_resources_are_name_and_value() -> None:
    assert parse_tres("cpu=8,gres/gpu:a100=4,,mem=64G", "ReqTRES") == {"cpu": "8", "gres/gpu:a100": "4", "mem": "64G"}
    assert parse_tres("", "ReqTRES") == {}
    with pytest.raises(BadCell) as caught:
        parse_tres("cpu=8,gpu", "AllocTRES")
    assert caught.value.column == "AllocTRES"
