"""The files of a run that its jobs in Slurm read and write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refold.core import RunFailed, RunStopped
from refold.engines.slurm.scripts import FIRST_PORT, PORTS, SlurmRunFiles


@pytest.fixture
def files(tmp_path: Path) -> SlurmRunFiles:
    found = SlurmRunFiles(tmp_path, "job", 3)
    found.common.folder.mkdir(parents=True)
    return found


def write(files: SlurmRunFiles, suffix: str, text: str) -> None:
    files.prefix.with_name(f"{files.prefix.name}.{suffix}").write_text(text)


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("17\n", "17"),
        ("17.2\n", "17.2"),
        ("17", None),
        ("\n", None),
        ("x17\n", None),
        ("17.\n", None),
        ("1" * 40, None),
    ],
)
def test_a_run_is_claimed_by_a_complete_line_with_a_job_or_step(
    files: SlurmRunFiles, text: str, claim: str | None
) -> None:
    assert files.claim() is None
    write(files, "slurm.claim", text)
    assert files.claim() == claim


@pytest.mark.parametrize(("text", "status"), [("0\n", 0), ("143\n", 143), ("14", None), ("-1\n", None), ("\n", None)])
def test_the_exit_status_is_a_complete_line_with_a_number(files: SlurmRunFiles, text: str, status: int | None) -> None:
    assert files.status() is None
    write(files, "slurm.status", text)
    assert files.status() == status


def test_a_gang_has_a_port_to_meet_and_one_for_each_instance(files: SlurmRunFiles) -> None:
    assert not files.was_prepared()
    start = files.record_start("mark", 2)
    assert FIRST_PORT <= start.port < FIRST_PORT + PORTS - 2
    assert start.worker_ports == (start.port + 1, start.port + 2)
    assert files.was_prepared()
    assert files.record_start("another mark", 2) == start, "the first record counts"


def test_a_run_of_one_instance_needs_no_ports(files: SlurmRunFiles) -> None:
    start = files.record_start("mark", 1)
    assert (start.port, start.worker_ports) == (0, ())


def test_files_belong_to_the_owner_of_the_folder_of_the_job(files: SlurmRunFiles, tmp_path: Path) -> None:
    assert files.are_of(os.getuid())
    assert not files.are_of(os.getuid() + 1)
    assert not SlurmRunFiles(tmp_path, "other", 1).are_of(os.getuid())


@pytest.mark.parametrize("end", [RunStopped("job", 3), RunFailed("job", 3, "lost", retry=True)])
def test_an_end_is_recorded_if_there_is_a_folder_for_it(
    files: SlurmRunFiles, tmp_path: Path, end: RunStopped | RunFailed
) -> None:
    assert files.record_end(end)
    assert files.common.read_end() == end
    assert not SlurmRunFiles(tmp_path / "no such folder", "job", 3).record_end(end)
