"""Invalid files: every one raises a BadInput error that names the location."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from refold.errors import BadFile, BadInput, BadRow, BadValue
from refold.simulator.traces.formats import FORMATS, read_cluster, read_trace
from refold.simulator.traces.text_source import TextSource

FIXTURES = Path(__file__).parent / "fixtures"

BAD_ROWS = [
    (3, "submit_s", "nan", "a number from 0 to 1099511627776"),
    (4, "duration_s", "-5", "a number from 0 to 1099511627776"),
    (5, "num_gpu", "x", "a number ≥ 0"),
    (6, "num_gpu", "1.5", "a whole number ≥ 0"),
    (7, "row", "3 cells", "4 cells"),
    (8, "duration_s", "1e30", "a number from 0 to 1099511627776"),
    (9, "duration_s", "inf", "a number from 0 to 1099511627776"),
    (10, "job_id", "", "a name"),
]


def _fields_of(row: BadRow) -> tuple[int, str, object, str]:
    return row.line, row.column, row.found, row.expected


def test_the_first_bad_row_is_raised_with_its_line_and_column() -> None:
    path = FIXTURES / "common_bad.csv"
    with pytest.raises(BadRow) as error:
        read_trace(path)
    assert _fields_of(error.value) == BAD_ROWS[0]
    assert str(error.value).startswith(f"{path} line 3: submit_s is 'nan', expected a number")


def test_bad_rows_can_be_skipped_and_are_recorded() -> None:
    trace = read_trace(FIXTURES / "common_bad.csv", skip_bad=True)
    assert [job.id for job in trace.jobs] == ["good", "also-good"]
    assert [_fields_of(row) for row in trace.skipped_rows] == BAD_ROWS


def test_bad_entries_of_a_philly_log_are_recorded_with_line_and_key() -> None:
    trace = read_trace(FIXTURES / "philly_bad.json", skip_bad=True)
    assert [job.id for job in trace.jobs] == ["good"]
    assert [_fields_of(row) for row in trace.skipped_rows] == [
        (5, "jobid", 7, "str"),
        (6, "submitted_time", "yesterday", "a time such as 2017-10-07 01:12:09"),
        (7, "attempts.end_time", "2017-10-07 01:00:00", "a time ≥ 2017-10-07 01:00:09"),
    ]


@pytest.mark.parametrize(
    ("fixture", "good", "bad", "column"),
    [
        ("openb.csv", "8,1000,,LS", "8,2000,,LS", "gpu_milli"),
        ("openb.csv", "50,1050,50", "50,10,50", "deletion_time"),
        ("helios.csv", "16,128,2,", "16,128,-2,", "node_num"),
        ("helios.csv", "2020-04-01 00:00:10", "soon", "submit_time"),
        ("pai_task_table.csv", "job-b,worker,4.0", "job-b,worker,0", "inst_num"),
        ("pai_task_table.csv", "900.0,905.0", "900.0,5.0", "end_time"),
        ("rubick.csv", ",344,", ",345,", "exec_plan"),
        ("rubick.csv", ",gc,", ",magic,", "exec_plan"),
        ("sacct.txt", "|00:01:30|", "|long|", "Elapsed"),
        ("sacct.txt", "cpu=8,gres/gpu=1,node=1|cpu=8", "cpu 8|cpu=8", "ReqTRES"),
        ("sacct.txt", "gres/gpu=16", "gres/gpu=many", "gres/gpu"),
        ("sacct.txt", "|4Gc|", "|some|", "ReqMem"),
        ("common.csv", "steps=1234", "steps=few", "extra"),
        ("common.csv", "2,4,8,1000", "2,4,9,1000", "num_gpu"),
    ],
)
def test_the_error_for_a_bad_cell_names_its_column(
    tmp_path: Path, fixture: str, good: str, bad: str, column: str
) -> None:
    text = (FIXTURES / fixture).read_text()
    assert good in text
    invalid = tmp_path / fixture
    invalid.write_text(text.replace(good, bad, 1))
    with pytest.raises(BadRow) as error:
        read_trace(invalid)
    assert error.value.column == column
    assert len(read_trace(invalid, skip_bad=True).skipped_rows) == 1


def test_the_error_for_a_missing_column_names_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,num_gpu\n1,1\n")
    with pytest.raises(BadFile, match="has no column 'submit_s'; it has job_id, num_gpu"):
        read_trace(path, format="common")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x00\x01\x02\x03", "is not text: it contains zero bytes"),
        (b"job_id\xff\xfe", "is not text: byte 7 is not UTF-8"),
        (gzip.compress(b"job_id,submit_s,num_gpu\n" * 99, mtime=0)[:30], "is a damaged gzip file"),
        (b'[{"jobid": 1', "is not a JSON list of jobs"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'[1, 2, "', "is not a JSON list of jobs"),
    ],
)
def test_files_that_are_not_traces_are_rejected(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadFile) as error:
        read_trace(path)
    assert error.value.problem.startswith(problem)


def test_missing_files_and_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(BadFile, match="cannot be read"):
        read_trace(tmp_path)


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(text=st.text(st.sampled_from(',|\n"[]{}:=-.019aeTJobID\r '), max_size=80))
def test_no_text_makes_a_reader_raise_another_error(format: str, text: str) -> None:
    from refold.simulator.traces import formats

    headers = {
        "common": "job_id,submit_s,duration_s,num_gpu,gpu_milli,extra\n",
        "helios": "job_id,gpu_num,cpu_num,node_num,submit_time,duration\n",
        "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n",
        "pai": "",
        "philly": "[",
        "rubick": "name,submission_time,duration,application,num_gpus,num_cpus,exec_plan,steps,is_sla\n",
        "sacct": "JobID|Start|End|AllocTRES\n",
    }
    source = TextSource(Path("jobs"), headers[format] + text)
    try:
        trace = formats._reader(format).read(source, skip_bad=True, gpus_per_instance=8)
    except BadInput:
        return
    assert len({job.id for job in trace.jobs}) == len(trace.jobs)


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        ("gpus: 2", "gpus: two", "nodes[1].gpus is 'two', expected a whole number"),
        ("gpus: 2", "gpuz: 2", "nodes[1]: unknown field 'gpuz'; did you mean 'gpus'? (known: busy_watts, count"),
        ("cpus: 16.5", "cpus: .nan", "nodes[1].cpus is .nan, expected a number"),
        ("cpus: 16.5", "cpus: -1", "nodes[1]: node 't08': CPUs, memory and power must be 0 to 1099511627776"),
        ("cpus: 16.5, ", "", "nodes[1]: cpus is missing, though other nodes have it"),
        ("speed: 2.0", "speed: 0", "gpu_types[0]: GPU type 'A100': memory and power must be ≥ 0 and speed > 0"),
        ("rack: r1,", "rack: r2,", "nodes[0].rack is 'r2', expected one of r1"),
        ("count: 2", "count: 3", "nodes[0]: count is 3, but 'a[0-1]' names 2 nodes"),
        ("name: login", "name: a0", "two nodes of cluster 'lab' have the same name"),
        ("gpus: 8", "gpus: 99", "nodes[0]: node 'a0' has 99 GPUs, expected 0 to 62"),
        ("nodes:", "nodez:", "unknown field 'nodez'; did you mean 'nodes'? (known: cpus_known, gpu_types"),
        (
            "limit_watts:",
            "limit_wats:",
            "racks[0]: unknown field 'limit_wats'; did you mean 'limit_watts'?",
        ),
        ("speed: 2.0", "zzz: 2.0", "gpu_types[0]: unknown field 'zzz' (known: "),
        (
            "a[0-1]",
            "a[0-99999999]",
            "'a[0-99999999]' is too large: it names 100,000,000 nodes, expected at most 100,000",
        ),
        ("a[0-1]", "a[5-1]", "'5-1' is not a range such as 0-15: it ends before it begins"),
        ("a[0-1]", "a[0-9999999999999999999]", "is not a range such as 0-15"),
    ],
)
def test_the_error_for_a_bad_cluster_file_names_the_key(tmp_path: Path, good: str, bad: str, problem: str) -> None:
    text = (FIXTURES / "cluster.yaml").read_text()
    assert good in text
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace(good, bad, 1))
    with pytest.raises(BadFile) as error:
        read_cluster(path)
    assert problem in error.value.problem


@pytest.mark.parametrize(
    "content",
    [
        "a: [",
        "- 1\n- 2\n",
        "just words",
        "nodes: []\n",
        "nodes: &n\n- *n\n",
        "nodes: " + "[" * 200_000,
        "- " * 200_000,
    ],
    ids=lambda content: content[:12],
)
def test_files_that_are_not_clusters_are_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content)
    with pytest.raises(BadFile):
        read_cluster(path)


@pytest.mark.parametrize(
    ("row", "line", "column"),
    [("a,T4,x,1,1", 3, "num_gpu"), ("a,T4,1,,1", 3, "cpu"), ("a,T4,1,1", 3, "row"), ("a,T4,99,1,1", 3, "row")],
)
def test_the_error_for_a_bad_node_row_names_line_and_column(tmp_path: Path, row: str, line: int, column: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(f"node_id,gpu_type,num_gpu,cpu,mem_gib\nfirst,T4,2,8,16\n{row}\n")
    with pytest.raises(BadRow) as error:
        read_cluster(path)
    assert (error.value.line, error.value.column) == (line, column)


@pytest.mark.parametrize(
    ("shorthand", "problem"),
    [
        ("999999999x8", "'999999999x8' has too few or too many nodes, expected 1 to 100,000 in total"),
        ("60000x8+60000x8", "expected 1 to 100,000 in total"),
        ("0x8", "expected 1 to 100,000 in total"),
        ("2x9999", "'2x9999' has 9,999 GPUs per node, expected 0 to 62"),
        ("2x8:A100+2x63", "'2x63' has 63 GPUs per node, expected 0 to 62"),
    ],
)
def test_the_error_for_excessive_shorthand_gives_the_limits(shorthand: str, problem: str) -> None:
    with pytest.raises(BadValue) as error:
        read_cluster(shorthand)
    assert problem in str(error.value)


def test_an_empty_cluster_name_is_rejected() -> None:
    with pytest.raises(BadInput, match="the cluster name is empty"):
        read_cluster("")


def test_an_unknown_cluster_name_is_rejected() -> None:
    with pytest.raises(BadFile, match="no such file, and not shorthand"):
        read_cluster("nowhere")
