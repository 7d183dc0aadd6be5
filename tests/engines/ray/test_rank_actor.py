"""The actor of an instance and its guard, without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from refold.engines.local.process import Process, is_alive
from refold.engines.ray.guard import InstanceSpec
from refold.engines.ray.rank_actor import ALL_OUTPUT, RankActor

LIMIT = 2**20
"""How much output is kept."""


@pytest.fixture
def actor() -> Iterator[RankActor]:
    found = RankActor(LIMIT)
    yield found
    found.close()


def spec(folder: Path, shell: str, **variables: str) -> bytes:
    return msgspec.json.encode(InstanceSpec(("sh", "-c", shell), variables, str(folder), f"mark-{os.getpid()}", 10.0))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(actor: RankActor) -> tuple[int | None, str, bytes]:
    while not (found := actor.poll(0, 1.0))[0]:
        pass
    return found[1], found[2], found[4]


def test_exit_code_and_output(actor: RankActor, tmp_path: Path) -> None:
    actor.start(spec(tmp_path, "echo out; echo $NAME >&2; exit 3", NAME="err"))
    assert ended(actor) == (3, "", b"out\nerr\n")


def test_a_second_start_does_nothing(actor: RankActor, tmp_path: Path) -> None:
    for _ in range(3):
        actor.start(spec(tmp_path, "echo >>starts"))
    assert ended(actor)[0] == 0
    assert (tmp_path / "starts").read_text() == "\n"


def test_the_gpus_are_those_that_ray_has_assigned(
    actor: RankActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    actor.start(spec(tmp_path, "echo $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="0"))
    assert ended(actor)[2] == b"5\n"


def test_output_is_read_from_an_offset(actor: RankActor, tmp_path: Path) -> None:
    actor.start(spec(tmp_path, "echo 0123456789"))
    assert ended(actor)[2] == b"0123456789\n"
    assert actor.poll(5, 0.0) == (True, 0, "", 5, b"56789\n")
    assert actor.poll(ALL_OUTPUT, 0.0) == (True, 0, "", 11, b"")


def test_the_end_of_long_output_is_kept_and_its_offsets_stay(actor: RankActor, tmp_path: Path) -> None:
    actor.start(spec(tmp_path, f"yes 0123456 | head -c {10 * LIMIT}; echo end"))
    while not actor.poll(ALL_OUTPUT, 1.0)[0]:
        pass
    kept, position = b"", 0
    while (found := actor.poll(position, 0.0))[4]:
        kept, position = kept + found[4], found[3] + len(found[4])
    assert (found[0], position) == (True, 10 * LIMIT + 4)
    assert LIMIT // 2 <= len(kept) <= LIMIT
    assert kept.endswith(b"0123456\nend\n")


def test_why_a_command_cannot_be_started(actor: RankActor, tmp_path: Path) -> None:
    actor.start(msgspec.json.encode(InstanceSpec(("/there/is/none",), {}, str(tmp_path), "mark", 1.0)))
    assert ended(actor)[:2] == (None, "cannot start '/there/is/none': No such file or directory")


def test_a_working_directory_that_does_not_exist_is_named(actor: RankActor, tmp_path: Path) -> None:
    actor.start(spec(tmp_path / "missing", "true"))
    assert ended(actor)[1] == f"folder '{tmp_path}/missing' does not exist"


def test_an_instance_that_was_never_started_can_be_stopped(actor: RankActor) -> None:
    actor.stop("TERM", 1.0)
    assert ended(actor)[:2] == (None, "it was not started")


def test_a_second_order_ends_the_grace_period(actor: RankActor, tmp_path: Path) -> None:
    actor.start(spec(tmp_path, "trap : TERM; echo >up; while :; do sleep 0.05; done"))
    wait_until((tmp_path / "up").exists)
    actor.stop("TERM", 1000.0)
    actor.stop("TERM", 0.0)
    assert ended(actor)[0] == -9


DRIVER = """
import os, sys, time
from refold.engines.ray.rank_actor import RankActor
actor = RankActor(1000)
actor.start(sys.argv[1].encode())
while True:
    time.sleep(1)
"""


def test_all_processes_end_with_their_actor(tmp_path: Path) -> None:
    """Also those that have left the session, and those that ignore signals."""
    shell = "trap '' TERM; echo $$ >pid-0; setsid sh -c 'echo $$ >pid-1; exec sleep 1000' & sleep 1000"
    actor = subprocess.Popen([sys.executable, "-c", DRIVER, spec(tmp_path, shell)])
    paths = [tmp_path / "pid-0", tmp_path / "pid-1"]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths))
    pids = [Process(int(path.read_text())) for path in paths]
    assert all(map(is_alive, pids))
    actor.kill()
    actor.wait()
    wait_until(lambda: not any(map(is_alive, pids)))
