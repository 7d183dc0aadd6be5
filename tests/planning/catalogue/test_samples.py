"""Measurements as CSV files."""

from pathlib import Path

import pytest

from refold.errors import BadFile, BadInput, BadRow
from refold.model.plan import Plan
from refold.planning.catalogue.measurements import COLUMNS, read_samples, write_samples
from refold.planning.perf.measurement import Measurement

TIMED = Measurement("m", "A100-80GB", (8, 8), Plan(2, 4, 2, 1, recompute="full", accumulation=8), 64, 2048, 32.0, 1.5)
OUT_OF_MEMORY = Measurement("m", "A100-80GB", (1,), Plan(offload=True), 64, 2048, status="oom")
FULL = Measurement("m", "", (2, 1), Plan(3), 3, 1, 0.0, 2.5, 0.5, 1.25, 0.75, 10.5, 11.0)


def test_samples_round_trip_through_a_file(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.csv", [TIMED, OUT_OF_MEMORY, FULL])
    assert read_samples(tmp_path / "samples.csv") == [TIMED, OUT_OF_MEMORY, FULL]
    assert (tmp_path / "samples.csv").read_text().splitlines()[0] == ",".join(COLUMNS)


def test_only_two_columns_are_required(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("batch,step_s\n64,0.5\n", encoding="utf-8-sig")
    assert read_samples(path) == [Measurement("model", "", (1,), Plan(), 64, 1, 0.0, 0.5)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no column batch and no column step_s"),
        ("batch,step_s\n", "has no samples"),
        ("batch,step\n1,1\n", "unknown column 'step'; did you mean 'step_s'?"),
        ("batch,step_s\n1\n", "expected one cell per column"),
        ("batch,step_s\n1,2,3\n", "expected one cell per column"),
        ("batch,step_s\nx,1\n", "line 2: batch is 'x', expected a whole number"),
        ("batch,step_s\n,1\n", "line 2: batch is '', expected samples per step"),
        ("batch,step_s\n0,1\n", "line 2: batch is '0', expected a whole number from 1"),
        ("batch,step_s\n1,0\n", "line 2: step_s is '0', expected seconds > 0, or status oom"),
        ("batch,step_s\n1,-1\n", "line 2: step_s is '-1', expected a number ≥ 0"),
        ("batch,step_s\n1,nan\n", "line 2: step_s is 'nan', expected a number ≥ 0"),
        ("batch,step_s\n1,inf\n", "line 2: step_s is 'inf', expected a number ≥ 0"),
        ("batch,step_s,status\n1,1,maybe\n", "status is 'maybe', expected ok or oom"),
        ("batch,step_s,recompute\n1,1,some\n", "recompute is 'some', expected none or selective or full"),
        ("batch,step_s,offload\n1,1,2\n", "offload is '2', expected yes or no"),
        ("batch,step_s,placement\n1,1,8x8\n", "placement is '8x8', expected GPUs on each node, such as 8 or 4+4"),
        ("batch,step_s,placement\n1,1,8\n", "DP1 uses 1 GPUs, but gpus_on_node is (8,)"),
        ("batch,step_s,accumulation\n16,1,3\n", "batch 16 is not divisible by 1 replicas × 3 micro-batches"),
        ("batch,step_s,zero\n1,1,7\n", "zero is 7, expected ZeRO stages 0 to 3"),
        ("batch,step_s,data\n1,1,99999999999999999999\n", "data is '99999999999999999999', expected a whole number"),
    ],
)
def test_invalid_files_are_rejected_with_a_reason(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as raised:
        read_samples(path)
    assert isinstance(raised.value, BadFile | BadRow)
    assert problem in str(raised.value)


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    for name, content in (("bytes", b"\xff\xfe\x00"), ("folder", None), ("missing", None)):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        elif name == "folder":
            path.mkdir()
        with pytest.raises(BadFile):
            read_samples(path)
