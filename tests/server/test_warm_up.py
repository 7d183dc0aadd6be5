"""A daemon whose policy is not compiled yet answers and starts jobs; the policy takes over when it is compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real_daemon import RealDaemon, wait_until

from refold.backends.local import local_cluster
from refold.client.client import Client
from refold.core import Header
from refold.jit import kernel_folder
from refold.journal import check_replay, read_journal
from refold.registry import make_policy
from refold.server.warm_up import warm_up

SLEEP = ["sleep", "60"]


def start(folder: Path) -> RealDaemon:
    return RealDaemon(folder, slots=2, policy="easy", uncompiled=True)


def replayed_policy(client: Client, path: Path) -> str:
    """Replay the current epoch of the journal; return its policy."""
    header, entries = read_journal(client.journal(path))
    assert check_replay(header, entries, make_policy(header.policy, header.settings))
    return header.policy


def kinds(client: Client, job: str) -> list[str]:
    return [event.kind for event in client.why(job).events]


def test_jobs_start_before_the_policy_is_compiled_and_the_policy_takes_over(tmp_path: Path) -> None:
    with start(tmp_path / "state") as daemon, daemon.client() as client:
        first, second, blocked = (client.submit(command=SLEEP, gpus=gpus, name="train").id for gpus in (1, 1, 2))
        wait_until(lambda: "started" in kinds(client, first) and "started" in kinds(client, second))
        assert client.info().policy == "fcfs"
        assert (
            client.info().policy_note == "compiling policy easy (1 kernel); until then, jobs start in order of arrival"
        )
        assert client.job(blocked).reason == "Resources"
        assert replayed_policy(client, tmp_path / "before.jsonl") == "fcfs"

        daemon.finish_compilation()
        wait_until(lambda: client.info().policy == "easy")
        assert client.info().policy_note == ""
        assert [client.job(job).state for job in (first, second, blocked)] == ["running", "running", "waiting"]
        client.cancel(first)
        client.cancel(second)
        wait_until(lambda: "started" in kinds(client, blocked))
        assert kinds(client, blocked) == ["submitted", "placed", "started"]
        assert kinds(client, first) == ["submitted", "placed", "started", "stopping", "cancelled"]
        assert client.job(first).runs == client.job(second).runs == 1
        assert replayed_policy(client, tmp_path / "after.jsonl") == "easy"


def test_a_job_that_the_compiled_policy_starts_in_its_first_step_has_an_event(tmp_path: Path) -> None:
    with start(tmp_path / "state") as daemon, daemon.client() as client:
        client.submit(command=SLEEP, gpus=1)
        wide = client.submit(command=SLEEP, gpus=2).id
        narrow = client.submit(command=SLEEP, gpus=1, time_limit=20.0).id  # easy backfills it, fcfs does not
        wait_until(lambda: client.job(wide).reason == "Resources")
        assert client.job(narrow).state == "waiting"
        daemon.finish_compilation()
        wait_until(lambda: "started" in kinds(client, narrow))
        assert kinds(client, narrow)[:3] == ["submitted", "placed", "started"]


def test_time_limits_hold_before_the_policy_is_compiled(tmp_path: Path) -> None:
    with start(tmp_path / "state") as daemon, daemon.client() as client:
        job = client.submit(command=SLEEP, gpus=1, time_limit=1.0).id
        assert "time limit" in client.wait(job, 60).message
        assert client.info().policy == "fcfs"


def test_kernels_that_are_missing_after_their_compilation_are_compiled_again(tmp_path: Path) -> None:
    with start(tmp_path / "state") as daemon, daemon.client() as client:
        daemon.finish_compilation("nothing at first")
        wait_until(lambda: client.info().policy == "easy")
        assert client.info().policy_note == ""


@pytest.mark.parametrize(
    ("result", "problem"), [("no memory", "no memory"), ("nothing", "kernels are still missing from the cache")]
)
def test_if_the_policy_cannot_be_compiled_jobs_still_start_in_order(tmp_path: Path, result: str, problem: str) -> None:
    with start(tmp_path / "state") as daemon, daemon.client() as client:
        daemon.finish_compilation(result)
        wait_until(lambda: "cannot" in client.info().policy_note)
        note = f"policy easy cannot be compiled: {problem}; jobs start in order of arrival"
        assert client.info().policy_note == note
        assert note in daemon.log()
        job = client.submit(command=["true"]).id
        assert client.wait(job).state == "finished"


def test_a_restart_without_compiled_kernels_keeps_jobs_and_runs(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", slots=1, policy="easy") as daemon, daemon.client() as client:
        running = client.submit(command=SLEEP).id
        waiting = client.submit(command=SLEEP).id
        wait_until(lambda: "started" in kinds(client, running))
        started = client.job(running).started
        daemon.end()
        with start(tmp_path / "state") as restarted, restarted.client() as again:
            assert again.info().policy == "fcfs"
            assert again.job(running).state == "running"
            restarted.finish_compilation()
            wait_until(lambda: again.info().policy == "easy")
            assert again.job(running).runs == 1
            assert again.job(running).started == pytest.approx(started, abs=1.0)
            again.cancel(running)
            wait_until(lambda: "started" in kinds(again, waiting))
            assert kinds(again, waiting) == ["submitted", "placed", "started"]


COMPILE = """
import asyncio, sys
from refold.backends.local import local_cluster
from refold.core import Header
from refold.server.warm_up import CachedKernels

kernels = CachedKernels()
header = Header(local_cluster(2), sys.argv[1])
before = kernels.load(header) if sys.argv[1] == "fcfs" else False
problem = asyncio.run(kernels.compile(header, print))
print(before, problem, kernels.load(header) if not problem else "")
"""
"""Prints whether all kernels were in the cache, what went wrong, and whether they are there now."""


def compile_policy(policy: str, cache: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", COMPILE, policy],
        env={**os.environ, "REFOLD_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]


def test_a_missing_kernel_is_compiled_in_another_process_and_found_in_the_cache(tmp_path: Path) -> None:
    warm_up(Header(local_cluster(2), "fcfs"))
    folder = tmp_path / "cache" / kernel_folder().name
    shutil.copytree(kernel_folder(), folder)
    removed = list(folder.glob("kernels.take-*"))
    assert removed
    for file in removed:
        file.unlink()
    assert compile_policy("fcfs", tmp_path / "cache") == "False  True"
    compiled = list(folder.glob("kernels.take-*"))  # fewer if others have used the kernel with other types
    assert {file.suffix for file in compiled} == {file.suffix for file in removed} == {".nbi", ".nbc"}


def test_errors_of_the_compilation_are_returned(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.py")
    assert missing in compile_policy(missing, tmp_path / "cache")
