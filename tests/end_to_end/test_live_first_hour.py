"""The first hour of a training engineer and of the owner of a workstation: a daemon, and everything typed by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from real_daemon import wait_until
from typed_shell import ESCAPES, Shell, daemon


def read_json(shell: Shell, command: str, arguments: str = "") -> Any:
    """Run a command with --json and return what it prints, without notes."""
    result = shell.succeed(f"{command} --json{arguments} 2> /dev/null")
    try:
        return json.loads(result.text)
    except ValueError:
        raise AssertionError(f"{command} --json printed {result.text!r}") from None


def submit(shell: Shell, words: str) -> str:
    """Submit a job and return its id."""
    name, _, command = f" {words}".partition(" -- ")
    [job] = read_json(shell, f"refold submit{name}", f" -- {command}")
    return str(job["id"])


def follow(shell: Shell, job: str) -> str:
    """Follow the output of a job until it ends; return it."""
    return shell.run(f"refold logs -f {job}").text


FROM_PYTHON = """
import refold

client = refold.Client()
print("".join(client.logs(client.submit(command=["python", "train.py"]).id, follow=True)))
"""

JOB = "name: tune\ngpus: 2\nestimate: 20m\nrun: python tune.py\n"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A folder whose `python` is not the daemon's, as in an active virtual environment."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text('#!/bin/sh\necho "python of the user in $PWD, FOO=$FOO"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="this Python is not in a virtual environment")
def test_the_commands_that_the_daemon_prints_work_in_another_terminal(tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != programs)
    if shutil.which("refold", path=path):
        pytest.skip("refold is also installed outside of this virtual environment")
    with Shell(tmp_path) as serving, Shell(tmp_path, path=path) as shell:
        serving.type("refold serve --port 0 --slots 2 < /dev/null\n")
        serving.expect("refold open")
        printed = ESCAPES.sub("", serving.output).partition("next, in another terminal:")[2].splitlines()
        commands = [line.strip() for line in printed if line.startswith("  ")]
        assert shell.run("refold queue").status == 127
        activate, submit_hello = commands[:2]
        assert activate == f"source {programs}/activate" and submit_hello.startswith("refold submit -- python")
        for command in (activate, submit_hello, "refold queue"):
            shell.succeed(command)
        assert serving.interrupt().status == 0


def test_a_training_engineer_submits_watches_and_ends_jobs(tmp_path: Path, venv: Path) -> None:
    with daemon(tmp_path), Shell(tmp_path) as shell:
        # Jobs run in the environment and the folder of their submitter.
        shell.succeed(f"export PATH={venv}:$PATH FOO=1; mkdir project; cd project")
        expected = f"python of the user in {tmp_path}/project, FOO=1"
        assert expected in follow(shell, submit(shell, "-- python train.py"))
        (tmp_path / "project" / "notebook.py").write_text(FROM_PYTHON)
        assert expected in shell.succeed("python3 notebook.py").words

        # A job that fails says why; so does one that can never run, at once.
        failing = submit(shell, "--output out.txt -- sh -c 'echo no such dataset; exit 3'")
        follow(shell, failing)
        assert "exit 3" in shell.succeed(f"refold why {failing}").words
        assert (tmp_path / "project" / "out.txt").read_text() == "no such dataset\n"
        impossible = shell.run("refold submit --gpus 64 -- sleep 1")
        assert impossible.status == 2 and "--allow-impossible" in impossible.words
        shell.succeed(f"refold cancel {submit(shell, '--gpus 64 --allow-impossible -- sleep 1')}")

        # A job ends at its time limit, which is not a hang; its output does not change the terminal.
        limited = submit(shell, "--time 1s -- sh -c 'printf \"\\033[2Jstarted\\n\"; sleep 600'")
        assert "started" in follow(shell, limited)
        ended = shell.succeed(f"refold why {limited}").words
        assert "timed out" in ended and "beyond its time limit of 1 s" in ended and "hang" not in ended
        assert "started" in shell.succeed(f"refold logs {limited}").text
        assert "\x1b[2J" not in shell.output
        shell.succeed(f"refold logs --raw {limited}")
        assert "\x1b[2J" in shell.output

        # Arrays, dependencies, and a queue that can be read at every width.
        long = submit(shell, "--name long --gpus 4 --time 30m -- sleep 600")
        shell.succeed("refold submit --name sweep --array 0-3%2 -- sleep 600")
        after = submit(shell, f"--name after --after afterany:{long} -- true")
        queue = read_json(shell, "refold queue")["jobs"]
        tasks = sorted(job["id"] for job in queue if job["name"] == "sweep")
        assert [re.sub(r"-\d+_", "-N_", task) for task in tasks] == [f"sweep-N_{number}" for number in range(4)]
        for columns in (80, 100, 120):
            shell.succeed(f"stty cols {columns}")
            lines = shell.succeed("refold queue --start 2> /dev/null").lines
            assert max(map(len, lines)) <= columns, "\n".join(lines)
            for job in (long, after, *tasks):
                assert sum(job in line.split() for line in lines) == 1, (job, "\n".join(lines))
            header = lines[1]  # one table: everything about a job is in its row
            assert "job" in header.split() and "start" in header.split()
            assert not any("(reason)" in line for line in lines[2:]), "\n".join(lines)

        # What would be, before it is.
        (tmp_path / "project" / "tune.yaml").write_text(JOB)
        variants = read_json(shell, "refold whatif tune.yaml --gpus 1,4")["variants"]
        assert [one["variant"] for one in variants] == ["as given: 2 GPUs", "1 GPU", "4 GPUs"]
        assert all(one["fits"] for one in variants)

        array = tasks[0].rpartition("_")[0]
        assert "matches 2 jobs" in shell.succeed(f"refold cancel '{array}_[2-3]'").words
        assert "matches 2 jobs" in shell.succeed(f"refold hold {array}").words
        shell.succeed(f"refold cancel --now {array} {long}")
        assert follow(shell, after).splitlines()[-1].endswith("finished")
        assert shell.run("refold cancel 'nothing-*'").status == 2


def test_start_estimates_are_unknown_at_first_and_bounded_by_time_limits(tmp_path: Path) -> None:
    def estimate(shell: Shell, job: str) -> Any:
        [found] = [one for one in read_json(shell, "refold queue --start")["jobs"] if one["id"] == job]
        return found["start_estimate"]

    with daemon(tmp_path, "--slots 1"), Shell(tmp_path) as shell:
        endless = submit(shell, "--name endless -- sleep 1000")
        waiting = submit(shell, "--name waiting -- sleep 1")
        assert estimate(shell, waiting) is None
        shell.succeed(f"refold cancel --now {endless} {waiting}")

        limited = submit(shell, "--name limited --time 30m -- sleep 1000")
        waiting = submit(shell, "--name waiting -- sleep 1")
        now = read_json(shell, "refold queue")["now"]
        wait_until(lambda: estimate(shell, waiting))  # made in the background
        assert now <= estimate(shell, waiting)["latest"] <= now + 31 * 60
        shell.succeed(f"refold cancel --now {limited}")
        assert "finished" in follow(shell, waiting)


def test_an_interactive_shell_holds_gpus_until_it_ends(tmp_path: Path) -> None:
    with daemon(tmp_path, "--slots 2"), Shell(tmp_path) as shell, Shell(tmp_path) as other:
        shell.type("refold shell --gpus 2\n")
        shell.expect("<<0>> ")  # the prompt of the shell on the allocation
        shell.type("echo the job is $REFOLD_JOB.\n")
        shell.expect("the job is shell-1.")
        assert "shell-1" in other.succeed("refold queue").words
        later = submit(other, "--name later -- sh -c 'echo started at last; exit 4'")
        other.type(f"refold attach {later}\n")
        shell.type("exit 5\n")
        other.expect("started at last")
        other.type("echo attach ended with $?\n")
        other.expect("attach ended with 4")
        shell.type("echo the shell ended with $?\n")
        shell.expect("the shell ended with 5")


CONFIG = """\
cluster:
  slots: {slots}
