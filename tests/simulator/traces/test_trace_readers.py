"""Every format: a small example file and the jobs it contains."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from refold.errors import BadFile, BadInput, BadValue, UnknownName
from refold.model import Demand, Job, Plan
from refold.simulator.traces.common_format import equal_instances
from refold.simulator.traces.formats import FORMATS, read_trace
from refold.simulator.traces.trace import Trace

FIXTURES = Path(__file__).parent / "fixtures"


def test_the_common_format_is_read() -> None:
    assert read_trace(FIXTURES / "common.csv") == Trace(
        "common",
        (
            Job("first", 0.0, Demand(4, 8), 172800.0, tenant="lab", user="ann"),
            Job("part", 10.0, Demand(1, 1, 250, 2500, 1536, ("A100", "V100")), 5.0, job_class="best-effort"),
            Job("cpu", 10.0, Demand(1, 0, cpu_milli=4000, memory_mib=8192), 7.25),
            Job("steps", 20.0, Demand(1, 2), None, "vc1", workload="ResNet-50 (batch size 64)", steps=1234),
            Job("late", 30.5, Demand(2, 6), 60.0),
            Job("first.2", 40.0, Demand(2, 4), 1.0),
        ),
        notes=(
            "in the whole file: 1 duration truncated by the source, used as given",
            "in the whole file: 1 job without a duration",
            "in the whole file: 1 duplicate id given a suffix (such as '.2')",
        ),
    )


def test_openb_pods_are_read() -> None:
    assert read_trace(FIXTURES / "openb.csv") == Trace(
        "openb",
        (
            Job("pod-1", 50.0, Demand(1, 8, 1000, 32000, 65536), 1000.0),
            Job("pod-0", 100.0, Demand(1, 1, 470, 4000, 8192, ("P100", "T4")), 150.0, job_class="best-effort"),
            Job("pod-2", 120.0, Demand(1, 0, 1000, 2000, 1024), 30.0),
        ),
        notes=("in the whole file: 1 pod never scheduled: run time is deletion − creation",),
        waits={"pod-1": 0.0, "pod-0": 10.0},
    )


def test_openb_pods_without_times_are_submitted_one_per_second() -> None:
    assert read_trace(FIXTURES / "openb_untimed.csv") == Trace(
        "openb_untimed",
        (
            Job("pod-0", 0.0, Demand(1, 1, 470, 4000, 8192)),
            Job("pod-1", 1.0, Demand(1, 2, 1000, 32000, 65536)),
        ),
        notes=("the file has no times: pods are submitted in file order, one per second, and have no duration",),
    )


def test_a_philly_job_log_is_read() -> None:
    assert read_trace(FIXTURES / "philly.json") == Trace(
        "philly",
        (
            Job("application_3", 0.0, Demand(1, 1), 15.0, tenant="red", user="bob"),
            Job("application_1", 1800.0, Demand(2, 6), 3660.0, tenant="blue", user="ann"),
        ),
        notes=(
            "time 0 is the first submission, at 2017-10-07 00:30:00",
            "in the whole file: 1 job skipped that never ran or never ended: the log has no GPUs or no run time"
            " for them",
        ),
        waits={"application_3": 30.0, "application_1": 1140.0},
    )


def test_a_helios_cluster_log_is_read() -> None:
    assert read_trace(FIXTURES / "helios.csv") == Trace(
        "helios",
        (
            Job("5", 0.0, Demand(3, 3, cpu_milli=6000), 5.0, tenant="vcB", user="u2"),
            Job("7", 10.0, Demand(2, 8, cpu_milli=64000), 60.0, tenant="vcA", user="u1", group="train"),
            Job("9", 86400.0, Demand(1, 0, cpu_milli=4000), 0.0, tenant="vcA", user="u1", group="eval"),
        ),
        notes=("time 0 is the first submission, at 2020-04-01 00:00:00",),
        waits={"5": 0.0, "7": 10.0, "9": 0.0},
    )


def test_a_helios_log_without_virtual_clusters_is_read(tmp_path: Path) -> None:
    old = tmp_path / "cluster_log.csv"
    old.write_text(
        "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "1,u,1,2,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:05,5,0\n"
    )
    assert read_trace(old).jobs == (Job("1", 0.0, Demand(1, 1, cpu_milli=2000), 5.0, user="u"),)


def test_a_pai_task_table_is_read_with_the_job_table_in_the_same_folder() -> None:
    assert read_trace(FIXTURES / "pai_task_table.csv") == Trace(
        "pai_task_table",
        (
            Job("job-b", 0.0, Demand(4, 2, 1000, 12000, 16384, ("V100",)), 5.0, user="bruno", workload="worker"),
            Job("job-a", 100.0, Demand(1, 1, 500, 6000, 30000, ("T4",)), 600.0, user="alice", workload="tensorflow"),
            Job("job-a.2", 100.0, Demand(2, 0, 1000, 3000, 8192), 600.0, user="alice", workload="ps"),
        ),
        notes=(
            "time 0 is the first submission, at 890",
            "gpu_type is the type that a task ran on; it is used as the requested type",
            "in the whole file: 2 tasks skipped that had not started or not ended",
            "in the whole file: 1 duplicate id given a suffix (such as '.2')",
        ),
        waits={"job-b": 10.0, "job-a": 10.0, "job-a.2": 10.0},
    )


def test_a_pai_task_table_is_read_without_a_job_table_and_with_a_header(tmp_path: Path) -> None:
    alone = tmp_path / "tasks.csv"
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    alone.write_text(header + "j,worker,1.0,Terminated,5.0,6.0,100.0,1.0,150.0,\n")
    trace = read_trace(alone)
    assert trace.jobs == (Job("j", 0.0, Demand(1, 2, 750, 1000, 1024), 1.0, workload="worker"),)
    assert "no job table in the same folder: submission times are start times, and users are unknown" in trace.notes


def test_a_rubick_workload_is_read() -> None:
    assert read_trace(FIXTURES / "rubick.csv") == Trace(
        "rubick",
        (
            _rubick("vit-0", 0.0, Demand(1, 2, cpu_milli=16000), 100.5, "vit", Plan(2, zero=2), 500, sla=True),
            _rubick("llama-1", 10.0, Demand(6, 8, cpu_milli=64000), 200.0, "llama30", Plan(4, 4, 3), 64),
            _rubick("t5-2", 20.0, Demand(1, 4, cpu_milli=32000), 300.0, "t5", Plan(4, accumulation=2), 90),
            _rubick("bert-3", 30.0, Demand(cpu_milli=8000), 400.0, "bert", Plan(1, zero=2, offload=True), 80),
            _rubick(
                "gpt2-4", 40.0, Demand(1, 8, cpu_milli=64000), 500.0, "gpt2", Plan(8, recompute="full"), 70, sla=True
            ),
        ),
        notes=("plan 'ga' does not give the accumulation steps; 2 are assumed",),
    )


def _rubick(
    name: str, submitted: float, demand: Demand, work: float, model: str, plan: Plan, steps: int, *, sla: bool = False
) -> Job:
    return Job(
        name,
        submitted,
        demand,
        work,
        tenant="A" if sla else "B",
        job_class="guaranteed" if sla else "best-effort",
        reshapable=True,
        workload=model,
        plan=plan,
        steps=steps,
        batch={"vit": 64, "llama30": 4, "t5": 16, "bert": 32, "gpt2": 16}[model],
    )


def test_rubick_jobs_of_one_class_have_the_default_tenant_and_unknown_models_no_batch(tmp_path: Path) -> None:
    header, first, *_ = (FIXTURES / "rubick.csv").read_text().splitlines()
    path = tmp_path / "rubick.csv"
    path.write_text(f"{header}\n{first}\n{first.replace('vit', 'own')}\n")
    known, unknown = read_trace(path).jobs
    assert (known.tenant, known.batch) == ("default", 64)
    assert (unknown.tenant, unknown.batch) == ("default", 0)


def test_sacct_output_is_read() -> None:
    assert read_trace(FIXTURES / "sacct.txt") == Trace(
        "sacct",
        (
            Job("102_3", 0.0, Demand(1, 1, 1000, 8000, 32768), 90.0, tenant="vision", user="bob", group="sweep"),
            Job(
                "101",
                60.0,
                Demand(2, 8, 1000, 32000, 262144, ("a100",)),
                93784.0,
                tenant="nlp",
                user="ann",
                group="train",
                time_limit=172800.0,
            ),
            Job("104", 3660.0, Demand(1, 0, 1000, 2000, 2000), 30.0, user="cy", group="cpu", time_limit=1800.0),
        ),
        notes=(
            "time 0 is the first submission, at 2024-05-01 07:59:00",
            "in the whole file: 1 job skipped that never started",
            "in the whole file: 1 job still running: the run time is the time elapsed so far",
        ),
        waits={"102_3": 60.0, "101": 600.0, "104": 0.0},
    )


def test_sacct_output_with_few_columns_unix_times_and_a_trailing_bar_is_read(tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("AllocTRES|End|Start|JobID|\nnode=1,gres/gpu:h100=4|1714550460|1714550400|8|\n")
    assert read_trace(few).jobs == (Job("8", 0.0, Demand(1, 4, gpu_types=("h100",)), 60.0),)


def test_gzipped_files_are_read_like_plain_files(tmp_path: Path) -> None:
    packed = tmp_path / "common.csv.gz"
    packed.write_bytes(gzip.compress((FIXTURES / "common.csv").read_bytes()))
    assert read_trace(packed) == read_trace(FIXTURES / "common.csv")


def test_the_format_can_be_given_explicitly() -> None:
    assert read_trace(FIXTURES / "rubick.csv", format="rubick") == read_trace(FIXTURES / "rubick.csv")


def test_an_unknown_format_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'rubick'"):
        read_trace(FIXTURES / "rubick.csv", format="rubik")


def test_a_file_of_unknown_format_is_rejected_with_its_first_line(tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text("when,what\n1,2\n")
    with pytest.raises(BadFile) as error:
        read_trace(odd)
    assert error.value.problem == (
        f"unknown format: the file begins with 'when,what'; choose one with --format ({', '.join(FORMATS)})"
    )


def test_an_empty_trace_name_is_rejected() -> None:
    for name in ("", " "):
        with pytest.raises(BadInput, match="the trace name is empty"):
            read_trace(name)


def test_control_characters_in_names_are_replaced_and_noted(tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "job_id,submit_s,num_gpu,user,group,gpu_type\na\x1b[31m,0,1,ann\x7f,\x9bteam,T\x01\na\x02,1,1,é ,,\n"
    )
    assert read_trace(odd) == Trace(
        "odd",
        (
            Job("a\ufffd[31m", 0.0, Demand(gpu_types=("T\ufffd",)), tenant="\ufffdteam", user="ann\ufffd"),
            Job("a\ufffd", 1.0, Demand(), user="é "),
        ),
        notes=(
            "in the whole file: 2 jobs without a duration",
            "in the whole file: 2 jobs with control characters in their names, replaced by '\ufffd'",
        ),
    )


def test_ids_that_become_equal_after_replacement_are_made_unique(tmp_path: Path) -> None:
    same = tmp_path / "same.csv"
    same.write_text("job_id,submit_s,num_gpu\na\x01,0,1\na\x02,1,1\n")
    assert [job.id for job in read_trace(same).jobs] == ["a\ufffd", "a\ufffd.2"]


def test_gpus_per_instance_must_be_positive() -> None:
    with pytest.raises(BadValue, match="at least 1 GPU"):
        read_trace(FIXTURES / "common.csv", gpus_per_instance=0)


@pytest.mark.parametrize(
    ("total", "gpus_per_instance", "instances"),
    [(0, 8, (1, 0)), (1, 8, (1, 1)), (8, 8, (1, 8)), (12, 8, (2, 6)), (32, 8, (4, 8)), (7, 4, (7, 1)), (32, 4, (8, 4))],
)
def test_a_total_of_gpus_is_split_into_the_largest_equal_instances(
    total: int, gpus_per_instance: int, instances: tuple[int, int]
) -> None:
    assert equal_instances(total, gpus_per_instance) == instances


def test_a_suffix_for_a_duplicate_id_never_creates_an_existing_id(tmp_path: Path) -> None:
    repeated = tmp_path / "repeated.csv"
    repeated.write_text("job_id,submit_s,num_gpu\na,0,1\na,1,1\na.2,2,1\na,3,1\n")
    assert [job.id for job in read_trace(repeated).jobs] == ["a", "a.3", "a.2", "a.4"]
