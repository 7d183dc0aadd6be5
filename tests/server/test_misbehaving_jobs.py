"""Misbehaving jobs: each ends with a reason and leaves nothing behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_daemon import SHORT_GRACE, RealDaemon, live_processes, wait_until

from refold.client.api.submissions import Submission
from refold.client.api.wire import JobStatus
from refold.client.client import Client
from refold.errors import Conflict

MAX_OUTPUT = 200_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path_factory.mktemp("misbehaving") / "state", max_output=MAX_OUTPUT) as daemon:
        yield daemon
        assert daemon.end() == 0
        assert "Traceback" not in daemon.log(), daemon.log()


@pytest.fixture
def client(daemon: RealDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client
        left = [(client.cancel(job.id), client.wait(job.id))[1].id for job in client.queue()]
    assert (left, live_processes(daemon.folder)) == ([], [])


def ended(client: Client, command: list[str], **more: Any) -> JobStatus:
    return client.wait(client.submit(name="job", command=command, **more).id, timeout=30)


def outcome(status: JobStatus) -> tuple[str, str]:
    return status.state, status.message


def test_a_job_that_ignores_the_stop_signal_is_killed_after_the_grace_period(
    client: Client, daemon: RealDaemon
) -> None:
    job = client.submit(
        name="stubborn", command=["sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"]
    )
    wait_until(lambda: "".join(client.logs(job.id)) == "ready\n")
    start = time.monotonic()
    client.cancel(job.id)
    assert outcome(client.wait(job.id, timeout=30)) == ("cancelled", "")
    assert time.monotonic() - start >= SHORT_GRACE


def test_background_processes_of_a_job_are_killed_with_it(client: Client, daemon: RealDaemon) -> None:
    script = "setsid sh -c 'trap \"\" TERM; sleep 60' & (sleep 60 &) ; exit 0"
    assert outcome(ended(client, ["sh", "-c", script])) == ("finished", "")
    assert live_processes(daemon.folder) == []


def test_output_of_a_flooding_job_is_limited_and_readable(client: Client, daemon: RealDaemon) -> None:
    job = client.submit(name="flood", command=["yes", "water"])
    logs = daemon.folder / "logs"

    def size() -> int:
        return sum(path.stat().st_size for path in logs.rglob("run-*.log*") if path.exists())

    wait_until(lambda: size() > MAX_OUTPUT / 4)
    output, deadline = "", time.monotonic() + 1.0
    while time.monotonic() < deadline:
        output += client.read_logs(job.id, offset=-100).text  # empty while the log is rotated
        assert client.job(job.id).state == "running"
        time.sleep(0.05)
    assert output.count("water") >= 10
    client.cancel(job.id)
    client.wait(job.id, timeout=30)
    assert client.read_logs(job.id, offset=-100).text.count("water") >= 15
    assert size() <= MAX_OUTPUT, "log size after the job has ended"


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.long)])
def test_many_short_jobs_all_end_exactly_once(client: Client, count: int) -> None:
    submissions = [Submission(name="brief", command=["true"]) for _ in range(count)]
    ids = [job.id for job in client.submit_all(submissions)]
    wait_until(lambda: client.jobs(limit=1).total == 0, timeout=120.0)
    jobs = list(client.history(name="brief"))
    assert sorted(job.id for job in jobs) == sorted(ids)
    assert {(job.state, job.runs) for job in jobs} == {("finished", 1)}


def test_a_job_that_replaces_its_files_by_pipes_blocks_nothing(client: Client, daemon: RealDaemon) -> None:
    pipes = "cd $REFOLD_CHECKPOINT/.. && rm run-1.0.log && mkfifo run-1.0.log run-1.end.new $REFOLD_PROGRESS; sleep 60"
    job = client.submit(name="pipes", command=["sh", "-c", pipes], progress="step ([0-9]+)")
    wait_until((daemon.folder / "logs" / job.id / "run-1.0.progress").is_fifo)
    assert client.read_logs(job.id).text == ""
    other = ["sh", "-c", "echo 7 >$REFOLD_PROGRESS; until [ -e seen ]; do sleep 0.1; done; exit 3"]
    seen = daemon.folder.with_name("seen")
    failing = client.submit(name="other", command=other, never_retry=["none"], folder=str(seen.parent))
    wait_until(lambda: client.job(failing.id).steps_done == 7, what="its progress is reported")
    seen.touch()
    assert outcome(client.wait(failing.id, timeout=30)) == ("failed", "exit 3")
    client.cancel(job.id)
    assert outcome(client.wait(job.id, timeout=30)) == ("cancelled", "")


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        (["no-such-program"], {}, "cannot start 'no-such-program': No such file or directory"),
        (["/etc/passwd"], {}, "cannot start '/etc/passwd': Permission denied"),
        (["true"], {"folder": "/no/such/folder"}, "folder '/no/such/folder' does not exist"),
        (["sh", "-c", "exit 3"], {}, "exit 3"),
        (["sh", "-c", "kill -SEGV $$"], {}, "killed by SIGSEGV"),
        (["sh", "-c", "kill -KILL $$"], {}, "killed by SIGKILL"),
    ],
    ids=["no program", "no permission", "no folder", "exit code", "segmentation fault", "killed"],
)
def test_a_job_that_fails_has_a_reason(command: list[str], more: dict[str, Any], why: str, client: Client) -> None:
    assert outcome(ended(client, command, **more)) == ("failed", why)


def test_a_script_of_100_kilobytes_runs(client: Client) -> None:
    script = ": " + "x" * 100_000 + "\necho whole"
    job = ended(client, ["sh", "-c", script])
    assert (job.state, "".join(client.logs(job.id))) == ("finished", "whole\n")


def test_a_job_is_retried_as_often_as_requested(client: Client) -> None:
    job = ended(client, ["sh", "-c", "exit 5"], retries=2)
    assert (job.state, job.message, job.runs) == ("failed", "exit 5", 3)


def test_a_job_cancelled_during_its_start_ends(client: Client) -> None:
    for _ in range(20):
        job = client.submit(name="start", command=[sys.executable, "-c", "import time; time.sleep(60)"])
        client.cancel(job.id)
        assert client.wait(job.id, timeout=30).state == "cancelled"


def test_cancelling_a_job_twice_cancels_it_once(client: Client) -> None:
    job = client.submit(name="twice", command=["sh", "-c", "trap '' TERM; sleep 60"])
    client.cancel(job.id)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).state == "cancelled"
    with pytest.raises(Conflict, match="has already been cancelled"):
        client.cancel(job.id)
    kinds = [event.kind for event in client.why(job.id).events]
    assert kinds.count("cancelled") == 1


def test_a_job_that_is_stopping_is_killed_when_it_is_cancelled_now(client: Client) -> None:
    job = client.submit(name="deaf", command=["sh", "-c", "trap '' TERM; echo ready; sleep 9; sleep 60"], grace=60.0).id
    wait_until(lambda: "ready" in "".join(client.logs(job, follow=False)))
    assert client.cancel(job).state == "stopping"
    assert client.cancel(job, now=True).state in ("stopping", "cancelled")
    assert client.wait(job, timeout=30).state == "cancelled"


def test_an_ended_job_cannot_be_cancelled(client: Client) -> None:
    job = ended(client, ["true"])
    with pytest.raises(Conflict, match="has already finished"):
        client.cancel(job.id)
    assert client.job(job.id).state == "finished"


def test_a_job_is_visible_at_every_moment_while_it_ends(client: Client) -> None:
    for _ in range(30):
        job = client.submit(name="seen", command=["true"])
        while client.job(job.id).state != "finished":
            assert client.jobs(limit=1).total <= 1
        assert next(iter(client.history())).id == job.id


def test_draining_and_resuming_twice_has_no_effect(client: Client) -> None:
    assert client.resume("localhost", gpu=0).reason == ""
    assert client.drain("localhost", "for a while", gpu=0).reason == "GPU 0 is drained: for a while"
    assert client.drain("localhost", "for a while", gpu=0).free_gpus == 3.0
    assert client.resume("localhost", gpu=0).free_gpus == 4.0


def test_state_files_are_private(daemon: RealDaemon) -> None:
    assert (daemon.folder.stat().st_mode & 0o077, Path(daemon.folder / "refold.db").stat().st_mode & 0o077) == (0, 0)