tenants:
{tenants}
"""


def test_the_owner_changes_tenants_and_gpus_and_loses_nothing(tmp_path: Path) -> None:
    config = tmp_path / "refold.yaml"

    def configure(slots: int, *tenants: str) -> None:
        quotas = "".join(f"  {tenant}: {{quota_gpus: 1}}\n" for tenant in tenants)
        config.write_text(CONFIG.format(slots=slots, tenants=quotas))

    with Shell(tmp_path) as shell:
        shell.type("refold init\n")
        shell.expect("preemption [consent]: ")
        shell.type("often\n")
        shell.expect("'often' is none of consent, always, never")
        shell.type("always\n")
        shell.expect("wrote refold.yaml")
        assert "preemption:\n  default: always\n" in config.read_text()
    configure(2, "vision")
    with daemon(tmp_path, "--config refold.yaml"), Shell(tmp_path) as shell:
        for _ in range(3):
            follow(shell, submit(shell, "--tenant vision -- true"))
    configure(3, "vision", "speech")
    with daemon(tmp_path, "--config refold.yaml"), Shell(tmp_path) as shell:
        follow(shell, submit(shell, "--tenant speech --gpus 3 -- true"))
        assert len(read_json(shell, "refold history")) == 4
        assert "jobs 4 finished 4" in shell.succeed("refold report").words
        assert (tmp_path / "refold-report" / "report.html").stat().st_size > 20_000
        # A drained GPU is counted the same everywhere, and is not a lost node.
        shell.succeed("refold drain localhost --gpu 2 --reason 'broken fan'")
        assert "2 of 3 slots free" in shell.succeed("refold queue").words
        nodes = shell.succeed("refold nodes").words
        assert "broken fan" in nodes and "lost" not in nodes
        shell.succeed("refold resume localhost --gpu 2")
        assert "3 of 3 slots free" in shell.succeed("refold queue").words
