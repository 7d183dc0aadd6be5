"""The log keeper: what it stores is bounded at any time, complete until then, and does not depend on the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from refold.engines.local.log_keeper import keeper_arguments
from refold.server.output import RunFiles, continue_log, log_size, read_log

LIMIT = 64 * 2**10


@contextmanager
def keeper(files: RunFiles, limit: int = LIMIT) -> Iterator[int]:
    """Start a log keeper; yield the end of its pipe. Wait for its end."""
    files.folder.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    script, *arguments = keeper_arguments(files, 0, limit)
    words = ["/bin/sh", "-c", script, script, *arguments]
    process = subprocess.Popen(words, stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
        assert process.wait(60) == 0


def run_files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "logs", "job", 1)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def wait_for(files: RunFiles, data: bytes) -> None:
    deadline = time.monotonic() + 30
    while data not in read_log(files.log(0), 0, 10**6).data:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stored(files: RunFiles) -> int:
    total = 0
    for path in files.folder.glob("run-*.log*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_output_is_in_the_log_at_once(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    with keeper(files) as pipe:
        for line in (b"one\n", b"two\n"):
            os.write(pipe, line)
            wait_for(files, line)
    assert files.log(0).read_bytes() == b"one\ntwo\n"


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=20), limit=st.sampled_from((4096, 10_000, LIMIT)))
def test_nothing_is_lost_but_what_exceeds_the_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    files = run_files(tmp_path_factory.mktemp("log"))
    data = b"".join(b"%07d\n" % number for number in range(sum(sizes) // 8 + 1))[: sum(sizes)]
    with keeper(files, limit) as pipe:
        position = 0
        for size in sizes:
            write_all(pipe, data[position : position + size])
            position += size
    kept = read_log(files.log(0), 0, 10**6)
    assert kept.next == log_size(files.log(0)) == len(data)
    assert kept.data == data[kept.begin :]
    assert len(kept.data) >= min(len(data), 0.4 * limit)
    assert stored(files) <= limit + 20  # a number of at most 20 digits


def test_a_flood_never_takes_more_than_the_limit(tmp_path: Path) -> None:
    files, peak = run_files(tmp_path), 0
    with keeper(files, LIMIT) as pipe:
        flood = subprocess.Popen(["head", "-c", "3000000", "/dev/zero"], stdout=pipe)
        while flood.poll() is None:
            peak = max(peak, stored(files))
    assert log_size(files.log(0)) == 3_000_000
    assert LIMIT / 4 < peak <= 1.5 * LIMIT  # files are renamed while their sizes are added


def test_readers_find_a_continuous_log_while_it_is_rotated(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    with keeper(files) as pipe:
        script = "i=0; while [ $i -lt 40000 ]; do printf '%07d\\n' $i; i=$((i + 1)); done"
        writer = subprocess.Popen(["/bin/sh", "-c", script], stdout=pipe)
        last = 0
        while writer.poll() is None:
            chunk = read_log(files.log(0), max(0, log_size(files.log(0)) - 80), 160)
            words = chunk.data[-chunk.begin % 8 :].split()
            assert [int(word) for word in words if len(word) == 7][:1] in ([], [(chunk.begin + 7) // 8])
            assert chunk.next >= last
            last = chunk.next
    assert last > LIMIT


def test_a_writer_that_is_killed_is_started_again(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    with keeper(files) as pipe:
        os.write(pipe, b"before\n")
        wait_for(files, b"before\n")
        for child in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                if child.read_bytes().startswith(b"dd\0") and tmp_path in (child.parent / "fd/3").readlink().parents:
                    os.kill(int(child.parent.name), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while b"after\n" not in read_log(files.log(0), 0, 10**6).data:
            assert time.monotonic() < deadline
            os.write(pipe, b"after\n")  # what the killed one has read is lost
            time.sleep(0.05)


def test_a_log_that_cannot_be_written_blocks_nothing(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    files.log(0).mkdir(parents=True)
    with keeper(files) as pipe:
        write_all(pipe, bytes(10**6))
        files.log(0).rmdir()
        write_all(pipe, bytes(2 * 10**6))
    assert log_size(files.log(0)) > 0


def test_signals_that_stop_a_run_do_not_stop_its_log(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    with keeper(files) as pipe:
        os.write(pipe, b"before\n")
        wait_for(files, b"before\n")
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            if str(files.folder).encode() in status.read_bytes():
                os.kill(int(status.parent.name), signal.SIGTERM)
        os.write(pipe, b"after\n")
        wait_for(files, b"after\n")


def test_after_a_live_change_output_goes_to_the_log_of_the_next_run(tmp_path: Path) -> None:
    files = run_files(tmp_path)
    following = files.of_run(2)
    with keeper(files) as pipe:
        os.write(pipe, b"first\n")
        wait_for(files, b"first\n")
        continue_log(files.log(0), following.log(0))
        for number in range(9_000):
            write_all(pipe, b"%07d\n" % number)
    assert files.log(0).read_bytes() == b"first\n"
    kept = read_log(following.log(0), 0, 10**6)
    assert kept.next == 72_000
    assert kept.data.endswith(b"0008999\n")
    assert len(kept.data) >= 0.4 * LIMIT
