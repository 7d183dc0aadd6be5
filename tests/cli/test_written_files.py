"""Files that a command writes for a later one."""

from pathlib import Path

import pytest

from refold.cli.options import write_atomically
from refold.errors import BadFile


def test_the_new_contents_replace_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for contents in (b"old", b"new"):
        write_atomically(path, contents)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_contents(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(BadFile, match="cannot be written"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
