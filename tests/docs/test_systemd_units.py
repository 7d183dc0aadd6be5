"""The systemd units in the documentation are valid."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
UNITS = [
    (page.name, unit)
    for page in sorted(DOCS.glob("*.md"))
    for unit in re.findall(r"^```ini\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if "[Service]" in unit
]


def test_there_are_units() -> None:
    assert [page for page, _ in UNITS] == ["serve.md", "sharing.md"]


def systemd_version() -> int:
    text = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"systemd (\d+)", text)[0])


def complaints(unit: str, folder: Path) -> str:
    """Return what systemd says about a unit. Its program need not be installed here."""
    path = folder / "refold.service"
    if systemd_version() < 254:
        unit = unit.replace("DelegateSubgroup=daemon\n", "")
    path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", unit, flags=re.MULTILINE))
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    ).stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize(("page", "unit"), UNITS, ids=[page for page, _ in UNITS])
def test_systemd_accepts_the_units(page: str, unit: str, tmp_path: Path) -> None:
    assert "refold.service" not in complaints(unit, tmp_path)
    assert "Unknown key" in complaints(unit.replace("KillMode", "KilMode"), tmp_path), page
