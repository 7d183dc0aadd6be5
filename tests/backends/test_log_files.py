"""Output is kept within bounds, and a place in it means the same however often it was rotated."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from refold.backends.local import log_files
from refold.backends.local.log_files import LogChunk, Rotation, read_from, read_piece, rotate, size, tail


def log_with(folder: Path, content: bytes) -> Path:
    path = folder / "run-1.0.log"
    path.write_bytes(content)
    return path


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as log:
        log.write(content)


def test_a_log_is_read_from_any_place(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"one\ntwo\n")
    assert read_from(path, 0) == LogChunk(b"one\ntwo\n", 0, 8)
    assert read_from(path, 4) == LogChunk(b"two\n", 4, 8)
    assert read_from(path, 4, most=2) == LogChunk(b"tw", 4, 6)
    assert read_from(path, 8) == LogChunk(b"", 8, 8)
    assert read_from(path, -5, most=1) == LogChunk(b"o", 0, 1)


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_from(tmp_path / "none", 7) == LogChunk(b"", 7, 7)
    assert tail(tmp_path / "none") == LogChunk(b"", 0, 0)


def test_a_piece_ends_with_a_whole_character(tmp_path: Path) -> None:
    path = log_with(tmp_path, "a€b".encode())
    assert [read_from(path, 0, most=most).data for most in range(1, 6)] == [
        b"a",
        b"a",
        b"a",
        "a€".encode(),
        "a€b".encode(),
    ]


def test_bytes_that_are_no_characters_are_read_all_the_same(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"\x80\x80\x80\x80\x80 \xff.")
    assert read_from(path, 0).data == b"\x80\x80\x80\x80\x80 \xff."
    assert read_from(path, 0, most=3).text == "\N{REPLACEMENT CHARACTER}" * 3


def test_places_mean_the_same_after_rotation(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"0123456789")
    rotate(path, keep=4)
    append(path, b"abc")
    assert (path.read_bytes(), path.with_name("run-1.0.log.1").read_bytes()) == (b"abc", b"6789")
    assert size(path) == 13
    assert read_from(path, 10) == LogChunk(b"abc", 10, 13)
    assert read_from(path, 7) == LogChunk(b"789abc", 7, 13)
    assert read_from(path, 7, most=2) == LogChunk(b"78", 7, 9)
    assert read_from(path, 0, most=5) == LogChunk(b"6789a", 6, 11)


def test_a_process_goes_on_writing_to_a_log_that_was_rotated(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"")
    with path.open("ab", buffering=0) as log:
        log.write(b"before")
        rotate(path, keep=100)
        log.write(b"after")
    assert (path.read_bytes(), read_from(path, 6)) == (b"after", LogChunk(b"after", 6, 11))


@pytest.mark.parametrize(
    ("lines", "expected"), [(0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, b"one\ntwo\nthree\n")]
)
def test_the_last_lines(tmp_path: Path, lines: int, expected: bytes) -> None:
    path = log_with(tmp_path, b"one\ntwo\nthree\n")
    assert tail(path, lines) == LogChunk(expected, 14 - len(expected), 14)


def test_the_last_lines_go_back_before_the_last_rotation(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"one\ntwo\n")
    rotate(path, keep=100)
    append(path, b"three\n")
    assert tail(path, 2) == LogChunk(b"two\nthree\n", 4, 14)


@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=10), st.integers(1, 40), st.integers(1, 17))
def test_whoever_keeps_reading_reads_what_is_kept_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[bytes, bool]], keep: int, most: int
) -> None:
    path = log_with(tmp_path_factory.mktemp("log"), b"")
    everything = b""
    for content, then_rotate in writes:
        append(path, content)
        everything += content
        if then_rotate:
            rotate(path, keep)
    place, last = 0, -1
    while place != last:
        piece = read_from(path, place, most + 3)
        assert piece.data == everything[piece.begin : piece.next]
        place, last = piece.next, place
    assert len(everything) - place <= 3  # the beginning of a character, at most


def test_a_log_that_is_looked_after_stays_small(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"")

    async def flood() -> None:
        async with Rotation(2000).of([path]):
            for _ in range(40):
                append(path, b"x" * 500)
                await asyncio.sleep(0.01)

    asyncio.run(flood())
    sizes = [file.stat().st_size for file in (path, path.with_name("run-1.0.log.1"))]
    assert max(sizes) <= 1000
    assert 10_000 < size(path) <= 20_000  # what was written while the log was emptied may be lost


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, (LogChunk(b"0123", 0, 4), False)), (8, (LogChunk(b"89", 8, 10), True)), (-3, (LogChunk(b"789", 7, 10), True))],
)
def test_a_piece_says_whether_it_is_the_last(tmp_path: Path, offset: int, expected: tuple[LogChunk, bool]) -> None:
    path = log_with(tmp_path, b"0123456789")
    assert read_piece(path, offset, 4) == expected
    assert read_piece(tmp_path / "none", offset, 4) is None


@pytest.mark.parametrize("gone", [b"-5", b"9" * 5000, b"9" * 19, b"many", b""])
def test_what_a_job_has_made_of_our_count_counts_for_nothing(tmp_path: Path, gone: bytes) -> None:
    path = log_with(tmp_path, b"here")
    path.with_name("run-1.0.log.gone").write_bytes(gone)
    assert (size(path), read_from(path, 0)) == (4, LogChunk(b"here", 0, 4))


def test_what_is_kept_of_output_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = log_with(tmp_path, b"0123456789")
    path.chmod(0o600)
    rotate(path, keep=4)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        "run-1.0.log": 0o600,
        "run-1.0.log.1": 0o600,
        "run-1.0.log.gone": 0o600,
    }


def test_a_log_that_is_being_rotated_keeps_no_reader_of_another_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = log_with(tmp_path, b"here")
    found: list[LogChunk] = []
    readers = [threading.Thread(target=lambda: found.append(read_from(path, 0)), daemon=True) for _ in range(2)]
    with log_files._rotating(tmp_path / "another.log"):
        readers[0].start()
        readers[0].join(10.0)
        assert found == [LogChunk(b"here", 0, 4)]
    with log_files._rotating(Path("run-1.0.log")):  # the same one, by another name
        readers[1].start()
        readers[1].join(0.05)
        assert len(found) == 1
    readers[1].join()
    assert len(found) == 2


def test_locks_are_forgotten_with_those_who_hold_them(tmp_path: Path) -> None:
    for number in range(100):
        read_from(tmp_path / f"{number}.log", 0)
    assert not [path for path in log_files._locks if path.parent == tmp_path]
