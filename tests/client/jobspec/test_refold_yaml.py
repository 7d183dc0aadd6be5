"""Our YAML job format: fields, notes and errors."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.client.api.submissions import Submission
from refold.client.jobspec.job_fields import UNSUPPORTED, UNSUPPORTED_RESOURCES, JobFields, RequestedResources
from refold.client.jobspec.reader import SpecFile, parse_spec, read_spec
from refold.client.jobspec.submission import submission_from_command
from refold.errors import BadFile, BadInput, BadLine, BadRow, RefoldError
from refold.model import Plan, TopologyRequest

ROOT = Path(__file__).parents[3]


def read(text: str) -> SpecFile:
    return parse_spec(text, "job", "job.yaml", "/home/ann")


def error_of(text: str) -> str:
    with pytest.raises(RefoldError) as raised:
        read(text)
    return str(raised.value)


def gives(text: str, **overrides: Any) -> bool:
    """Whether `run: x` and the text give the default job with these overrides."""
    return read(f"run: x\n{text}").submissions == [job(**overrides)]


def job(**overrides: Any) -> Submission:
    return Submission(**{"name": "job", "command": ["sh", "-c", "x"], "folder": "/home/ann"} | overrides)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("checkpoint: {signal: USR1}", {"stop_signal": "USR1", "preemptible": True}),
        (
            "checkpoint: {path: out}",
            {"environment": {"REFOLD_CHECKPOINT": "/home/ann/out"}},  # which shows that it saves checkpoints
        ),
        ("checkpoint: {grace: 5s}", {"grace": 5.0}),
        ("checkpoint: {signal: USR1}\npreemptible: false", {"stop_signal": "USR1", "preemptible": False}),
    ],
)
def test_a_job_that_saves_its_state_when_it_is_stopped_is_preemptible(text: str, fields: dict[str, Any]) -> None:
    assert gives(text, **fields)


def test_the_training_framework_of_the_command() -> None:
    assert gives("engine: megatron\nbatch: 64", engine="megatron", batch=64)
    assert error_of("run: x\nengine: lightning") == (
        "job.yaml line 2: engine is 'lightning', expected one of megatron, deepspeed, fsdp, accelerate, trainer"
    )
    assert "use engine" in error_of("run: x\nframework: megatron")


def test_a_command_is_the_only_required_field() -> None:
    assert read("run: python train.py") == SpecFile(
        [Submission("job", ["sh", "-c", "python train.py"], folder="/home/ann")], []
    )


def test_every_field_is_read() -> None:
    text = r"""
    name: big-one
    num_nodes: 2
    gpus: 8
    resources:
      accelerators: [H100, A100]
      cpus: 4+
      memory: 32
    envs: {LR: 1e-4, MODE: on, PADDED: 007, EMPTY: ''}
    secrets: {TOKEN: hush}
    setup: pip install -e .
    run: python train.py
    workdir: project
    tenant: vision
    class: best-effort
    priority: -3
    steps: 1000
    workload: llama-2-7b
    batch: 256
    sequence: 4096
    time_limit: 2h
    estimate: 90m
    plan: {dp: 4, tp: 2, zero: 1, ga: 16, gc: true}
    elastic: {min: 4, max: 16}
    checkpoint: {path: out/last.pt, signal: SIGUSR1, grace: 2m}
    hang: {no_progress_for: 10m}
    reshape: {at_most: 5, every: 10m}
    preemptible: false
    reshapable: true
    retries: 3
    never_retry: [CUDA error, 'assert .* failed']
    progress: step (\d+)
    after: [prepare, job-7]
    notify: mailto://ann@example.org
    hold: true
    """
    assert read(text) == SpecFile(
        [
            Submission(
                name="big-one",
                command=["sh", "-c", "set -e\npip install -e .\nset +e\npython train.py"],
                instances=2,
                gpus=4,
                gpu_types=["H100", "A100"],
                cpus=4.0,
                memory_gib=32.0,
                gpu_range=(4, 16),
                tenant="vision",
                job_class="best-effort",
                priority=-3,
                preemptible=False,
                reshapable=True,
                time_limit=7200.0,
                estimate=5400.0,
                steps=1000,
                workload="llama-2-7b",
                batch=256,
                sequence=4096,
                plan=Plan(4, 2, zero=1, recompute="full", accumulation=16),
                environment={
                    "LR": "1e-4",
                    "MODE": "on",
                    "PADDED": "007",
                    "EMPTY": "",
                    "REFOLD_CHECKPOINT": "/home/ann/out/last.pt",
                },
                secrets={"TOKEN": "hush"},
                folder="/home/ann/project",
                grace=120.0,
                stop_signal="USR1",
                retries=3,
                progress=r"step (\d+)",
                no_progress=600.0,
                reshape_at_most=5,
                reshape_every=600.0,
                never_retry=["CUDA error", "assert .* failed"],
                after=["prepare", "job-7"],
                notify=["mailto://ann@example.org"],
                hold=True,
            )
        ],
        [],
    )


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("gpus: 0", {"gpus": 0}),
        ("gpus: 4", {"gpus": 4}),
        ("gpus: 4.0", {"gpus": 4}),
        ("gpus: 0.5", {"gpu_share": 0.5}),
        ("gpus: 2..8", {"gpus": 2, "gpu_range": (2, 8)}),
        ("gpus: [2, 8]", {"gpus": 2, "gpu_range": (2, 8)}),
        ("gpus: 8..8", {"gpus": 8}),
        ("gpus: H100:8", {"gpus": 8, "gpu_types": ["H100"]}),
        ("gpus: 8\nnum_nodes: 2", {"gpus": 4, "instances": 2}),
        ("gpus: 8\ngpus_per_node: 2", {"gpus": 2, "instances": 4}),
        ("gpus: 4..16\nnum_nodes: 2", {"gpus": 2, "instances": 2, "gpu_range": (4, 16)}),
        ("num_nodes: 3", {"instances": 3}),
        ("num_nodes: 2\ngpus: 0.25", {"instances": 2, "gpu_share": 0.25}),
        ("num_nodes: 2\ngpus_per_node: 8", {"gpus": 8, "instances": 2}),
        ("resources: {accelerators: H100}", {"gpu_types": ["H100"]}),
        ("resources: {accelerators: 'H100:8'}", {"gpus": 8, "gpu_types": ["H100"]}),
        ("resources: {accelerators: 'V100:0.5'}", {"gpu_share": 0.5, "gpu_types": ["V100"]}),
        ("resources: {accelerators: 8}", {"gpus": 8}),
        ("resources: {accelerators: {H100: 8, A100: 8}}", {"gpus": 8, "gpu_types": ["H100", "A100"]}),
        ("resources: {accelerators: {H100:8, A100:8}}", {"gpus": 8, "gpu_types": ["H100", "A100"]}),
        ("resources: {accelerators: [H100:8, A100:8]}", {"gpus": 8, "gpu_types": ["H100", "A100"]}),
        ("resources: {accelerators: H100}\ngpus: 4", {"gpus": 4, "gpu_types": ["H100"]}),
        ("resources: {accelerators: 'H100:4'}\nnum_nodes: 2", {"gpus": 4, "instances": 2, "gpu_types": ["H100"]}),
        (
            "resources: {accelerators: 'A100:2..4'}\nnum_nodes: 2",
            {"gpus": 2, "instances": 2, "gpu_types": ["A100"], "gpu_range": (4, 8)},
        ),
        ("elastic: {min: 2, max: 8}", {"gpus": 2, "gpu_range": (2, 8)}),
        ("elastic: {max: 8}", {"gpu_range": (1, 8)}),
        ("gpus: 4\nelastic: {min: 2, max: 8}", {"gpus": 4, "gpu_range": (2, 8)}),
        ("gpus: 4\nelastic: {max: 8}", {"gpus": 4, "gpu_range": (4, 8)}),
        ("plan: dp2 tp4", {"gpus": 8, "plan": Plan(2, 4)}),
        ("plan: dp2 tp4\nnum_nodes: 2", {"gpus": 4, "instances": 2, "plan": Plan(2, 4)}),
    ],
)
def test_the_size_of_a_job_has_many_notations(text: str, overrides: dict[str, Any]) -> None:
    assert gives(text, **overrides)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("plan: off", "off"),
        ("plan: 'off'", "off"),
        ("plan: auto\nworkload: gpt2", "auto"),
        ("plan: DP4 TP2 ZeRO-1 recompute full accumulate 16", Plan(4, 2, zero=1, recompute="full", accumulation=16)),
        ("plan: {tp: 2}", Plan(4, 2)),
        ("plan: {fixed: {dp: 4, pp: 2, vpp: 2, sp: true}}", Plan(4, 1, 2, interleave=2, sequence_parallel=True)),
        ("plan: {data: 8, gc: selective, offload: true}", Plan(8, offload=True, recompute="selective")),
        ("plan: {data: 8, recompute: false}", Plan(8)),
    ],
)
def test_a_plan_is_off_auto_or_pinned(text: str, plan: Any) -> None:
    assert [submission.plan for submission in read(f"run: x\ngpus: 8\n{text}").submissions] == [plan]


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("run: [python, train.py, 3]", {"command": ["python", "train.py", "3"]}),
        (
            "name: a\nrun: [python, 'my file.py']\nsetup: pip install x",
            {
                "name": "a",
                "command": ["sh", "-c", 'set -e\npip install x\nset +e\nexec "$@"', "a", "python", "my file.py"],
            },
        ),
        ("run: x\ntime_limit: 90", {"time_limit": 90.0}),
        ("run: x\ntime_limit: 1h30m", {"time_limit": 5400.0}),
        ("run: x\nresources: {cpus: 0.5, accelerators: 1}", {"cpus": 0.5}),
        ("run: x\nresources: {cpus: auto, memory: auto, accelerators: 1}", {"cpus": "auto", "memory_gib": "auto"}),
        ("run: x\nresources: {memory: 512MB, accelerators: 1}", {"memory_gib": 0.5}),
        ("run: x\nworkdir: /data/../data/x", {"folder": "/data/x"}),
        ("run: x\nworkdir: .", {}),
        ("run: x\nnever_retry: boom", {"never_retry": ["boom"]}),
    ],
)
def test_fields_have_alternative_notations(text: str, overrides: dict[str, Any]) -> None:
    assert read(text) == SpecFile([job(**overrides)], [])


@pytest.mark.parametrize(
    ("text", "printed", "status"),
    [
        ("run: echo run", "run\n", 0),
        ("setup: echo setup\nrun: false; echo run", "setup\nrun\n", 0),
        ("setup: false; echo setup\nrun: echo run", "", 1),
        ("setup: export A=b\nrun: echo $A", "b\n", 0),
        ("setup: echo setup\nrun: [echo, 'a  b']", "setup\na  b\n", 0),
    ],
)
def test_setup_runs_first_and_its_failure_ends_the_job(text: str, printed: str, status: int) -> None:
    ended = subprocess.run(read(text).submissions[0].command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == (printed, status)


def test_a_file_may_have_several_jobs() -> None:
    found = read("name: a\nrun: x\n---\nname: b\nrun: x\n")
    assert found == SpecFile([job(name="a"), job(name="b")], [])


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (
            "resources:\n  cloud: aws\n  use_spot: true\n  image_id: x\n  accelerators: 1",
            [
                "job.yaml line 3: resources.cloud is ignored: jobs run on the nodes of this cluster",
                "job.yaml line 4: resources.use_spot is ignored: use class: best-effort",
                "job.yaml line 5: resources.image_id is ignored: the command runs directly on the node",
            ],
        ),
        (
            "file_mounts: {/data: s3://bucket}",
            ["job.yaml line 2: file_mounts is ignored: jobs run where the files are; use workdir"],
        ),
        (
            "plan: auto",
            ["job.yaml line 2: plan: auto has no effect without a workload that names the model, or a range of GPUs"],
        ),
        (
            "resources: {cpus: 4}",
            ["job.yaml line 2: resources has no accelerators, so the job gets no GPU; add gpus: 1 to request one"],
        ),
    ],
)
def test_ignored_fields_are_noted(text: str, notes: list[str]) -> None:
    assert read(f"run: x\n{text}").notes == notes


def test_a_job_that_requests_only_cpus_gets_no_gpu() -> None:
    assert gives("resources: {cpus: 4}", gpus=0, cpus=4.0)
    assert gives("resources: {cpus: 4}\ngpus: 1", cpus=4.0)


GPUS = "a number such as 8, a fraction of one GPU such as 0.5, a range such as 2..8, or with a type: H100:8"
PLAN = "auto, off, a plan such as 'dp8 tp2 zero1', or its degrees: {dp: 8, tp: 2, zero: 1}"
PLAN_KEYS = (
    "accumulate, accumulation, context, cp, data, dp, ep, expert, fixed, ga, gc, interleave, offload, pipeline, pp, "
    "recompute, replicate, sequence_parallel, sp, tensor, tp, vpp, zero"
)
DURATION = "a duration such as 90s, 15m or 1h30m"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpus: two GPUs!", f"gpus is 'two GPUs!', expected {GPUS}"),
        ("gpus: -1", f"gpus is -1, expected {GPUS}"),
        ("gpus: 1.5", f"gpus is 1.5, expected {GPUS}"),
        ("gpus: .nan", f"gpus is .nan, expected {GPUS}"),
        ("gpus: .inf", f"gpus is .inf, expected {GPUS}"),
        ("gpus: 1e300", f"gpus is 1e300, expected {GPUS}"),
        ("gpus: 99999999999", f"gpus is 99999999999, expected {GPUS}"),
        ("gpus: 70000", f"gpus is 70000, expected {GPUS}"),
        ("gpus: ٤", f"gpus is '٤', expected {GPUS}"),
        ("gpus: true", f"gpus is true, expected {GPUS}"),
        ("gpus:", f"gpus is empty, expected {GPUS}"),
        ("gpus: 8..2", f"gpus is '8..2', expected {GPUS}"),
        ("gpus: [8, 2]", f"gpus is a list, expected {GPUS}"),
        ("gpus: 0..2", f"gpus is '0..2', expected {GPUS}"),
        ("gpus: 0.0001", f"gpus is 0.0001, expected {GPUS}"),
        ("gpus: 'H100:'", f"gpus is 'H100:', expected {GPUS}"),
        ("gpus: 3\nnum_nodes: 2", "gpus is 3, expected a total number of GPUs that is divisible among 2 nodes"),
        (
            "gpus: 8\nnum_nodes: 2\ngpus_per_node: 2",
            "gpus is 8, expected a total number of GPUs that is divisible among 2 nodes with 2 each",
        ),
        (
            "gpus: 4\nresources: {accelerators: 'H100:8'}",
            "gpus: conflicts with resources.accelerators, expected the number of GPUs only once",
        ),
        ("resources: {accelerators: x y/z}", f"resources.accelerators is 'x y/z', expected {GPUS}"),
        (
            "resources: {accelerators: {H100: 8, A100: 4}}",
            "resources.accelerators.A100 is 4, expected the same number of GPUs for every type",
        ),
        (
            "resources: {accelerators: []}",
            "resources.accelerators is a list, expected GPU types such as {H100: 8, A100: 8}",
        ),
        ("resources: {cpus: many}", "resources.cpus is 'many', expected CPUs per node, such as 4 or 4+, or auto"),
        ("resources: {cpus: .nan}", "resources.cpus is .nan, expected CPUs per node, such as 4 or 4+, or auto"),
        ("resources: {cpus: 9999999999}", "resources.cpus is 9999999999, expected a number ≤ 1,048,576"),
        (
            "resources: {memory: -1}",
            "resources.memory is -1, expected memory per node in GiB, such as 32 or 32+, or auto",
        ),
        (
            "gpus_per_node: 8\nresources: {accelerators: 'H100:8'}",
            "gpus_per_node: conflicts with resources.accelerators, expected only one of them",
        ),
        (
            "gpus: H100:8\nresources: {accelerators: A100}",
            "gpus: conflicts with resources.accelerators, expected the GPU type only once",
        ),
        ("gpus: 0.5\ngpus_per_node: 1", "gpus: gpus_per_node requires whole GPUs"),
        ("time: 2h", "unknown field 'time'; use time_limit"),
        ("num_nodes: 0", "num_nodes is 0, expected a whole number ≥ 1"),
        ("num_nodes: 1.5", "num_nodes is 1.5, expected a whole number ≥ 1"),
        ("elastic: {min: 8, max: 2}", "elastic: is 8 to 2, expected whole GPUs and a range that includes 8"),
        ("gpus: 2..8\nelastic: {max: 4}", "elastic: conflicts with the range in gpus, expected only one of them"),
        (
            "gpus: 0.5\nelastic: {max: 4}",
            "elastic: is 1 to 4, expected whole GPUs and a range that includes 0.5",
        ),
        ("plan: {dp: 0}", "plan.dp is 0, expected a whole number ≥ 1"),
        ("plan: {dp: 2, data: 2}", "plan.data: data is given twice, expected once"),
        ("plan: {dq: 2}", f"plan: unknown field 'dq' (known: {PLAN_KEYS})"),
        ("plan: []", f"plan is a list, expected {PLAN}"),
        ("plan: {}", f"plan is keys and their values, expected {PLAN}"),
        ("plan: dp3\ngpus: 4", "plan: DP3 needs 3 GPUs, expected a plan for the requested 4"),
        ("plan: tp3\ngpus: 4", "plan: DP1 TP3 needs 3 GPUs, expected a plan for the requested 4"),
        ("priority: high", "priority is 'high', expected a whole number"),
        ("priority: 9999999999", "priority is 9999999999, expected a whole number"),
        ("class: gold", "class is 'gold', expected one of guaranteed, best-effort"),
        ("steps: -1", "steps is -1, expected a whole number from 0 to 1,099,511,627,776"),
        ("steps: 99999999999999", "steps is 99999999999999, expected a whole number from 0 to 1,099,511,627,776"),
        ("time_limit: soon", f"time_limit is 'soon', expected {DURATION}"),
        ("time_limit: 0", "time_limit is 0, expected a duration greater than 0, such as 15m"),
        ("time_limit: -3", f"time_limit is -3, expected {DURATION}"),
        ("time_limit: 99999d", f"time_limit is '99999d', expected {DURATION}, at most 3650 d"),
        (
            "hang: {no_progress: 3}",
            "hang: unknown field 'no_progress'; did you mean 'no_progress_for'? (known: no_progress_for)",
        ),
        ("reshape: {at_most: -1}", "reshape.at_most is -1, expected a whole number from 0 to 1,099,511,627,776"),
        ("reshape: {every: soon}", f"reshape.every is 'soon', expected {DURATION}"),
        ("checkpoint: {signal: KILL}", "checkpoint.signal is 'KILL', expected one of TERM, INT, USR1, USR2, HUP"),
        ("name: a b", "name is 'a b', expected a name of up to 64 letters, digits, '.', '_' and '-'"),
        ("name: ''", "name is '', expected a name of up to 64 letters, digits, '.', '_' and '-'"),
        ("envs: {A: }", "envs.A is empty, expected text; write '' for an empty value"),
        ("envs: {'A B': x}", "envs: 'A B' is not a valid variable name"),
        ("envs: [A]", "envs is a list, expected names and their values"),
        ("progress: step", r"progress is 'step', expected a pattern with a group such as 'step (\d+)'"),
        (
            "progress: (",
            "progress is '(', expected a regular expression: missing ): (; "
            "patterns have RE2 syntax (no back-references, no look-around)",
        ),
        ("hold: 1", "hold is 1, expected true or false"),
        ("retries: 1001", "retries is 1001, expected a whole number from 0 to 1,000"),
        ("after: [[a]]", "after[0] is a list, expected text"),
        ("workdir: {url: x}", "workdir is keys and their values, expected a folder"),
        ("workdir: ~unknown-user", "workdir is '~unknown-user', expected a folder"),
        ("run: y", "duplicate key 'run'"),
    ],
)
def test_errors_name_the_line(text: str, problem: str) -> None:
    where, _, found = error_of(f"run: x\n{text}").partition(": ")
    assert re.fullmatch(r"job\.yaml line [23]", where)
    assert found == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml line 1: has no jobs, expected the fields of a job, such as 'name: …' and 'run: …'"),
        ("# nothing", "job.yaml line 1: has no jobs, expected"),
        (
            "name: a",
            "job.yaml line 1: run is missing, expected a command: a shell command line, or a list of arguments",
        ),
        ("run: ''", "job.yaml line 1: run is '', expected a command: a shell command line, or a list of arguments"),
        ("run: []", "job.yaml line 1: run is a list, expected a command: a shell command line, or a list of arguments"),
        ("- [run]", "job.yaml line 1: [0] is a list, expected the fields of a job"),
        ("just text", "job.yaml line 1: the file is 'just text', expected the fields of a job"),
        ("run: x\n\nresource: {}", "job.yaml line 3: unknown field 'resource'; did you mean 'resources'? (known: "),
        (
            "run: x\nresources:\n  acelerators: 1",
            "job.yaml line 3: resources: unknown field 'acelerators'; did you mean 'accele",
        ),
        ("run: [", "job.yaml line 2: is not YAML: did not find expected node content"),
        ("run: \ud800", "job.yaml line 1: contains half of a surrogate pair, which is not a character"),
        ("run: x\nnever_retry: [ok, " + "x" * 513 + "]", "job.yaml line 2: never_retry[1] is 'xxx"),
        ("run: " + "x" * 2**17 + "x", "job.yaml line 1: run is 'xxx"),
        ("run: x\nsetup: " + "x" * 2**17, "job.yaml line 1: run has more than 131,072 characters"),
    ],
)
def test_a_file_that_is_not_a_job_is_rejected(text: str, problem: str) -> None:
    assert error_of(text).startswith(problem)


def test_errors_carry_path_line_and_field() -> None:
    with pytest.raises(BadRow) as row:
        read("run: x\nresources:\n  cpus: x")
    assert (row.value.path, row.value.line, row.value.column) == ("job.yaml", 3, "resources.cpus")
    with pytest.raises(BadLine) as line:
        read("run: x\nnam: y")
    assert (line.value.path, line.value.line) == ("job.yaml", 2)


def test_a_relative_folder_is_rejected_without_a_base_folder() -> None:
    with pytest.raises(BadRow, match="workdir is 'x', expected an absolute path to a folder"):
        parse_spec("run: x\nworkdir: x", "job", "job.yaml")


def test_a_file_is_read_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my job.yaml").write_text("run: x")
    assert read_spec(Path("my job.yaml")) == SpecFile([job(name="my-job", folder=str(tmp_path))], [])
    with pytest.raises(BadFile, match=r"none\.yaml: no such file"):
        read_spec(Path("none.yaml"))


def test_a_command_becomes_a_job_named_after_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["python", "-u", "src/train.py", "--fast"]
    assert submission_from_command(command) == Submission("train", command, folder=str(tmp_path))
    assert submission_from_command(["nvidia-smi"], gpus=2, name="check", folder="/") == Submission(
        "check", ["nvidia-smi"], gpus=2, folder="/"
    )


@pytest.mark.parametrize(
    ("command", "fields", "problem"),
    [
        ([], {}, "a job needs a command, such as `python train.py`"),
        (["x"], {"gpus": -1}, "gpus: expected int >= 0"),
        (["x"], {"name": "a b"}, "name is 'a b', expected letters, digits, '.', '_' and '-'"),
    ],
)
def test_an_invalid_command_is_rejected(command: list[str], fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as raised:
        submission_from_command(command, **fields)
    assert str(raised.value) == problem


def test_the_example_is_valid_and_runs() -> None:
    found = read_spec(ROOT / "examples" / "train.yaml", Path("/"))
    (submission,) = found.submissions
    assert found.notes == []
    assert (submission.name, submission.gpu_range, submission.steps, submission.stop_signal) == (
        "train",
        (1, 2),
        20,
        "USR1",
    )
    ended = subprocess.run(
        submission.command, env=submission.environment | {"STEPS": "2"}, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "before the first step\nstep 1\nstep 2\n"
    assert [found[1] for found in re.finditer(submission.progress, ended.stdout)] == ["1", "2"]


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("command: x", "unknown field 'command'; use run"),
        ("cmd: x", "unknown field 'cmd'; use run"),
        ("script: x", "unknown field 'script'; use run"),
        ("ngpus: 1", "unknown field 'ngpus'; use gpus"),
        ("gpu_range: [1, 2]", "unknown field 'gpu_range'; use gpus with a range, such as 2..8"),
        ("instances: 2", "unknown field 'instances'; use num_nodes"),
        ("walltime: 2h", "unknown field 'walltime'; use time_limit"),
        ("work: 2h", "unknown field 'work'; use estimate"),
        ("mem: 4", "unknown field 'mem'; use resources: {memory: 32}"),
        ("environment: {A: b}", "unknown field 'environment'; use envs"),
        ("cwd: /", "unknown field 'cwd'; use workdir"),
        ("job-name: a", "unknown field 'job-name'; use name"),
        ("depends_on: a", "unknown field 'depends_on'; use after"),
        ("delay: 10s", "unknown field 'delay'; use begin"),
    ],
)
def test_names_of_other_schedulers_have_a_hint(field: str, hint: str) -> None:
    assert error_of(f"run: x\n{field}") == f"job.yaml line 2: {hint}"


def test_hints_are_for_names_that_are_not_fields() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(JobFields)}
    assert fields.isdisjoint(JobFields.HINTS)
    assert {hint for hint in JobFields.HINTS.values() if re.split(r"\W", hint)[0] not in fields} == set()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\x00", "line 1: is not YAML: "),
        ("\x7fELF\x01", "line 1: is not YAML: "),
        ("run: x\n\tgpus: 1", "line 2: is not YAML: found a tab character that violates indentation"),
        ("run: x\nrun: y", "line 2: duplicate key 'run'"),
        ("run: x\nenvs: " + "{a: " * 40, "line 2: is nested too deeply, expected at most 32 levels"),
        ("run: x\nsteps: 1" + "0" * 30, "line 2: steps is 1000000000000000000000000000000, expected a whole number"),
        ("run: x\nsteps: .nan", "line 2: steps is .nan, expected a whole number"),
        ("run: x\nsteps: 2026-01-01", "line 2: steps is '2026-01-01', expected a whole number"),
        ("run: x\ntenant: yes", "line 2: tenant is yes, expected text of length ≤ 64; quote it"),
        ("run: yes", "line 1: run is yes, expected a command: a shell command line, or a list of arguments; quote it"),
        ("run: x\nhold: 'on'", "line 2: hold is 'on', expected true or false"),
        ("run: *x", "line 1: the alias 'x' has no anchor before it"),
        ("run: !!binary aGk=", "line 1: the tag 'binary' is not supported"),
        ("run: {a: b}", "line 1: run is keys and their values, expected a command"),
        ("run:", "line 1: run is empty, expected a command"),
        ("apiVersion: v1", "line 1: kind is missing"),
    ],
)
def test_garbage_is_rejected_with_its_line(text: str, problem: str) -> None:
    assert error_of(text).startswith(f"job.yaml {problem}")


def test_a_delay_is_relative_to_now() -> None:
    found = parse_spec("- {name: a, run: x}\n- {name: b, run: x, begin: 10s}", "job", "job.yaml", now=1000.0)
    assert [submission.begin for submission in found.submissions] == [None, 1010.0]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("train-7", ["train-7"]),
        ("[7, afterany:8]", ["7", "afterany:8"]),
        ("afterok:7:8,singleton", ["7", "8", "singleton"]),
        ("afternotok:train-7", ["afternotok:train-7"]),
    ],
)
def test_dependencies_are_read_as_slurm_writes_them(text: str, after: list[str]) -> None:
    assert read(f"run: x\nafter: {text}").submissions[0].after == after


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("after: afterburner:7", "after is 'afterburner:7', expected JOB, afterok:JOB"),
        ("after: 'afterany:'", "after is 'afterany:', expected JOB, afterok:JOB"),
        ("array: 3-1", "array is '3-1', expected task numbers such as 0-9"),
        ("array: [1, 2]", "array is a list, expected task numbers such as 0-9"),
        ("begin: yesterday", "begin is 'yesterday', expected a time within ten years, such as now+10m"),
    ],
)
def test_invalid_start_conditions_are_rejected(field: str, problem: str) -> None:
    assert error_of(f"run: x\n{field}").startswith(f"job.yaml line 2: {problem}")


def test_the_job_documentation_lists_every_field() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    inside = (f"resources.{key}" for key in (*RequestedResources.__struct_fields__, *UNSUPPORTED_RESOURCES))
    fields = [field.encode_name for field in msgspec.structs.fields(JobFields)]
    missing = [key for key in (*fields, *UNSUPPORTED, *inside) if f"`{key}" not in page]
    assert missing == []


def test_the_jobs_in_the_documentation_are_valid() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(yaml|bash)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["yaml", "bash"]
    assert [read(text).submissions[0].name for _, text in blocks] == ["llama", "train"]


def test_the_domains_of_a_gang_are_requested_by_level() -> None:
    text = "name: j\nrun: x\nnum_nodes: 8\ntopology: {required: block, segment: 4, segment_level: rack}"
    assert read(text).submissions[0].topology == TopologyRequest("block", segment=4, segment_level="rack")
    text = "name: j\nrun: x\nnum_nodes: 8\ntopology: {most: 2, wait: 10m}"
    assert read(text).submissions[0].topology == TopologyRequest(most=2, wait=600.0)
    assert "topology.wait" in error_of("run: x\nnum_nodes: 8\ntopology: {required: rack, wait: soon}")
    assert "topology.segment" in error_of("run: x\nnum_nodes: 8\ntopology: {segment: many}")
