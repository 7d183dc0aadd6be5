"""From a trace and a cluster on the command line to the simulated workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.cli.experiment_options import TraceOptions
from refold.cli.inputs.workload import Workload
from refold.cli.inputs.workload_reader import read_workload
from refold.errors import BadInput
from refold.simulator import Costs

HEAD = "job_id,submit_s,num_gpu,duration_s,gpu_type\n"


def make_workload(path: Path, text: str, cluster: str, reading: TraceOptions | None = None) -> Workload:
    (path / "jobs.csv").write_text(HEAD + text)
    return read_workload(str(path / "jobs.csv"), cluster, reading or TraceOptions(), Costs())


def test_gpu_types_are_spelled_as_in_the_cluster(tmp_path: Path) -> None:
    read = make_workload(tmp_path, "a,0,1,10,a100\nb,1,1,10,V100\n", "2x8:A100")
    assert [job.demand.gpu_types for job in read.jobs] == [("A100",), ("V100",)]
    assert read.notes == ("1 job requests V100; the cluster has A100 (see --gpu-types)",)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("fast: A100-80GB\nold: [t4]\n", [("A100-80GB",), ("T4",)]),
        ("fast: a100\nold: []\n", [("A100-80GB",), ("A100-80GB", "T4")]),
    ],
)
def test_gpu_types_are_mapped_by_a_file(tmp_path: Path, text: str, types: list[tuple[str, ...]]) -> None:
    (tmp_path / "types.yaml").write_text(text)
    reading = TraceOptions(gpu_types=str(tmp_path / "types.yaml"))
    read = make_workload(tmp_path, "a,0,1,10,FAST\nb,1,1,10,old\n", "2x8:A100-80GB+1x2:T4", reading)
    assert [job.demand.gpu_types for job in read.jobs] == types


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fast: H100", "fast: unknown GPU type 'H100'"),
        ("[a]", "line 1: the file is a list, expected"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_bad_map_of_gpu_types_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "types.yaml").write_text(text)
    with pytest.raises(BadInput, match=problem):
        make_workload(tmp_path, "a,0,1,10,x\n", "2x8:A100", TraceOptions(gpu_types=str(tmp_path / "types.yaml")))


def test_gpu_types_can_be_ignored(tmp_path: Path) -> None:
    read = make_workload(tmp_path, "a,0,1,10,V100\n", "2x8:A100", TraceOptions(gpu_types="ignore"))
    assert [job.demand.gpu_types for job in read.jobs] == [()]
    assert read.notes == ("requested GPU types are ignored: 1 job may run on any type",)


def test_gpus_are_split_by_the_largest_node_unless_a_size_is_given(tmp_path: Path) -> None:
    split = {
        each: make_workload(tmp_path, "a,0,16,10,\n", "4x4+1x2", TraceOptions(gpus_per_instance=each)).jobs[0].demand
        for each in (None, 2)
    }
    assert {each: (demand.instances, demand.gpus) for each, demand in split.items()} == {None: (4, 4), 2: (8, 2)}


def test_notes_refer_to_the_jobs_that_are_used(tmp_path: Path) -> None:
    text = "a,0,1,10,A100\nb,1,1,,\nc,2,1,10,V100\nd,3,1,,\n"
    first = make_workload(tmp_path, text, "1x8:A100", TraceOptions(skip_bad=True, limit=2))
    assert [job.id for job in first.jobs] == ["a"]
    assert first.notes == ("in the whole file: 2 jobs without a duration", "skipped 1 job without a duration")
    assert len(make_workload(tmp_path, text, "1x8:A100", TraceOptions(limit=1)).jobs) == 1


def test_the_error_for_steps_without_durations_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "gavel.csv").write_text("job_id,submit_s,num_gpu,extra\na,0,1,ResNet|steps=100\n")
    with pytest.raises(BadInput) as error:
        read_workload(str(tmp_path / "gavel.csv"), "1x8", TraceOptions(), Costs())
    assert str(error.value) == (
        "no job of gavel has a duration; it has the steps of 1 job, but not the time per step: to simulate it,"
        " give each job a duration in seconds in the column duration_s of the common CSV format"
        " (refold trace convert writes it)"
    )


def test_a_count_of_one_is_singular(tmp_path: Path) -> None:
    assert str(make_workload(tmp_path, "a,0,1,10,\n", "1x1")) == "jobs: 1 job on 1 node with 1 GPU"
