"""Jobs for `refold run`: the file of `refold submit`, with names as ids and delays as submission times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold.client.jobspec.reader import read_jobs
from refold.errors import BadFile
from refold.model import ArrayTask, Demand, Job, Launch

EXAMPLES = Path(__file__).parents[3] / "examples"


def read_text(folder: Path, text: str) -> tuple[list[Job], list[str]]:
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return read_jobs(path)


def job(name: str, **fields: Any) -> Job:
    launch = Launch(folder=str(Path.cwd()))
    defaults: dict[str, Any] = {"group": name, "command": ("sh", "-c", "x"), "preemptible": False, "launch": launch}
    return Job(name, **defaults | fields)


@pytest.mark.parametrize(
    "text",
    [
        "- {name: a, run: x}\n- {name: b, run: x}\n",
        "jobs:\n- {name: a, run: x}\n- {name: b, run: x}\n",
        "{name: a, run: x}\n---\n{name: b, run: x}\n",
        "- {name: a, run: x}\n---\nname: b\nrun: x\n",
    ],
)
def test_jobs_are_listed_or_separated(tmp_path: Path, text: str) -> None:
    assert read_text(tmp_path, text) == ([job("a"), job("b")], [])


def test_a_delay_is_the_time_of_submission(tmp_path: Path) -> None:
    jobs, _ = read_text(tmp_path, "- {name: a, run: x, begin: 1m30s}\n- {name: b, run: x}\n")
    assert jobs == [job("a", submitted=90.0), job("b")]


def test_the_fields_are_those_of_a_submission(tmp_path: Path) -> None:
    text = "{name: a, run: [x, 3], gpus: 2..8, num_nodes: 2, tenant: vision, estimate: 90, time_limit: 2h}"
    assert read_text(tmp_path, text)[0] == [
        job(
            "a",
            command=("x", "3"),
            demand=Demand(2, 1),
            workload="a",
            gpu_range=(2, 8),
            reshapable=True,
            preemptible=True,
            tenant="vision",
            work=90.0,
            time_limit=7200.0,
        )
    ]


def test_jobs_of_the_same_name_are_numbered(tmp_path: Path) -> None:
    jobs, _ = read_text(tmp_path, "- {name: a, run: x}\n- {name: a-1, run: x}\n- {name: a, run: x}\n- {run: x}\n")
    assert [(job.id, job.group) for job in jobs] == [("a-2", "a"), ("a-1", "a-1"), ("a-3", "a"), ("jobs", "jobs")]


def test_a_batch_script_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "sweep.sh").write_text("#!/bin/sh\n#SBATCH --array=0-1 --gres=gpu:1\ntrue\n")
    jobs, _ = read_jobs(tmp_path / "sweep.sh")
    assert [job.id for job in jobs] == ["sweep_0", "sweep_1"]
    assert [job.launch.array for job in jobs] == [
        ArrayTask("sweep", task, number=task + 1, count=2, minimum=0, maximum=1) for task in (0, 1)
    ]


def test_the_limit_of_an_array_has_no_effect(tmp_path: Path) -> None:
    jobs, notes = read_text(tmp_path, "- {name: a, run: x, array: 0-3%2}\n- {name: b, run: x}\n")
    assert [job.id for job in jobs] == ["a_0", "a_1", "a_2", "a_3", "b"]
    assert [note.partition(": ")[2] for note in notes] == [
        "the limit of array: no effect in `refold run`, only in the daemon"
    ]


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (
            "after: [prepare]",
            "after is not supported by `refold run`: jobs do not wait for each other (for a delay, use begin);"
            " use the daemon",
        ),
        ("hold: true", "hold is not supported by `refold run`: jobs cannot be released; use the daemon"),
        ("secrets: {A: b}", "secrets is not supported by `refold run`: the journal would contain them; use the daemon"),
    ],
)
def test_what_needs_a_daemon_is_rejected(tmp_path: Path, field: str, problem: str) -> None:
    with pytest.raises(BadFile) as raised:
        read_text(tmp_path, f"name: a\nrun: x\n{field}\n")
    assert raised.value.problem == f"job 'a': {problem}"


def test_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    jobs, notes = read_text(tmp_path, "run: x\nretries: 2\nprogress: step (.)\nresources: {zone: eu, accelerators: 1}")
    assert len(jobs) == 1
    assert notes == [
        f"{tmp_path}/jobs.yaml line 4: resources.zone is ignored: jobs run on the nodes of this cluster",
        f"{tmp_path}/jobs.yaml: retries, progress: no effect in `refold run`, only in the daemon",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: has no jobs, expected the fields of a job"),
        ("[]", "line 1: has no jobs, expected the fields of a job"),
        ("jobs: []", "line 1: has no jobs, expected the fields of a job"),
        ("jobs: 3", "line 1: jobs is 3, expected a list of jobs"),
        ("- 3", "line 1: [0] is 3, expected the fields of a job"),
        ("- name: a\n  run: x\n- name: b", "line 3: [1]: run is missing, expected a command: "),
        (
            "- name: a\n  run: x\n  gpus: two GPUs!",
            "line 3: [0].gpus is 'two GPUs!', expected a number such as 8",
        ),
        ("jobs:\n- name: a\n  run: x\n  after: 10s\n  gpu: 1", "line 5: jobs[0]: unknown field 'gpu'; use gpus"),
    ],
)
def test_a_file_without_valid_jobs_is_rejected(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadFile) as raised:
        read_text(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/jobs.yaml {problem}")


@pytest.mark.parametrize("name", ["jobs.yaml", "backfill.yaml", "train.yaml", "train.sbatch"])
def test_the_examples_are_valid(name: str) -> None:
    assert read_jobs(EXAMPLES / name)[0]
