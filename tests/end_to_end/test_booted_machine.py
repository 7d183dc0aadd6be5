"""The systemd units of the documentation in a booted virtual machine with cgroups of version 2: `make test-machine`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from packaging.requirements import Requirement

import refold

ROOT = Path(__file__).parent.parent.parent
MACHINE = ROOT / "build" / "machine"
MISSING = "needs a virtual machine: `make test-machine` builds one where it may"
BOOT_SECONDS = 1500.0
"""Two boots and all trials, with an emulated processor."""

UNIT = "etc/systemd/system"
TRIAL_UNIT = """\
[Unit]
After=refold.service
[Service]
Type=oneshot
ExecStart=/opt/refold/bin/python /opt/machine_trial.py {user}
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=multi-user.target
"""
SETTINGS = "cluster: {slots: 2}\npolicy: fifo\n"


class Setup(NamedTuple):
    """The page that has the unit, what is added to the daemon's settings, and who submits and runs jobs."""

    page: str
    settings: str
    submitter: str
    runner: str


SETUPS = [
    Setup("serve.md", "", "root", "refold"),
    Setup("sharing.md", "users: {allow: all}\nserve: {user: refold}\n", "ann", "ann"),
]


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Collect an installed package and what it requires."""
    if name in found:
        return
    found[name] = distribution(name)
    for text in found[name].requires or ():
        wanted = Requirement(text)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            needed(wanted.name, frozenset(wanted.extras), found)


def install(root: Path, setup: Setup) -> None:
    """Install Refold of this environment to /opt/refold, and the units."""
    subprocess.run(["chroot", root, "python3", "-m", "venv", "--without-pip", "/opt/refold"], check=True)
    (packages,) = (root / "opt" / "refold" / "lib").glob("python3.*/site-packages")
    found: dict[str, Distribution] = {}
    needed("refold", frozenset(["", "serve"]), found)
    for one in found.values():
        for file in one.files or ():
            source = Path(str(one.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, packages / file)
    for editable in packages.glob("__editable__*"):
        editable.unlink()
    own = Path(refold.__file__).parent
    shutil.copytree(own, packages / "refold", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    program = root / "opt" / "refold" / "bin" / "refold"
    program.write_text("#!/opt/refold/bin/python\nfrom refold.cli.app import main\nmain()\n")
    program.chmod(0o755)
    (unit,) = re.findall(r"^```ini\n(.*?)^```", (ROOT / "docs" / setup.page).read_text(), re.DOTALL | re.MULTILINE)
    (root / UNIT / "refold.service").write_text(unit)
    (root / UNIT / "trial.service").write_text(TRIAL_UNIT.format(user=setup.submitter))
    (root / "etc" / "refold.yaml").write_text(SETTINGS + setup.settings)
    shutil.copy(ROOT / "tests" / "helpers" / "machine_trial.py", root / "opt")
    subprocess.run(["chroot", root, "useradd", "--system", "refold"], check=True)
    subprocess.run(["chroot", root, "useradd", "--create-home", "ann"], check=True)
    subprocess.run(["chroot", root, "systemctl", "enable", "refold", "trial"], check=True, capture_output=True)


def boot(root: Path, folder: Path) -> list[dict[str, Any]]:
    """Boot a machine from a copy of a folder until it is switched off; return its findings, by boot."""
    disk, findings = folder / "disk", folder / "findings"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, disk, "3G"], check=True)
    (kernel,), (initial,) = (root / "boot").glob("vmlinuz-*"), (root / "boot").glob("initrd.img-*")
    arguments = "root=/dev/vda rw console=ttyS0 earlyprintk=ttyS0 systemd.unified_cgroup_hierarchy=1 panic=-1"
    # Not KVM: where a machine is virtual itself, it may be there and hang.
    words: list[str | Path] = [
        "qemu-system-x86_64",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "1024",
    ]
    words += ["-nodefaults", "-display", "none", "-nic", "none", "-kernel", kernel, "-initrd", initial]
    words += ["-append", arguments, "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe"]
    words += ["-serial", f"file:{folder / 'console'}", "-serial", f"file:{findings}"]
    subprocess.run(words, check=True, timeout=BOOT_SECONDS)
    return [json.loads(line) for line in findings.read_text().splitlines()]


@pytest.fixture(params=SETUPS, ids=[setup.page for setup in SETUPS])
def setup(request: pytest.FixtureRequest) -> Setup:
    return cast(Setup, request.param)


@pytest.fixture
def found(setup: Setup, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    if not (MACHINE / "built").exists() or not shutil.which("qemu-system-x86_64"):
        pytest.skip(MISSING)
    root = tmp_path / "root"
    subprocess.run(["cp", "--archive", MACHINE / "root", root], check=True)
    install(root, setup)
    try:
        yield boot(root, tmp_path)
    finally:
        console = tmp_path / "console"
        print(console.read_text(errors="replace")[-5000:] if console.exists() else "not booted", file=sys.stderr)
        shutil.rmtree(root)
        (tmp_path / "disk").unlink()


@pytest.mark.machine
def test_the_unit_limits_kills_and_adopts_jobs_in_cgroups_and_survives_a_reboot(
    setup: Setup, found: list[dict[str, Any]]
) -> None:
    assert len(found) == 2, found
    first, second = found
    assert (first["hierarchies"], first["limits"]) == (["cgroup2"], "enforced")
    assert first["user"] == setup.runner
    assert first["daemon"] == "0::/system.slice/refold.service/daemon"
    assert re.fullmatch(r"system\.slice/refold\.service/refold-[0-9a-f]{16}/[0-9a-f]{32}\.0", first["group"])
    limits = [first[name] for name in ("cpu.max", "memory.max", "memory.oom.group")]
    assert limits == ["50000 100000", str(2**27), "1"]
    why = "out of memory: a process was killed at the limit of 64 MiB"
    assert first["out of memory"] == {"state": "failed", "message": why, "exit_code": 137}
    assert (first["escaped"]["state"], first["escaped"]["alive"]) == ("cancelled", False)
    assert first["killed"] == first["restarted"] == {"state": "running", "runs": 1, "alive": True}
    assert first["after"]["state"] == "finished"
    assert (second["runs"], second["end"], second["left"], second["tracebacks"]) == (2, "cancelled", [], 0)
    assert any("the machine was restarted" in event for event in second["events"]), second["events"]
