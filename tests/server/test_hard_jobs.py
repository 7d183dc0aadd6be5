"""Jobs as they should not be: each comes to an end that is told, and nothing of it is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_daemon import SHORT_GRACE, RealDaemon, runs_alive, until

from refold.api.wire import JobStatus, Submission
from refold.client.client import Client
from refold.errors import Conflict

MOST_OUTPUT = 200_000
MANY = 1_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path_factory.mktemp("hard") / "state", most_output=MOST_OUTPUT) as daemon:
        yield daemon
        assert daemon.end() == 0
        assert "Traceback" not in daemon.log(), daemon.log()


@pytest.fixture
def client(daemon: RealDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client
        left = [(client.cancel(job.id), client.wait(job.id))[1].id for job in client.queue()]
    assert (left, runs_alive(daemon.folder)) == ([], [])


def ended(client: Client, command: list[str], **more: Any) -> JobStatus:
    return client.wait(client.submit(name="hard", command=command, **more).id, timeout=30)


def outcome(status: JobStatus) -> tuple[str, str]:
    return status.state, status.why


def test_one_that_ignores_being_told_to_stop_is_killed_after_its_grace(client: Client, daemon: RealDaemon) -> None:
    job = client.submit(name="deaf", command=["sh", "-c", "trap '' TERM INT HUP; echo deaf; while :; do sleep 1; done"])
    until(lambda: "".join(client.logs(job.id)) == "deaf\n")
    began = time.monotonic()
    client.cancel(job.id)
    assert outcome(client.wait(job.id, timeout=30)) == ("cancelled", "")
    assert time.monotonic() - began >= SHORT_GRACE


def test_what_one_leaves_behind_is_ended_with_it(client: Client, daemon: RealDaemon) -> None:
    away = "setsid sh -c 'trap \"\" TERM; sleep 60' & (sleep 60 &) ; exit 0"
    assert outcome(ended(client, ["sh", "-c", away])) == ("finished", "")
    assert runs_alive(daemon.folder) == []


def test_one_that_floods_its_output_fills_no_disk_and_can_be_read(client: Client, daemon: RealDaemon) -> None:
    job = client.submit(name="flood", command=["yes", "water"])
    logs = daemon.folder / "logs"

    def size() -> int:
        return sum(path.stat().st_size for path in logs.rglob("run-*.log*") if path.exists())

    until(lambda: size() > MOST_OUTPUT / 4)
    heard, enough = "", time.monotonic() + 1.0
    while time.monotonic() < enough:
        heard += client.piece_of_logs(job.id, offset=-100).text  # of what is thrown away at this moment, nothing
        assert client.job(job.id).state == "running"
        time.sleep(0.05)
    assert heard.count("water") >= 10
    client.cancel(job.id)
    client.wait(job.id, timeout=30)
    assert client.piece_of_logs(job.id, offset=-100).text.count("water") >= 15
    assert size() <= MOST_OUTPUT, "what is kept of it when it is over"


def test_a_thousand_that_end_at_once_all_end_once(client: Client) -> None:
    submissions = [Submission(name="brief", command=["true"]) for _ in range(MANY)]
    ids = [job.id for job in client.submit_all(submissions)]
    until(lambda: client.jobs(limit=1).total == 0, patience=120.0)
    over = list(client.history(name="brief"))
    assert sorted(job.id for job in over) == sorted(ids)
    assert {(job.state, job.runs) for job in over} == {("finished", 1)}


def test_one_that_puts_pipes_where_its_output_was_keeps_nobody_waiting(client: Client, daemon: RealDaemon) -> None:
    pipes = "cd $REFOLD_CHECKPOINT/.. && rm run-1.0.log && mkfifo run-1.0.log run-1.end.new $REFOLD_PROGRESS; sleep 60"
    job = client.submit(name="pipes", command=["sh", "-c", pipes], progress="step ([0-9]+)")
    until((daemon.folder / "logs" / job.id / "run-1.0.progress").is_fifo)
    assert client.piece_of_logs(job.id).text == ""
    other = ["sh", "-c", "echo 7 >$REFOLD_PROGRESS; until [ -e seen ]; do sleep 0.1; done; exit 3"]
    seen = daemon.folder.with_name("seen")
    failing = client.submit(name="other", command=other, never_retry=["none"], folder=str(seen.parent))
    until(lambda: client.job(failing.id).steps_done == 7, what="its progress is seen")
    seen.touch()
    assert outcome(client.wait(failing.id, timeout=30)) == ("failed", "exit 3")
    client.cancel(job.id)
    assert outcome(client.wait(job.id, timeout=30)) == ("cancelled", "")


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        (["no-such-program"], {}, "cannot start 'no-such-program': No such file or directory"),
        (["/etc/passwd"], {}, "cannot start '/etc/passwd': Permission denied"),
        (["true"], {"folder": "/no/such/folder"}, "its folder '/no/such/folder' is not there"),
        (["sh", "-c", "exit 3"], {}, "exit 3"),
        (["sh", "-c", "kill -SEGV $$"], {}, "killed by SIGSEGV"),
        (["sh", "-c", "kill -KILL $$"], {}, "killed by SIGKILL"),
    ],
    ids=["no program", "no right to it", "no folder", "exit code", "segmentation fault", "killed"],
)
def test_one_that_cannot_start_or_ends_badly_says_why(
    command: list[str], more: dict[str, Any], why: str, client: Client
) -> None:
    assert outcome(ended(client, command, **more)) == ("failed", why)


def test_one_that_is_100_kilobytes_of_script_runs(client: Client) -> None:
    script = ": " + "x" * 100_000 + "\necho whole"
    job = ended(client, ["sh", "-c", script])
    assert (job.state, "".join(client.logs(job.id))) == ("finished", "whole\n")


def test_one_that_is_tried_again_is_tried_as_often_as_it_says(client: Client) -> None:
    job = ended(client, ["sh", "-c", "exit 5"], retries=2)
    assert (job.state, job.why, job.runs) == ("failed", "exit 5", 3)


def test_one_that_is_cancelled_while_it_starts_ends(client: Client) -> None:
    for _ in range(20):
        job = client.submit(name="start", command=[sys.executable, "-c", "import time; time.sleep(60)"])
        client.cancel(job.id)
        assert client.wait(job.id, timeout=30).state == "cancelled"


def test_one_that_is_cancelled_twice_is_cancelled_once(client: Client) -> None:
    job = client.submit(name="twice", command=["sh", "-c", "trap '' TERM; sleep 60"])
    client.cancel(job.id)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).state == "cancelled"
    with pytest.raises(Conflict, match="is over: it has been cancelled"):
        client.cancel(job.id)
    kinds = [event.kind for event in client.why(job.id).story]
    assert kinds.count("cancelled") == 1


def test_one_that_is_over_cannot_be_cancelled_and_stays_what_it_was(client: Client) -> None:
    job = ended(client, ["true"])
    with pytest.raises(Conflict, match="is over: it has finished"):
        client.cancel(job.id)
    assert client.job(job.id).state == "finished"


def test_one_that_is_just_about_to_end_is_known_all_the_time(client: Client) -> None:
    for _ in range(30):
        job = client.submit(name="seen", command=["true"])
        while client.job(job.id).state != "finished":
            assert client.jobs(limit=1).total <= 1
        assert next(iter(client.history())).id == job.id


def test_what_is_drained_already_or_not_at_all_is_answered_too(client: Client) -> None:
    assert client.resume("localhost", gpu=0).why == ""
    assert client.drain("localhost", "for a while", gpu=0).why == "GPU 0 is drained: for a while"
    assert client.drain("localhost", "for a while", gpu=0).free_gpus == 3.0
    assert client.resume("localhost", gpu=0).free_gpus == 4.0


def test_its_files_are_where_only_its_owner_may_look(daemon: RealDaemon) -> None:
    assert (daemon.folder.stat().st_mode & 0o077, Path(daemon.folder / "refold.db").stat().st_mode & 0o077) == (0, 0)
