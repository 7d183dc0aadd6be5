"""Lists of jobs in YAML: what they may say, and what is said of those that say something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.errors import BadFile
from refold.jobspec.jobs_file import read_jobs
from refold.model import Demand, Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs.yaml"


def jobs_in(folder: Path, text: str) -> list[Job]:
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return read_jobs(path)


def problem_with(folder: Path, text: str) -> str:
    with pytest.raises(BadFile) as raised:
        jobs_in(folder, text)
    assert raised.value.path == str(folder / "jobs.yaml")
    return raised.value.problem


def test_a_name_and_a_command_are_enough(tmp_path: Path) -> None:
    assert jobs_in(tmp_path, "- {name: a, run: echo hello}") == [Job("a", command=("sh", "-c", "echo hello"))]


def test_everything_can_be_said(tmp_path: Path) -> None:
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
    assert jobs_in(tmp_path, text) == [
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
def test_gpus_may_be_none_or_a_part_of_one(tmp_path: Path, gpus: str, demand: Demand) -> None:
    assert jobs_in(tmp_path, f"- {{name: a, run: x, gpus: {gpus}}}")[0].demand == demand


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("gpus: two", "gpus is 'two', expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: 1.5", "gpus is 1.5, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: -1", "gpus is -1, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: .inf", "gpus is inf, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: .nan", "gpus is nan, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: true", "gpus is True, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("gpus: 0.0001", "gpus is 0.0001, expected a whole number ≥ 0, or a part of one GPU such as 0.5"),
        ("instances: 0", "instances is 0, expected a whole number ≥ 1"),
        ("instances: null", "instances is None, expected a whole number ≥ 1"),
        ("after: soon", "after is 'soon', expected how long to wait before it is submitted, such as 10s"),
        ("time_limit: 0", "time_limit is 0, expected how long it may take, such as 2h"),
        ("preemptible: 1", "preemptible is 1, expected true or false"),
        ("priority: high", "priority is 'high', expected a whole number"),
        ("class: gold", "class is 'gold', expected guaranteed or best-effort"),
        ("class: [gold]", "class is ['gold'], expected guaranteed or best-effort"),
        ("reshapable: maybe", "reshapable is 'maybe', expected true or false"),
        ("gpu_range: 4", "gpu_range is 4, expected the fewest GPUs and the most, such as [1, 8]"),
        ("gpu_range: [4]", "gpu_range is [4], expected the fewest GPUs and the most, such as [1, 8]"),
        ("gpu_range: [4, 2]", "gpu_range is [4, 2], expected the fewest GPUs and the most, such as [1, 8]"),
        ("gpu_range: [0, 2]", "gpu_range is [0, 2], expected the fewest GPUs and the most, such as [1, 8]"),
        ("gpu_range: [1, 2]", "gpu_range is for jobs that can run on other numbers of GPUs: say reshapable: true"),
        ("gpu_range: [1, 2], reshapable: true, gpus: 0.5", "gpu_range is for jobs that ask for whole GPUs"),
        ("tenant: [a]", "tenant is ['a'], expected text"),
        ("gpu: 1", "no key 'gpu'; did you mean 'gpus'? ("),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(tmp_path: Path, entry: str, problem: str) -> None:
    found = problem_with(tmp_path, f"- {{name: ok, run: x}}\n- {{name: bad, run: x, {entry}}}")
    assert found.startswith(f"job 2 ('bad'): {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a list of jobs, or 'jobs:' and a list"),
        ("[]", "expected a list of jobs, or 'jobs:' and a list"),
        ("jobs: 3", "expected a list of jobs, or 'jobs:' and a list"),
        ("- [", "is not YAML: "),
        ("- 3", "job 1: is 3, expected 'name: …', 'run: …' and so on"),
        ("- run: x", "job 1: name is absent, expected text"),
        ("- name: a", "job 1 ('a'): run is absent, expected a command: text for the shell, or a list of words"),
        ("- {name: a, run: ''}", "job 1 ('a'): run is '', expected a command: text for the shell, or a list of words"),
        ("- {name: '', run: x}", "job 1 (''): name is '', expected text"),
        ("- {name: a, run: []}", "job 1 ('a'): run is [], expected a command: "),
        ("- {name: a, run: [[x]]}", "job 1 ('a'): run is [['x']], expected a command: "),
        ("- {name: a, run: x}\n- {name: a, run: y}", "job 2 ('a'): the name is taken, expected each name once"),
    ],
)
def test_a_file_that_is_no_list_of_jobs_says_so(tmp_path: Path, text: str, problem: str) -> None:
    assert problem_with(tmp_path, text).startswith(problem)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read: No such file or directory"):
        read_jobs(tmp_path / "none.yaml")


def test_the_example_can_be_read() -> None:
    assert len({job.id for job in read_jobs(EXAMPLE)}) > 3
