"""Slurm batch scripts: `#SBATCH` directives, notes and errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from refold.client.api.submissions import Submission
from refold.client.jobspec.reader import SpecFile, parse_spec, read_spec
from refold.client.jobspec.sbatch import SRUN_FUNCTION
from refold.errors import RefoldError
from refold.model import TopologyRequest

ROOT = Path(__file__).parents[3]
ONCE_PER_NODE = "job.sh line 1: the script does not call srun: it runs once on every node, not only on the first"
ONCE_PER_TASK = (
    "job.sh line 1: srun starts no tasks here: the whole script runs once per task, with the task's variables"
)


def script(*directives: str, command: str = "echo hello") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in directives), command, ""])


def read(*directives: str, command: str = "echo hello") -> SpecFile:
    return parse_spec(script(*directives, command=command), "job", "job.sh")


def job(*directives: str, command: str = "echo hello", **overrides: Any) -> Submission:
    """Return the expected one of a script, with defaults except for `overrides`."""
    text = script(*directives, command=command)
    defaults: dict[str, Any] = {"name": "job", "gpus": 0, "cpus": 1.0 if not overrides.get("gpus") else 0.0}
    fields = defaults | overrides
    fields["command"] = ["bash", "-c", SRUN_FUNCTION + text if "srun" in command else text, fields["name"]]
    fields["environment"] = {
        "SLURM_JOB_NAME": fields["name"],
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
    } | overrides.get("environment", {})
    return Submission(**fields)


def nodes(count: int, **more: str) -> dict[str, str]:
    return {"SLURM_JOB_NUM_NODES": str(count), "SLURM_NNODES": str(count)} | more


def error_of(*directives: str) -> str:
    with pytest.raises(RefoldError) as raised:
        read(*directives)
    return str(raised.value)


@pytest.mark.parametrize(
    ("directive", "overrides"),
    [
        ("--job-name=train", {"name": "train"}),
        ("-J train", {"name": "train"}),
        ("-Jtrain", {"name": "train"}),
        ('--job-name="train"', {"name": "train"}),
        ("--job-name train # a comment", {"name": "train"}),
        ("--gpus=4", {"gpus": 4}),
        ("-G 4", {"gpus": 4}),
        ("--gpus=a100:4", {"gpus": 4, "gpu_types": ["a100"]}),
        ("--gpus-per-node=2", {"gpus": 2, "environment": {"SLURM_GPUS_PER_NODE": "2"}}),
        ("--gres=gpu", {"gpus": 1}),
        ("--gres=gpu:2", {"gpus": 2}),
        ("--gres=gpu:a100", {"gpus": 1, "gpu_types": ["a100"]}),
        ("--gres=gpu:a100:2", {"gpus": 2, "gpu_types": ["a100"]}),
        ("--gres=none", {}),
        ("--cpus-per-task=8", {"cpus": 8.0, "environment": {"SLURM_CPUS_PER_TASK": "8"}}),
        ("-c8", {"cpus": 8.0, "environment": {"SLURM_CPUS_PER_TASK": "8"}}),
        ("-G 2 --cpus-per-gpu=4 --mem-per-gpu=16G", {"gpus": 2, "cpus": 8.0, "memory_gib": 32.0}),
        ("--mem=2048", {"memory_gib": 2.0}),
        ("--mem=524288K", {"memory_gib": 0.5}),
        ("--mem=512M", {"memory_gib": 0.5}),
        ("--mem=32G", {"memory_gib": 32.0}),
        ("--mem=1T", {"memory_gib": 1024.0}),
        ("--mem-per-cpu=2G -c 4", {"memory_gib": 8.0, "cpus": 4.0, "environment": {"SLURM_CPUS_PER_TASK": "4"}}),
        ("--time=90", {"time_limit": 5400.0}),
        ("-t 90:30", {"time_limit": 5430.0}),
        ("-t 1:30:00", {"time_limit": 5400.0}),
        ("-t 1-12", {"time_limit": 129600.0}),
        ("-t 1-12:30", {"time_limit": 131400.0}),
        ("-t 1-12:30:15", {"time_limit": 131415.0}),
        ("-t 0", {}),
        ("-t UNLIMITED", {}),
        ("--account=vision", {"tenant": "vision", "environment": {"SLURM_JOB_ACCOUNT": "vision"}}),
        ("--chdir=/data", {"folder": "/data"}),
        ("--requeue", {"retries": 1, "preemptible": True}),
        ("--no-requeue", {"preemptible": False}),
        ("--dependency=afterok:12", {"after": ["12"]}),
        ("--dependency=afterok:1:2,afterany:3,singleton", {"after": ["1", "2", "afterany:3", "singleton"]}),
        ("-d afternotok:train-7", {"after": ["afternotok:train-7"]}),
        ("--array=0-9:2%4", {"array": "0-9:2%4"}),
        ("-o out/%j.txt -e /dev/null", {"output": "out/%j.txt", "error": "/dev/null"}),
        ("-a 7", {"array": "7"}),
        ("-d afterok:12:13,afterok:job-14", {"after": ["12", "13", "job-14"]}),
        ("--signal=USR1@60", {"stop_signal": "USR1", "grace": 60.0}),
        ("--signal=B:SIGUSR2@300", {"stop_signal": "USR2", "grace": 300.0}),
        ("--signal=10", {"stop_signal": "USR1", "grace": 60.0}),
        ("--hold", {"hold": True}),
        ("-H", {"hold": True}),
        ("--nice", {"priority": -100}),
        ("--nice=-5", {"priority": 5}),
        ("--priority=7", {"priority": 7}),
        ("--comment='for # the paper'", {}),
        ("--time=10 --time=20", {"time_limit": 1200.0}),
    ],
)
def test_a_directive_has_its_meaning_in_slurm(directive: str, overrides: dict[str, Any]) -> None:
    assert read(directive) == SpecFile([job(directive, **overrides)], [])


@pytest.mark.parametrize(
    ("directives", "overrides", "notes"),
    [
        (
            ["-N 2 --gpus-per-node=8"],
            {"instances": 2, "gpus": 8, "environment": nodes(2, SLURM_GPUS_PER_NODE="8")},
            [ONCE_PER_NODE],
        ),
        (["-N 2", "-G 8"], {"instances": 2, "gpus": 4, "environment": nodes(2)}, [ONCE_PER_NODE]),
        (
            ["-N2 -n 8 -c 2"],
            {"instances": 2, "cpus": 8.0, "environment": nodes(2, SLURM_CPUS_PER_TASK="2")},
            [ONCE_PER_NODE],
        ),
        (["-n 4 --gpus-per-task=1"], {"gpus": 4}, [ONCE_PER_NODE]),
    ],
)
def test_a_script_without_srun_runs_once_per_node(
    directives: list[str], overrides: dict[str, Any], notes: list[str]
) -> None:
    assert read(*directives) == SpecFile([job(*directives, **overrides)], notes)


@pytest.mark.parametrize(
    ("directives", "overrides"),
    [
        (
            ["-N 2 --ntasks-per-node=4 --gres=gpu:4 --mem=64G -c 8"],
            {
                "instances": 8,
                "gpus": 1,
                "cpus": 8.0,
                "memory_gib": 16.0,
                "environment": nodes(2, SLURM_NTASKS_PER_NODE="4", SLURM_CPUS_PER_TASK="8"),
            },
        ),
        (["-n 4 --gpus-per-task=2"], {"instances": 4, "gpus": 2}),
        (["-n 4 --gpus=8"], {"instances": 4, "gpus": 2}),
        (
            ["-n 8 --ntasks-per-node=4 --gpus-per-task=1"],
            {"instances": 8, "gpus": 1, "environment": nodes(2, SLURM_NTASKS_PER_NODE="4")},
        ),
    ],
)
def test_a_script_that_calls_srun_runs_once_per_task(directives: list[str], overrides: dict[str, Any]) -> None:
    found = read(*directives, command="srun python train.py")
    assert found == SpecFile([job(*directives, command="srun python train.py", **overrides)], [ONCE_PER_TASK])


@pytest.mark.parametrize(
    "call",
    [
        "srun echo 'a  b'",
        "srun -n 4 --label --ntasks-per-node=2 -l -c8 --cpu-bind none echo 'a  b'",
        "true && srun --unbuffered -- echo 'a  b'",
        "if true; then srun --mpi pmix echo 'a  b'; fi",
    ],
)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_srun_runs_its_command(call: str, shell: str) -> None:
    (submission,) = parse_spec(f"#!/bin/{shell}\n{call}\n", "job", "job.sh").submissions
    assert subprocess.run(submission.command, capture_output=True, text=True, check=True).stdout == "a  b\n"


def test_a_script_runs_unchanged() -> None:
    text = '#!/bin/bash -e\n#SBATCH -J me\necho "$0 $BASH_VERSION" | cut -c1-3\nfalse\necho no\n'
    (submission,) = parse_spec(text, "job", "job.sh").submissions
    assert submission.command == ["bash", "-e", "-c", text, "me"]
    ended = subprocess.run(submission.command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("me \n", 1)


@pytest.mark.parametrize(
    ("first", "program"),
    [
        ("#!/bin/sh", ["sh"]),
        ("#!/usr/bin/env bash", ["bash"]),
        ("#!/usr/bin/env -S bash -eu", ["bash", "-eu"]),
        ("#!/usr/bin/python3", ["python3"]),
        ("#SBATCH -H", ["sh"]),
        ("\n# by ann\n#SBATCH -H", ["sh"]),
    ],
)
def test_the_shebang_selects_the_interpreter(first: str, program: list[str]) -> None:
    (submission,) = parse_spec(f"{first}\n", "job", "job.txt").submissions
    assert submission.command == [*program, "-c", f"{first}\n", "job"]


def test_srun_in_python_is_not_a_call() -> None:
    text = "#!/usr/bin/env python\nsrun = 3\n"
    assert parse_spec(text, "job", "job").submissions[0].command == ["python", "-c", text, "job"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_spec("\ufeff#!/bin/bash\n", "job", "job").submissions[0].command == [
        "bash",
        "-c",
        "#!/bin/bash\n",
        "job",
    ]


def test_a_script_is_recognised_by_its_file_name() -> None:
    assert parse_spec("echo\n", "job", "job.sh").submissions[0].command == ["sh", "-c", "echo\n", "job"]


def test_directives_end_at_the_first_command() -> None:
    text = "#!/bin/sh\n\n# a comment\n##SBATCH --time=1\n#SBATCHED\n#SBATCH -J a\n\necho\n#SBATCH --nonsense\n"
    found = parse_spec(text, "job", "job.sh")
    assert (found.submissions[0].name, found.submissions[0].time_limit) == ("a", None)
    assert found.notes == ["job.sh line 9: #SBATCH after the first command is ignored, as in Slurm"]


def test_windows_line_ends_are_converted() -> None:
    (submission,) = parse_spec("#!/bin/sh\r\n#SBATCH -J a\r\necho\r\n", "job", "job.sh").submissions
    assert submission.command == ["sh", "-c", "#!/bin/sh\n#SBATCH -J a\necho\n", "a"]


def test_a_script_runs_in_the_folder_of_submission() -> None:
    (submission,) = parse_spec(script("--chdir=out"), "job", "job.sh", "/home/ann").submissions
    assert (submission.folder, submission.environment["SLURM_SUBMIT_DIR"]) == ("/home/ann/out", "/home/ann")


@pytest.mark.parametrize(
    ("directive", "export", "variables"),
    [
        ("--export=ALL,A=b,C='d e'", "ALL,A=b,C=d e", {"A": "b", "C": "d e"}),
        ("--export=NONE", "NONE", {}),
        ("--export=NIL", "NONE", {}),
        ("--export=PATH,SEED", "PATH,SEED", {}),
    ],
)
def test_the_exported_variables_are_returned_with_the_job(
    directive: str, export: str, variables: dict[str, str]
) -> None:
    assert read(directive) == SpecFile([job(directive, environment=variables)], [], export)


@pytest.mark.parametrize(("command", "instances", "segment"), [("python x.py", 4, 2), ("srun python x.py", 8, 4)])
def test_a_segment_is_the_instances_of_so_many_nodes(command: str, instances: int, segment: int) -> None:
    [read_job] = read("--nodes=4 --ntasks-per-node=2 --segment=2", command=command).submissions
    assert (read_job.instances, read_job.topology) == (instances, TopologyRequest(segment=segment))


@pytest.mark.parametrize(
    ("option", "most", "wait"),
    [("1", 1, 300.0), ("2@10", 2, 600.0), ("1@1:00:00", 1, 3600.0), ("1@UNLIMITED", 1, None)],
)
def test_a_number_of_switches_is_waited_for(option: str, most: int, wait: float | None) -> None:
    [read_job] = read(f"--nodes=4 --switches={option}").submissions
    assert read_job.topology == TopologyRequest(most=most, wait=wait)


@pytest.mark.parametrize("option", ["0", "x", "1@", "1@x", "@5"])
def test_switches_are_a_number_and_a_time(option: str) -> None:
    assert "expected switches and how long to wait for them" in error_of(f"--nodes=4 --switches={option}")


def test_segments_divide_the_nodes() -> None:
    problem = "a job has 6 instances, which cannot be divided into segments of 4"
    assert problem in error_of("--nodes=6 --segment=4")


def test_an_array_has_at_most_ten_thousand_tasks() -> None:
    assert "expected task numbers" in error_of("--array=0-10000")
    assert read("--array=0-9999").submissions[0].array == "0-9999"


def test_a_begin_time_is_relative_to_now() -> None:
    found = parse_spec(script("--begin=now+1hour"), "job", "job.sh", now=1000.0)
    assert found.submissions[0].begin == 4600.0


PARTITION = "select a GPU type with --gres=gpu:TYPE:N; on Slurm, the partition is that of the chosen nodes"
SITE = "the daemon submits all jobs alike: set it in the section `slurm` of refold.yaml"


@pytest.mark.parametrize(
    ("directive", "note"),
    [
        ("-p gpu", f"--partition is ignored: {PARTITION}"),
        (
            "--open-mode=append",
            "--open-mode is ignored: the first run replaces the output file, later ones append",
        ),
        ("--mail-type=END", "--mail-type is ignored: use `refold submit --notify mailto://…`"),
        ("--nodelist=n1", "--nodelist is ignored: the scheduler chooses the nodes"),
        ("--constraint=ib", f"--constraint is ignored: {SITE}"),
        ("--reservation=maint", f"--reservation is ignored: {SITE}"),
        ("--gpus-per-socket=2", "--gpus-per-socket is ignored: it is not supported"),
        (
            "--kill-on-invalid-dep=no",
            "--kill-on-invalid-dep=no is ignored: a job whose dependency has failed is ended",
        ),
        (
            "--get-user-env",
            "--get-user-env is ignored: the job has the environment of the submitting shell (--export)",
        ),
        (
            "--qos=high",
            "--qos is ignored: use `refold submit --class best-effort` for jobs that may be preempted; on Slurm, see "
            "slurm.qos in refold.yaml",
        ),
        ("--mem=0", "--mem=0 means all memory of a node in Slurm; here no memory is requested"),
        ("--gres=nvme:1", "--gres supports only GPUs: other resources in 'nvme:1' are ignored"),
        ("--job-name='a b'", "the job is renamed to 'a-b': names may contain only letters, digits, '.', '_' and '-'"),
        ("--nodes=1-4", "--nodes is a range: the job requests the minimum, 1"),
    ],
)
def test_ignored_options_are_noted(directive: str, note: str) -> None:
    assert read(directive).notes == [f"job.sh line 2: {note}"]


def test_a_job_whose_dependency_fails_is_ended_as_it_asks_for() -> None:
    assert read("--kill-on-invalid-dep=yes").notes == []


EXPECTED_BEGIN = "a time within ten years, such as now+10m, 16:00, tomorrow or 2026-12-31T08:00"
EXPECTED_DEPENDENCY = "JOB, afterok:JOB, afterany:JOB, afternotok:JOB or singleton"
EXPECTED_TASKS = "task numbers such as 0-9, 1,3,5-7 or 0-99:10%4, at most 10,000 tasks"
EXPECTED_TIME = "a time such as 90 (minutes), 90:00, 1:30:00, 1-12 or 1-12:30:00"


@pytest.mark.parametrize(
    ("directive", "problem"),
    [
        ("--time=soon", f"--time is 'soon', expected {EXPECTED_TIME}"),
        ("--time=1:2:3:4", f"--time is '1:2:3:4', expected {EXPECTED_TIME}"),
        ("--time=-5", f"--time is -5, expected {EXPECTED_TIME}"),
        ("--time=999999-0", "--time is '999999-0', expected a number ≤ 315,360,000"),
        ("--time", "--time has no value, expected --time=…"),
        ("--time=''", f"--time is '', expected {EXPECTED_TIME}"),
        ("--time='1", '#SBATCH has "--time=\'1", expected a closing quote'),
        ("--nodes=none", "--nodes is 'none', expected a number of nodes ≥ 1"),
        ("--nodes=0", "--nodes is 0, expected a number of nodes ≥ 1"),
        ("--nodes=4-2", "--nodes is '4-2', expected a number of nodes ≥ 1"),
        ("-N 2 -n 3", "--ntasks is 3, expected the same number of tasks on each of 2 nodes"),
        ("-n 7 --ntasks-per-node=4", "--ntasks is 7, expected the same number of tasks on each of 2 nodes"),
        ("-N 2 -G 3", "--gpus is 3, expected a number that is divisible among 2 instances"),
        (
            "-N 60000 --ntasks-per-node=60000 --gpus-per-task=60000",
            "--gpus-per-task is 60000, expected a whole number ≤ 63,488",
        ),
        ("--gpus=-1", "--gpus is -1, expected GPUs such as 4 or a100:4"),
        ("--gpus=0.5", "--gpus is '0.5', expected GPUs such as 4 or a100:4"),
        ("--gpus=1..2", "--gpus is '1..2', expected GPUs such as 4 or a100:4"),
        ("--gres=gpu:x:y", "--gres is 'gpu:x:y', expected GPUs such as gpu:4 or gpu:a100:4"),
        ("--gres=gpu:a:1,gpu:b:1", "--gres is 'gpu:a:1,gpu:b:1', expected GPUs such as gpu:4 or gpu:a100:4"),
        ("--cpus-per-task=NaN", "--cpus-per-task is 'NaN', expected a whole number ≥ 1"),
        ("--mem=lots", "--mem is 'lots', expected memory such as 4000 (MiB), 512M or 32G"),
        ("--mem=99999999T", "--mem is '99999999T', expected a number ≤ 1,048,576"),
        ("--signal=KILL", "--signal is 'KILL', expected a signal such as USR1@60, one of TERM, INT, USR1, USR2, HUP"),
        ("--signal=@3", "--signal is '@3', expected a signal such as USR1@60, one of TERM, INT, USR1, USR2, HUP"),
        ("--dependency=after:3", f"--dependency is 'after:3', expected {EXPECTED_DEPENDENCY}"),
        ("--dependency=afterok:1?afterok:2", f"--dependency is 'afterok:1?afterok:2', expected {EXPECTED_DEPENDENCY}"),
        ("--begin=soon", f"--begin is 'soon', expected {EXPECTED_BEGIN}"),
        ("--begin=now+999weeks", f"--begin is 'now+999weeks', expected {EXPECTED_BEGIN}"),
        ("--priority=TOP", "--priority is 'TOP', expected a whole number"),
        ("--array=3-1", f"--array is '3-1', expected {EXPECTED_TASKS}"),
        ("--array=1,x", f"--array is '1,x', expected {EXPECTED_TASKS}"),
        ("--array=0-9%0", f"--array is '0-9%0', expected {EXPECTED_TASKS}"),
        ("--chdir=x", "--chdir is 'x', expected an absolute path to a folder"),
        ("--export='A B=c'", "--export: 'A B' is not a valid variable name"),
        ("train", "#SBATCH is 'train', expected an option, such as --time=1:00:00"),
    ],
)
def test_errors_name_the_line(directive: str, problem: str) -> None:
    assert error_of("-J a", directive) == f"job.sh line 3: {problem}"


def test_an_unknown_option_is_reported_with_the_nearest_name() -> None:
    assert error_of("--gpu-per-node=2").startswith(
        "job.sh line 2: unknown option '--gpu-per-node'; did you mean '--gpus-per-node'?"
    )
    assert error_of("-Z").startswith("job.sh line 2: unknown option '-Z'")


def test_an_unsupported_interpreter_is_rejected() -> None:
    with pytest.raises(
        RefoldError,
        match="job line 1: the interpreter 'perl' is not supported, expected a first line such as #!/bin/bash",
    ):
        parse_spec("#!/usr/bin/perl\n", "job", "job")


def test_the_example_is_valid_and_runs() -> None:
    found = read_spec(ROOT / "examples" / "train.sbatch", Path("/"))
    [first] = found.submissions
    assert (first.name, first.gpus, first.array) == ("train", 1, "1-2")
    assert (first.output, found.notes) == ("train-%A_%a.out", [])
    variables = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2", **first.environment}
    ended = subprocess.run(first.command, env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[0] == "task 1 of 2: step 1"
