"""Work that is spread over a Ray cluster: results, progress, and workers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, die, die_first, double, fail, fail_beside

from refold.engines.ray import RayTasks, WorkersLost, connected
from refold.engines.ray.tasks import MAX_RETRIES


@pytest.fixture
def tasks(cluster: RayCluster) -> Iterator[RayTasks]:
    with connected(cluster.ray, cluster.address):
        yield RayTasks(cluster.ray)


def test_results_are_in_the_order_of_the_items_and_progress_is_their_sum(tasks: RayTasks) -> None:
    amounts: list[float] = []
    assert tasks.map(double, None, range(20), amounts.append) == [2 * item for item in range(20)]
    assert sum(amounts) == 20


def test_the_work_of_a_killed_worker_is_repeated(tasks: RayTasks, tmp_path: Path) -> None:
    amounts: list[float] = []
    assert tasks.map(die_first, str(tmp_path), range(6), amounts.append) == list(range(6))
    assert sum(amounts) == 6
    assert len(list(tmp_path.iterdir())) == 6


def test_work_that_kills_its_worker_every_time_is_given_up(tasks: RayTasks) -> None:
    with pytest.raises(WorkersLost, match=rf"a worker of Ray was lost {MAX_RETRIES + 1} times"):
        tasks.map(die, None, [1])


def test_errors_of_the_work_are_raised_at_once(tasks: RayTasks) -> None:
    with pytest.raises(ValueError, match="3 is bad"):
        tasks.map(fail, None, [3])


def test_other_work_ends_with_the_connection_after_an_error(cluster: RayCluster, tmp_path: Path) -> None:
    with connected(cluster.ray, cluster.address), pytest.raises(ValueError, match="0 is bad"):
        RayTasks(cluster.ray).map(fail_beside, str(tmp_path), [0, 1])
    (worker,) = tmp_path.iterdir()
    while (Path("/proc") / worker.name).exists():
        time.sleep(0.02)


def compare(folder: Path, cluster: RayCluster, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refold", "compare", "--policies", "fifo,srtf,easy,las,fifo-skip", "--json"]
    words = [*command, "--out", str(folder / "out"), "--limit", "300", *options]
    return subprocess.run(words, env=cluster.environment, capture_output=True, text=True, check=False)


def test_compare_on_ray_gives_the_same_results(cluster: RayCluster, tmp_path: Path) -> None:
    here, there = compare(tmp_path, cluster), compare(tmp_path, cluster, "--workers", "ray")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)


def test_a_policy_may_be_a_file(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from refold import Decision\n\nclass Mine:\n    name = 'mine'\n\n    def decide(self, view):\n"
        "        raise ValueError('bad policy')\n"
    )
    found = compare(tmp_path, cluster, "--workers", "ray", "--policies", f"fifo,{tmp_path / 'mine.py'}")
    assert found.returncode == 2
    assert "policy mine failed" in found.stderr and "bad policy" in found.stderr


def test_processes_and_ray_exclude_each_other(cluster: RayCluster, tmp_path: Path) -> None:
    found = compare(tmp_path, cluster, "--workers", "ray", "--processes", "2")
    assert found.returncode != 0 and "--workers ray uses all CPUs of Ray" in found.stderr
