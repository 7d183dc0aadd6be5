"""`--spread-power`, as it is typed, and what commands say of power."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.cli.inputs.policy_choice import SPREAD

Said = Callable[..., str]
Told = Callable[..., Any]

RACKS = """
gpu_types: [{name: A100, idle_watts: 50, busy_watts: 400}]
racks: [{name: left, limit_watts: LIMIT}, {name: right, limit_watts: LIMIT}]
nodes:
- {name: a, gpus: 4, gpu_type: A100, rack: left, idle_watts: 300, busy_watts: 500}
- {name: b, gpus: 4, gpu_type: A100, rack: right, idle_watts: 300, busy_watts: 500}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., str]:
    """The path of a file with two racks of four GPUs, with this limit each; or with other text."""

    def cluster(limit: int = 2000, text: str = RACKS) -> str:
        path = tmp_path / "racks.yaml"
        path.write_text(text.replace("LIMIT", str(limit)))
        return str(path)

    return cluster


def test_it_is_short_for_a_placement(jobs: Path, cluster: Callable[..., str], told: Told) -> None:
    short = told("simulate", str(jobs), "--cluster", cluster(2600), "--spread-power")
    long = told("simulate", str(jobs), "--cluster", cluster(2600), "--placement", SPREAD)
    assert short["settings"] == {"placement": SPREAD}
    assert short == long


def test_limits_are_kept(jobs: Path, cluster: Callable[..., str], told: Told) -> None:
    words = ("simulate", str(jobs), "--cluster", cluster(2000), "--gpus-per-instance", "2", "--policy", "fifo-skip")
    before, kept = told(*words), told(*words, "--spread-power", "--skip-bad")
    assert before["measures"]["power"]["above_limit_seconds"] > 0
    assert kept["measures"]["power"]["above_limit_seconds"] == 0
    assert kept["measures"]["outcomes"]["finished"] == 5


def test_measures_have_the_power_of_every_rack(jobs: Path, cluster: Callable[..., str], told: Told, said: Said) -> None:
    power = told("simulate", str(jobs), "--cluster", cluster())["measures"]["power"]
    assert [(rack["name"], rack["limit_watts"]) for rack in power["racks"]] == [("left", 2000), ("right", 2000)]
    assert power["energy_kwh"] > 0
    printed = said("simulate", str(jobs), "--cluster", cluster())
    for words in ("\nRacks\n", "energy per GPU-hour of finished jobs, kWh", "a rack above its limit", "2.00 kW"):
        assert words in printed


def test_where_no_power_is_known_nothing_is_said_of_it(jobs: Path, told: Told, said: Said) -> None:
    assert told("simulate", str(jobs), "--cluster", "2x4")["measures"]["power"] is None
    printed = said("simulate", str(jobs), "--cluster", "2x4")
    assert "Racks" not in printed
    assert "kWh" not in printed


def test_compare_spreads_with_every_usual_policy_that_takes_a_placement(
    jobs: Path, cluster: Callable[..., str], told: Told, tmp_path: Path
) -> None:
    document = told("compare", str(jobs), "--cluster", cluster(2600), "--spread-power", "--out", str(tmp_path / "out"))
    names = [run["name"] for run in document["runs"]]
    assert f"fifo/{SPREAD}" in names
    assert f"las/{SPREAD}" in names
    assert all(run["settings"]["placement"] == SPREAD for run in document["runs"])


def test_compare_has_columns_of_power_where_one_spreads(
    jobs: Path, cluster: Callable[..., str], said: Said, tmp_path: Path
) -> None:
    words = ("compare", str(jobs), "--cluster", cluster(2600), "--out", str(tmp_path / "out"), "--policies")
    assert "unevenness" in said(*words, f"fifo,fifo/{SPREAD}")
    assert "unevenness" not in said(*words, "fifo,las")


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["POLICY", "las/fgd"], "--spread-power places jobs by genetic-power, and las/fgd by fgd: leave one of them"),
        (["PLACEMENT", "fgd"], "by fgd: leave one of them out"),
        (["--set", "placement=fgd"], "and --set placement by fgd: leave one of them out"),
        (["POLICY", "rubick"], "rubick takes none: it decides itself where jobs go. Policies that take one: fifo, "),
    ],
)
def test_who_else_says_where_jobs_go_is_refused(
    jobs: Path, cluster: Callable[..., str], command: str, words: list[str], text: str, refuses: Said
) -> None:
    many = "" if command == "simulate" else "s"
    options = {"POLICY": "--policies" if many else "--policy", "PLACEMENT": f"--placement{many}"}
    typed = [options.get(word, word) for word in words]
    assert text in refuses(command, str(jobs), "--cluster", cluster(), "--spread-power", *typed)


