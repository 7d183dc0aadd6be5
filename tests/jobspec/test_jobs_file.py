"""Job lists in YAML: their fields, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.errors import BadFile
from refold.jobspec.jobs_file import read_jobs
from refold.model import Demand, Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs.yaml"


def read_text(folder: Path, text: str) -> list[Job]:
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return read_jobs(path)


def error_of(folder: Path, text: str) -> str:
    with pytest.raises(BadFile) as raised:
        read_text(folder, text)
    assert raised.value.path == str(folder / "jobs.yaml")
    return raised.value.problem


def test_name_and_command_are_the_only_required_fields(tmp_path: Path) -> None:
    assert read_text(tmp_path, "- {name: a, run: echo hello}") == [Job("a", command=("sh", "-c", "echo hello"))]


def test_every_field_is_read(tmp_path: Path) -> None:
    text = """
    jobs:
      - name: a
        run: [python, train.py, 3]
        gpus: 2
        instances: 4
        after: 1m30s
        tenant: vision
        user: ann
        group: nightly
        class: best-effort
        priority: -1
        work: 90
        time_limit: 2h
        preemptible: false
        reshapable: true
        gpu_range: [2, 16]
    """
    assert read_text(tmp_path, text) == [
        Job(
            "a",
            90.0,
            Demand(4, 2),
            90.0,
            "vision",
            "ann",
            "nightly",
            "best-effort",
            priority=-1,
            preemptible=False,
            reshapable=True,
            time_limit=7200.0,
            command=("python", "train.py", "3"),
            gpu_range=(2, 16),
        )
    ]


@pytest.mark.parametrize(
    ("gpus", "demand"), [("0", Demand(gpus=0)), ("0.5", Demand(gpu_milli=500)), ("2.0", Demand(gpus=2))]
)
def test_gpus_may_be_zero_or_fractional(tmp_path: Path, gpus: str, demand: Demand) -> None:
    assert read_text(tmp_path, f"- {{name: a, run: x, gpus: {gpus}}}")[0].demand == demand


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("gpus: two", "gpus is 'two', expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: 1.5", "gpus is 1.5, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: -1", "gpus is -1, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: .inf", "gpus is inf, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: .nan", "gpus is nan, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: true", "gpus is True, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("gpus: 0.0001", "gpus is 0.0001, expected a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
        ("instances: 0", "instances is 0, expected a whole number ≥ 1"),
        ("instances: null", "instances is None, expected a whole number ≥ 1"),
        ("after: soon", "after is 'soon', expected the submission time as a delay after the start, such as 10s"),
        ("time_limit: 0", "time_limit is 0, expected a time limit > 0 such as 2h"),
        ("preemptible: 1", "preemptible is 1, expected true or false"),
        ("priority: high", "priority is 'high', expected a whole number"),
        ("class: gold", "class is 'gold', expected guaranteed or best-effort"),
        ("class: [gold]", "class is ['gold'], expected guaranteed or best-effort"),
        ("reshapable: maybe", "reshapable is 'maybe', expected true or false"),
        ("gpu_range: 4", "gpu_range is 4, expected minimum and maximum number of GPUs, such as [1, 8]"),
        ("gpu_range: [4]", "gpu_range is [4], expected minimum and maximum number of GPUs, such as [1, 8]"),
        ("gpu_range: [4, 2]", "gpu_range is [4, 2], expected minimum and maximum number of GPUs, such as [1, 8]"),
        ("gpu_range: [0, 2]", "gpu_range is [0, 2], expected minimum and maximum number of GPUs, such as [1, 8]"),
        ("gpu_range: [1, 2]", "gpu_range requires reshapable: true"),
        ("gpu_range: [1, 2], reshapable: true, gpus: 0.5", "gpu_range requires whole GPUs"),
        ("tenant: [a]", "tenant is ['a'], expected text"),
        ("gpu: 1", "unknown field 'gpu'; did you mean 'gpus'? (known: "),
    ],
)
def test_an_invalid_field_is_reported_with_the_expected_value(tmp_path: Path, entry: str, problem: str) -> None:
    found = error_of(tmp_path, f"- {{name: ok, run: x}}\n- {{name: bad, run: x, {entry}}}")
    assert found.startswith(f"job 2 ('bad'): {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a list of jobs, or 'jobs:' and a list"),
        ("[]", "expected a list of jobs, or 'jobs:' and a list"),
        ("jobs: 3", "expected a list of jobs, or 'jobs:' and a list"),
        ("- [", "is not YAML: "),
        ("- 3", "job 1: is 3, expected fields such as 'name: …' and 'run: …'"),
        ("- run: x", "job 1: name is missing, expected text"),
        ("- name: a", "job 1 ('a'): run is missing, expected a command: a shell command line, or a list of arguments"),
        (
            "- {name: a, run: ''}",
            "job 1 ('a'): run is '', expected a command: a shell command line, or a list of arguments",
        ),
        ("- {name: '', run: x}", "job 1 (''): name is '', expected text"),
        ("- {name: a, run: []}", "job 1 ('a'): run is [], expected a command: "),
        ("- {name: a, run: [[x]]}", "job 1 ('a'): run is [['x']], expected a command: "),
        ("- {name: a, run: x}\n- {name: a, run: y}", "job 2 ('a'): duplicate name, expected unique names"),
    ],
)
def test_a_file_that_is_not_a_job_list_is_rejected(tmp_path: Path, text: str, problem: str) -> None:
    assert error_of(tmp_path, text).startswith(problem)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read: No such file or directory"):
        read_jobs(tmp_path / "none.yaml")


def test_the_example_is_valid() -> None:
    assert len({job.id for job in read_jobs(EXAMPLE)}) > 3
