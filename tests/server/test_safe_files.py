"""File access in folders of jobs: only regular files, bounded reads, and no blocking."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from file_limits import no_free_file_descriptors

from refold.core.events import RunFinished
from refold.server.output.run_files import RunFiles, StartRecord
from refold.server.output.safe_files import (
    ResourceShortage,
    open_regular,
    read_regular,
    regular_size,
    retry_on_shortage,
    write_atomically,
)


def link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"foreign")
    path.symlink_to(path.with_name("elsewhere"))


NOT_REGULAR: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link": link,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("make", NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_anything_but_a_regular_file_is_not_opened_and_does_not_block(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    make(path)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError):
            open_regular(path, flags)
    assert regular_size(path) == 0


def test_a_fifo_with_a_reader_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="not a regular file") as raised:
            open_regular(tmp_path / "pipe", os.O_WRONLY)
        assert raised.value.errno == errno.EINVAL
    finally:
        os.close(reader)


def test_reads_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    assert (len(read_regular(path)), len(read_regular(path, 7)), regular_size(path)) == (2**16, 7, 10 * 2**30)


@pytest.mark.parametrize("make", [os.mkfifo, link], ids=["a pipe", "a link"])
def test_writing_replaces_links_and_fifos(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "note"
    make(path)
    if not path.with_name("elsewhere").exists():
        link(path.with_name("note.new"))
    write_atomically(path, b"ours")
    assert (path.read_bytes(), path.is_symlink(), path.stat().st_mode & 0o777) == (b"ours", False, 0o600)
    assert path.with_name("elsewhere").read_bytes() == b"foreign"


def test_a_resource_shortage_is_not_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    with no_free_file_descriptors(), pytest.raises(ResourceShortage, match="Too many open files"):
        read_regular(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")


def test_reading_is_retried_until_files_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")

    async def read() -> bytes:
        with no_free_file_descriptors():
            task = asyncio.create_task(retry_on_shortage(lambda: read_regular(tmp_path / "file")))
            await asyncio.sleep(0.05)
            assert not task.done()
        return await task

    assert asyncio.run(read()) == b"there"


def test_run_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "logs", "job", 1)
    files.record_start(StartRecord("mark", 0))
    files.record_end(RunFinished("job", 1))
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "logs": 0o700,
        "logs/.records": 0o700,
        "logs/.records/job": 0o700,
        "logs/.records/job/run-1.start": 0o600,
        "logs/.records/job/run-1.end": 0o600,
        "logs/job": 0o700,
        "logs/job/checkpoint": 0o700,
        "logs/job/run-1.end": 0o600,
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"type":"RunFinished","job":"job","run":1,"more":' + b"[" * 60_000,
        b'{"type":"RunFinished","job":"job","run":1,"more":"' + b"x" * 100_000 + b'"}',
        b'{"type":"RunFinished","job":"\xff","run":1}',
    ],
    ids=["too deep", "too long", "not text"],
)
def test_a_malformed_end_record_is_ignored(tmp_path: Path, content: bytes) -> None:
    files = RunFiles(tmp_path, "job", 1)
    files.record_start(StartRecord("mark", 0))
    (files.records / "run-1.end").write_bytes(content)
    assert files.read_end() is None
    files.record_end(RunFinished("job", 1))
    assert files.read_end() == RunFinished("job", 1)
