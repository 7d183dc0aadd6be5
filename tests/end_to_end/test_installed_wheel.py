"""The wheel, built and installed into an empty environment, far from the checkout: the first commands of a new user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from real_daemon import wait_until
from served_daemon import ServedDaemon
from tools.check_release import package_version
from tools.install import locked_requirements

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.installed


class Installation:
    """An environment with Refold and nothing of the checkout; `home` is the home folder of its user."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self._folder = folder
        self.python = folder / "environment" / "bin" / "python"
        self.wheel = Path()
        self.variables = {
            "HOME": str(self.home),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }

    def install(self) -> None:
        """Build the source distribution, the wheel from that, and install the wheel with its locked dependencies."""
        dist, requirements = self._folder / "dist", self._folder / "requirements.txt"
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT))
        run(sys.executable, "-m", "venv", str(self.python.parents[1]))
        requirements.write_text(locked_requirements(["refold", "report", "serve"]))
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps"]
        run(*pip, "--require-hashes", "--requirement", str(requirements))
        (self.wheel,) = dist.glob("*.whl")
        run(*pip, "--no-index", str(self.wheel))

    def refold(self, *words: str) -> str:
        """Run a command in the home folder and return what it prints."""
        command = [str(self.python.parent / "refold"), *words]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.home, env=self.variables, timeout=600
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


def run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    found = Installation(tmp_path_factory.mktemp("installation"))
    found.install()
    return found


def test_the_declared_dependencies_are_complete_and_fit_each_other(installation: Installation) -> None:
    run(str(installation.python), "-m", "pip", "check")


def test_nothing_that_compiles_is_installed(installation: Installation) -> None:
    listed = json.loads(run(str(installation.python), "-m", "pip", "list", "--format", "json"))
    assert {package["name"].lower() for package in listed}.isdisjoint({"cython", "llvmlite", "numba", "ziglang"})


def test_the_wheel_contains_every_kernel_compiled(installation: Installation) -> None:
    source = ROOT / "src"
    kernels = [path for path in source.rglob("*.pxd") if path.with_suffix(".py").exists()]
    expected = {"refold/_memory_views", *(str(path.relative_to(source).with_suffix("")) for path in kernels)}
    contained = ZipFile(installation.wheel).namelist()
    assert {name.partition(".")[0] for name in contained if name.endswith(".so")} == expected


def test_the_package_is_not_that_of_the_checkout(installation: Installation) -> None:
    program = "import refold; print(refold.__file__)"
    command = [str(installation.python), "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=installation.home).stdout
    assert Path(found.strip()).is_relative_to(installation.python.parents[1])


def test_the_version_is_that_of_the_project(installation: Installation) -> None:
    assert installation.refold("--version").startswith(f"refold {package_version()}")


def test_policies_are_compared_and_a_report_is_written(installation: Installation) -> None:
    output = installation.refold("compare", "demo", "--limit", "50", "--policies", "fifo,easy")
    assert "fifo" in output and "easy" in output
    assert list(installation.home.glob("refold-compare/*.html"))


def test_plans_are_found(installation: Installation) -> None:
    found = json.loads(installation.refold("plan", "llama-3.1-8b", "--gpus", "16xH100", "--json"))
    assert found["best"][0]["plan"]


def test_the_daemon_runs_a_job(installation: Installation, tmp_path: Path) -> None:
    class Daemon(ServedDaemon):
        def command(self, words: list[str]) -> list[str]:
            return [str(installation.python), *words[1:]]

    words = ["--slots", "1", "--policy", "fifo"]
    daemon = Daemon(installation.home / ".refold", tmp_path / "log", words, installation.variables)
    daemon.launch()
    try:
        wait_until(lambda: daemon.is_serving or daemon.has_ended)
        assert daemon.is_serving, daemon.log()
        installation.refold("submit", "--wait", "--", "echo", "hello")
        (job,) = daemon.jobs()
        assert job.state == "finished"
        assert installation.refold("logs", job.id) == "hello\n"
    finally:
        daemon.kill()