ALL_ON_ONE_NODE = """
from refold.model import Allocation, Decision, Share, Start


class AllOnOneNode:
    name = "all-on-one-node"

    def __init__(self, placement: str = "best-fit") -> None:
        pass

    def decide(self, view):
        pairs = [Allocation((Share(0, gpus),)) for gpus in ((0, 1), (2, 3))]
        return Decision(starts=tuple(Start(job, pair) for job, pair in zip(view.waiting, pairs)))
"""


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_who_passes_limits_all_the_same_is_named(
    tmp_path: Path, cluster: Callable[..., str], command: str, told: Told
) -> None:
    two, own = tmp_path / "two.csv", tmp_path / "own.py"
    two.write_text("job_id,submit_s,num_gpu,duration_s\na,0,2,90\nb,0,2,90\n")
    own.write_text(ALL_ON_ONE_NODE)
    option = "--policy" if command == "simulate" else "--policies"
    words = (command, str(two), "--cluster", cluster(2000), option, str(own), "--out", str(tmp_path / "out"))
    assert told(*words)["notes"] == []
    assert told(*words, "--spread-power")["notes"] == [
        f"all-on-one-node/{SPREAD}: racks were above their limits for 1 min 30 s, since this policy also places jobs "
        "by other means than its placement, or in rounds"
    ]


WITHOUT_WATTS = "nodes: [{name: a, gpus: 8, rack: left}, {name: b, gpus: 8, rack: right}]"
WITHOUT_RACKS = "nodes: [{name: a, gpus: 8, idle_watts: 300, busy_watts: 500}]"
ONE_RACK = "nodes: [{name: a, gpus: 8, rack: r, idle_watts: 300, busy_watts: 500}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WITHOUT_WATTS, "neither nodes nor gpu_types have idle_watts and busy_watts;"),
        (WITHOUT_RACKS, "cluster racks says too little: no node has a rack;"),
        (ONE_RACK, "there is one rack, and it has no limit_watts;"),
    ],
)
def test_a_cluster_that_says_too_little_is_told_what_to_fill_in(
    jobs: Path, cluster: Callable[..., str], text: str, problem: str, refuses: Said
) -> None:
    told = refuses("simulate", str(jobs), "--cluster", cluster(text=text), "--spread-power")
    assert problem in told
    assert "racks: [{name: r1, limit_watts: 12000}] and nodes: [{name: a, count: 4" in told


def test_a_limit_below_idle_is_refused(jobs: Path, cluster: Callable[..., str], refuses: Said) -> None:
    told = refuses("simulate", str(jobs), "--cluster", cluster(400), "--spread-power")
    assert "rack 'left' may draw 400 W (its limit_watts), but its nodes and GPUs draw 500 W when idle" in told


def test_jobs_without_the_power_for_them_are_refused_or_left_out(
    jobs: Path, cluster: Callable[..., str], refuses: Said, told: Told
) -> None:
    words = ("simulate", str(jobs), "--cluster", cluster(2000), "--gpus-per-instance", "4", "--spread-power")
    text = refuses(*words)
    assert "2 jobs for which racks have not the power, even when all else is idle, such as a: 4 GPU" in text
    assert "--skip-bad leaves such jobs out" in text
    document = told(*words, "--skip-bad")
    assert document["measures"]["outcomes"]["finished"] == 4
    assert document["notes"][-1] == "left out 2 jobs for which racks have not the power, even when all else is idle"
    assert "these are all jobs" in refuses(*words[:3], cluster(500), *words[4:], "--skip-bad")
