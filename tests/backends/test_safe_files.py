"""Where jobs may put anything, only plain files are read and written, within bounds, and nobody is waited for."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scarcity import no_more_files

from refold.backends.local.run_files import RunFiles, StartNote
from refold.backends.local.safe_files import (
    OutOfFileHandles,
    open_plain,
    patiently,
    plain_size,
    read_plain,
    write_whole,
)
from refold.core.events import RunFinished


def link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"of others")
    path.symlink_to(path.with_name("elsewhere"))


NOT_PLAIN: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link": link,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_no_plain_file_is_neither_opened_nor_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    make(path)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError):
            open_plain(path, flags)
    assert plain_size(path) == 0


def test_a_pipe_that_somebody_reads_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="it is no plain file") as refused:
            open_plain(tmp_path / "pipe", os.O_WRONLY)
        assert refused.value.errno == errno.EINVAL
    finally:
        os.close(reader)


def test_no_more_is_read_than_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    assert (len(read_plain(path)), len(read_plain(path, 7)), plain_size(path)) == (2**16, 7, 10 * 2**30)


@pytest.mark.parametrize("make", [os.mkfifo, link], ids=["a pipe", "a link"])
def test_what_is_written_takes_the_place_of_what_was_put_there(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "note"
    make(path)
    if not path.with_name("elsewhere").exists():
        link(path.with_name("note.new"))
    write_whole(path, b"ours")
    assert (path.read_bytes(), path.is_symlink(), path.stat().st_mode & 0o777) == (b"ours", False, 0o600)
    assert path.with_name("elsewhere").read_bytes() == b"of others"


def test_a_file_that_cannot_be_opened_now_is_not_taken_to_be_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    with no_more_files(), pytest.raises(OutOfFileHandles, match="Too many open files"):
        read_plain(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "none")


def test_whoever_has_to_know_waits_until_files_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")

    async def ask() -> bytes:
        with no_more_files():
            asked = asyncio.create_task(patiently(lambda: read_plain(tmp_path / "file")))
            await asyncio.sleep(0.05)
            assert not asked.done()
        return await asked

    assert asyncio.run(ask()) == b"there"


def test_only_the_owner_of_the_daemon_reads_what_is_written(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "logs", "job", 1)
    files.note_start(StartNote("mark", 0))
    files.decide(RunFinished("job", 1))
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "logs": 0o700,
        "logs/job": 0o700,
        "logs/job/kept": 0o700,
        "logs/job/run-1.start": 0o600,
        "logs/job/run-1.end": 0o600,
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"type":"RunFinished","job":"other","run":1}',
        b'{"type":"RunFinished","job":"job","run":2}',
        b'{"type":"RunFinished","job":"job","run":1,"more":' + b"[" * 60_000,
        b'{"type":"RunFinished","job":"job","run":1,"more":"' + b"x" * 100_000 + b'"}',
        b'{"type":"RunFinished","job":"\xff","run":1}',
    ],
    ids=["of another job", "of another run", "too deep", "too long", "no text"],
)
def test_an_end_that_a_job_has_written_for_others_or_to_break_us_is_none(tmp_path: Path, content: bytes) -> None:
    files = RunFiles(tmp_path, "job", 1)
    files.note_start(StartNote("mark", 0))
    files.end.write_bytes(content)
    assert files.decided() is None
    files.decide(RunFinished("job", 1))
    assert files.decided() == RunFinished("job", 1)
