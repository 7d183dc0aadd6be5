"""Log files: bounded size, and offsets that are unaffected by rotation."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from refold.server.output import log_files
from refold.server.output.log_files import LogChunk, LogRotator, log_size, read_log, read_log_at, rotate_log, tail_log


def make_log(folder: Path, content: bytes) -> Path:
    path = folder / "run-1.0.log"
    path.write_bytes(content)
    return path


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as log:
        log.write(content)


def test_a_log_is_read_from_any_offset(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"one\ntwo\n")
    assert read_log(path, 0) == LogChunk(b"one\ntwo\n", 0, 8)
    assert read_log(path, 4) == LogChunk(b"two\n", 4, 8)
    assert read_log(path, 4, limit=2) == LogChunk(b"tw", 4, 6)
    assert read_log(path, 8) == LogChunk(b"", 8, 8)
    assert read_log(path, -5, limit=1) == LogChunk(b"o", 0, 1)


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none", 7) == LogChunk(b"", 7, 7)
    assert tail_log(tmp_path / "none") == LogChunk(b"", 0, 0)


def test_a_chunk_does_not_split_a_character(tmp_path: Path) -> None:
    path = make_log(tmp_path, "a€b".encode())
    assert [read_log(path, 0, limit=limit).data for limit in range(1, 6)] == [
        b"a",
        b"a",
        b"a",
        "a€".encode(),
        "a€b".encode(),
    ]


def test_invalid_utf8_is_read(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"\x80\x80\x80\x80\x80 \xff.")
    assert read_log(path, 0).data == b"\x80\x80\x80\x80\x80 \xff."
    assert read_log(path, 0, limit=3).text == "\N{REPLACEMENT CHARACTER}" * 3


def test_offsets_are_unaffected_by_rotation(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"0123456789")
    rotate_log(path, keep=4)
    append(path, b"abc")
    assert (path.read_bytes(), path.with_name("run-1.0.log.1").read_bytes()) == (b"abc", b"6789")
    assert log_size(path) == 13
    assert read_log(path, 10) == LogChunk(b"abc", 10, 13)
    assert read_log(path, 7) == LogChunk(b"789abc", 7, 13)
    assert read_log(path, 7, limit=2) == LogChunk(b"78", 7, 9)
    assert read_log(path, 0, limit=5) == LogChunk(b"6789a", 6, 11)


def test_a_process_continues_writing_to_a_rotated_log(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"")
    with path.open("ab", buffering=0) as log:
        log.write(b"before")
        rotate_log(path, keep=100)
        log.write(b"after")
    assert (path.read_bytes(), read_log(path, 6)) == (b"after", LogChunk(b"after", 6, 11))


@pytest.mark.parametrize(
    ("lines", "expected"), [(0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, b"one\ntwo\nthree\n")]
)
def test_the_last_lines_are_returned(tmp_path: Path, lines: int, expected: bytes) -> None:
    path = make_log(tmp_path, b"one\ntwo\nthree\n")
    assert tail_log(path, lines) == LogChunk(expected, 14 - len(expected), 14)


def test_the_last_lines_may_span_a_rotation(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"one\ntwo\n")
    rotate_log(path, keep=100)
    append(path, b"three\n")
    assert tail_log(path, 2) == LogChunk(b"two\nthree\n", 4, 14)


@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=10), st.integers(1, 40), st.integers(1, 17))
def test_a_reader_receives_the_stored_output_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[bytes, bool]], keep: int, limit: int
) -> None:
    path = make_log(tmp_path_factory.mktemp("log"), b"")
    written = b""
    for content, then_rotate in writes:
        append(path, content)
        written += content
        if then_rotate:
            rotate_log(path, keep)
    offset, last = 0, -1
    while offset != last:
        chunk = read_log(path, offset, limit + 3)
        assert chunk.data == written[chunk.begin : chunk.next]
        offset, last = chunk.next, offset
    assert len(written) - offset <= 3  # at most an incomplete character


def test_a_watched_log_stays_within_its_limit(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"")

    async def flood() -> None:
        async with LogRotator(2000).watch([path]):
            for _ in range(40):
                append(path, b"x" * 500)
                await asyncio.sleep(0.01)

    asyncio.run(flood())
    sizes = [file.stat().st_size for file in (path, path.with_name("run-1.0.log.1"))]
    assert max(sizes) <= 1000
    assert 10_000 < log_size(path) <= 20_000  # output written during truncation may be lost


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, (LogChunk(b"0123", 0, 4), False)), (8, (LogChunk(b"89", 8, 10), True)), (-3, (LogChunk(b"789", 7, 10), True))],
)
def test_a_chunk_reports_whether_it_reaches_the_end(
    tmp_path: Path, offset: int, expected: tuple[LogChunk, bool]
) -> None:
    path = make_log(tmp_path, b"0123456789")
    assert read_log_at(path, offset, 4) == expected
    assert read_log_at(tmp_path / "none", offset, 4) is None


@pytest.mark.parametrize("content", [b"-5", b"9" * 5000, b"9" * 19, b"many", b""])
def test_an_invalid_offset_record_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = make_log(tmp_path, b"here")
    path.with_name("run-1.0.log.gone").write_bytes(content)
    assert (log_size(path), read_log(path, 0)) == (4, LogChunk(b"here", 0, 4))


def test_log_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    path = make_log(tmp_path, b"0123456789")
    path.chmod(0o600)
    rotate_log(path, keep=4)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        "run-1.0.log": 0o600,
        "run-1.0.log.1": 0o600,
        "run-1.0.log.gone": 0o600,
    }


def test_rotating_a_log_does_not_block_readers_of_other_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = make_log(tmp_path, b"here")
    found: list[LogChunk] = []
    readers = [threading.Thread(target=lambda: found.append(read_log(path, 0)), daemon=True) for _ in range(2)]
    with log_files._lock_of(tmp_path / "another.log"):
        readers[0].start()
        readers[0].join(10.0)
        assert found == [LogChunk(b"here", 0, 4)]
    with log_files._lock_of(Path("run-1.0.log")):  # the same log by another name
        readers[1].start()
        readers[1].join(0.05)
        assert len(found) == 1
    readers[1].join()
    assert len(found) == 2


def test_unused_locks_are_freed(tmp_path: Path) -> None:
    for number in range(100):
        read_log(tmp_path / f"{number}.log", 0)
    assert not [path for path in log_files._locks if path.parent == tmp_path]
