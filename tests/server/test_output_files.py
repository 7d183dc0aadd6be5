"""Copies of the output in files of the job (`--output`, `--error`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold.core.events import Event, RunFailed, RunFinished, RunStarted, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.engines.local.backend import LocalBackend
from refold.engines.local.process import Process, is_alive
from refold.model import Allocation, ArrayTask, Job, Launch, Share
from refold.server.output.run_files import log_path

TIMEOUT_SECONDS = 20.0


def run_job(
    folder: Path, script: str, run: int = 1, instances: int = 1, stop_at: str = "", **launch: Any
) -> list[Event]:
    """Run a shell script as a job; with `stop_at`, stop it once this file exists. Returns the reports."""
    reports: list[Event] = []
    settings = Launch(folder=str(folder), **launch)
    job = Job("train-14", command=("sh", "-c", script), group="train", user="ann", launch=settings)

    async def main() -> None:
        backend = LocalBackend(reports.append, folder / "logs", grace=10.0)
        start = StartRun(job.id, run, Allocation(tuple(Share(0, (index,)) for index in range(instances))))
        await backend.carry_out([start], {job.id: job})
        if stop_at:
            while not (folder / stop_at).exists():
                await asyncio.sleep(0.01)
            await backend.carry_out([StopRun(job.id, run, "test")], {job.id: job})
        while len(reports) < 1 or isinstance(reports[-1], RunStarted):
            await asyncio.sleep(0.01)
        await backend.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_SECONDS))
    return reports


def log_of(folder: Path, run: int = 1, instance: int = 0) -> str:
    return log_path(folder / "logs", "train-14", run, instance).read_text()


def test_the_output_is_in_the_file_and_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    reports = run_job(tmp_path, "echo one; echo two >&2; exit 3", output="out/%x-%j.txt")
    assert reports[-1] == RunFailed("train-14", 1, "exit 3", exit_code=3)
    assert (tmp_path / "out" / "train-14.txt").read_text() == "one\ntwo\n" == log_of(tmp_path)
    assert list((tmp_path / "logs").rglob("*pipe")) == []


def test_errors_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    assert run_job(tmp_path, "echo one; echo two >&2", output="out", error="%u.err")[-1] == RunFinished("train-14", 1)
    assert ((tmp_path / "out").read_text(), (tmp_path / "ann.err").read_text()) == ("one\n", "two\n")
    assert sorted(log_of(tmp_path).splitlines()) == ["one", "two"]
    run_job(tmp_path, "echo one; echo three >&2", run=2, error="ann.err")
    assert (tmp_path / "ann.err").read_text() == "two\nthree\n"
    assert sorted(log_of(tmp_path, run=2).splitlines()) == ["one", "three"]


def test_the_first_run_replaces_the_file_and_later_runs_append(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("of another job\n")
    run_job(tmp_path, "echo first", output="out")
    run_job(tmp_path, "echo second", run=2, output="out")
    assert (tmp_path / "out").read_text() == "first\nsecond\n"


def test_instances_share_a_file_or_have_one_each(tmp_path: Path) -> None:
    run_job(tmp_path, "sleep 0.2; echo $REFOLD_INSTANCE", instances=2, output="all", error="%t.err")
    assert sorted((tmp_path / "all").read_text().split()) == ["0", "1"]
    assert sorted(path.name for path in tmp_path.glob("*.err")) == ["0.err", "1.err"]
    assert [log_of(tmp_path, instance=instance) for instance in (0, 1)] == ["0\n", "1\n"]


def test_a_task_of_an_array_has_its_numbers_in_the_name(tmp_path: Path) -> None:
    place = ArrayTask("train-12", 3, number=14, count=1, minimum=3, maximum=3)
    run_job(tmp_path, "echo x", output="%A_%2a-%j", array=place)
    assert (tmp_path / "12_03-14").read_text() == "x\n"


def test_output_after_a_stop_signal_is_copied(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo ready; touch ready; while :; do sleep 0.05; done"
    reports = run_job(tmp_path, script, stop_at="ready", output="out")
    assert isinstance(reports[-1], RunStopped | RunFinished)
    lines = (tmp_path / "out").read_text().splitlines()
    assert (lines[0], lines[-1], lines) == ("ready", "saved", log_of(tmp_path).splitlines())


def test_large_output_is_copied_completely(tmp_path: Path) -> None:
    run_job(tmp_path, "seq 200000", output="out")
    assert (tmp_path / "out").read_text() == log_of(tmp_path)
    assert (tmp_path / "out").read_text().endswith("\n200000\n")


def test_a_process_that_outlives_the_command_does_not_block_the_end(tmp_path: Path) -> None:
    stubborn = "sh -c 'trap \"\" TERM; echo $$ >pid; exec sleep 1000' &"
    script = f"{stubborn} while [ ! -s pid ]; do sleep 0.02; done; echo done"
    assert run_job(tmp_path, script, output="out", grace=0.1)[-1] == RunFinished("train-14", 1)
    assert (tmp_path / "out").read_text() == "done\n"
    assert not is_alive(Process(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("absent/out", "{}/absent/out cannot be written: No such file or directory"),
        (".", "{} cannot be written: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_fails_the_run(output: str, why: str, tmp_path: Path) -> None:
    assert run_job(tmp_path, "echo x", output=output) == [RunFailed("train-14", 1, why.format(tmp_path))]


def test_output_can_be_discarded(tmp_path: Path) -> None:
    run_job(tmp_path, "echo x", output="/dev/null")
    assert log_of(tmp_path) == "x\n"
