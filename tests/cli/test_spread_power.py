"""`--spread-power`, and the power measures of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.cli.inputs.policy_choice import POWER_PLACEMENT

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

RACKS = """
gpu_types: [{name: A100, idle_watts: 50, busy_watts: 400}]
racks: [{name: left, limit_watts: LIMIT}, {name: right, limit_watts: LIMIT}]
nodes:
- {name: a, gpus: 4, gpu_type: A100, rack: left, idle_watts: 300, busy_watts: 500}
- {name: b, gpus: 4, gpu_type: A100, rack: right, idle_watts: 300, busy_watts: 500}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., str]:
    """Write a cluster file with two racks of four GPUs and the given limit each, or another text; return its path."""

    def cluster(limit: int = 2000, text: str = RACKS) -> str:
        path = tmp_path / "racks.yaml"
        path.write_text(text.replace("LIMIT", str(limit)))
        return str(path)

    return cluster


def test_it_selects_the_power_aware_placement(jobs: Path, cluster: Callable[..., str], json_of: JsonOf) -> None:
    by_option = json_of("simulate", str(jobs), "--cluster", cluster(2600), "--spread-power")
    by_placement = json_of("simulate", str(jobs), "--cluster", cluster(2600), "--placement", POWER_PLACEMENT)
    assert by_option["settings"] == {"placement": POWER_PLACEMENT}
    assert by_option == by_placement


def test_limits_are_kept(jobs: Path, cluster: Callable[..., str], json_of: JsonOf) -> None:
    words = ("simulate", str(jobs), "--cluster", cluster(2000), "--gpus-per-instance", "2", "--policy", "fifo-skip")
    without, spread = json_of(*words), json_of(*words, "--spread-power", "--skip-bad")
    assert without["measures"]["power"]["above_limit_seconds"] > 0
    assert spread["measures"]["power"]["above_limit_seconds"] == 0
    assert spread["measures"]["outcomes"]["finished"] == 5


def test_measures_include_the_power_of_every_rack(
    jobs: Path, cluster: Callable[..., str], json_of: JsonOf, stdout_of: TextOf
) -> None:
    power = json_of("simulate", str(jobs), "--cluster", cluster())["measures"]["power"]
    assert [(rack["name"], rack["limit_watts"]) for rack in power["racks"]] == [("left", 2000), ("right", 2000)]
    assert power["energy_kwh"] > 0
    printed = stdout_of("simulate", str(jobs), "--cluster", cluster())
    for words in ("\nRacks\n", "energy per GPU-hour of finished jobs, kWh", "rack above power limit", "2.00 kW"):
        assert words in printed


def test_without_power_data_there_are_no_power_measures(jobs: Path, json_of: JsonOf, stdout_of: TextOf) -> None:
    assert json_of("simulate", str(jobs), "--cluster", "2x4")["measures"]["power"] is None
    printed = stdout_of("simulate", str(jobs), "--cluster", "2x4")
    assert "Racks" not in printed
    assert "kWh" not in printed


def test_compare_uses_every_default_policy_that_takes_a_placement(
    jobs: Path, cluster: Callable[..., str], json_of: JsonOf, tmp_path: Path
) -> None:
    document = json_of(
        "compare", str(jobs), "--cluster", cluster(2600), "--spread-power", "--out", str(tmp_path / "out")
    )
    names = [run["name"] for run in document["runs"]]
    assert f"fifo/{POWER_PLACEMENT}" in names
    assert f"las/{POWER_PLACEMENT}" in names
    assert all(run["settings"]["placement"] == POWER_PLACEMENT for run in document["runs"])


def test_compare_has_power_columns_if_a_policy_spreads_power(
    jobs: Path, cluster: Callable[..., str], stdout_of: TextOf, tmp_path: Path
) -> None:
    words = ("compare", str(jobs), "--cluster", cluster(2600), "--out", str(tmp_path / "out"), "--policies")
    assert "imbalance" in stdout_of(*words, f"fifo,fifo/{POWER_PLACEMENT}")
    assert "imbalance" not in stdout_of(*words, "fifo,las")


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["POLICY", "las/fgd"], "--spread-power and las/fgd both select a placement (genetic-power and another)"),
        (["PLACEMENT", "fgd"], "fgd both select a placement"),
        (["--set", "placement=fgd"], "and --set placement=fgd both select a placement"),
        (["POLICY", "rubick"], "rubick places jobs itself; policies that take a placement: fifo, "),
    ],
)
def test_other_placements_are_rejected(
    jobs: Path, cluster: Callable[..., str], command: str, words: list[str], text: str, error_of: TextOf
) -> None:
    many = "" if command == "simulate" else "s"
    options = {"POLICY": "--policies" if many else "--policy", "PLACEMENT": f"--placement{many}"}
    replaced = [options.get(word, word) for word in words]
    assert text in error_of(command, str(jobs), "--cluster", cluster(), "--spread-power", *replaced)


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
def test_a_policy_that_exceeds_limits_is_noted(
    tmp_path: Path, cluster: Callable[..., str], command: str, json_of: JsonOf
) -> None:
    two, own = tmp_path / "two.csv", tmp_path / "own.py"
    two.write_text("job_id,submit_s,num_gpu,duration_s\na,0,2,90\nb,0,2,90\n")
    own.write_text(ALL_ON_ONE_NODE)
    option = "--policy" if command == "simulate" else "--policies"
    words = (command, str(two), "--cluster", cluster(2000), option, str(own), "--out", str(tmp_path / "out"))
    assert json_of(*words)["notes"] == []
    assert json_of(*words, "--spread-power")["notes"] == [
        f"all-on-one-node/{POWER_PLACEMENT}: racks were above their limits for 1 min 30 s, because this policy "
        "does not place all jobs with its placement rule, or places them in rounds"
    ]


WITHOUT_WATTS = "nodes: [{name: a, gpus: 8, rack: left}, {name: b, gpus: 8, rack: right}]"
WITHOUT_RACKS = "nodes: [{name: a, gpus: 8, idle_watts: 300, busy_watts: 500}]"
ONE_RACK = "nodes: [{name: a, gpus: 8, rack: r, idle_watts: 300, busy_watts: 500}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WITHOUT_WATTS, "neither nodes nor gpu_types have idle_watts and busy_watts;"),
        (WITHOUT_RACKS, "needs the power of racks, but in cluster racks no node has a rack;"),
        (ONE_RACK, "the only rack has no limit_watts;"),
    ],
)
def test_the_error_for_missing_power_data_names_the_fields(
    jobs: Path, cluster: Callable[..., str], text: str, problem: str, error_of: TextOf
) -> None:
    message = error_of("simulate", str(jobs), "--cluster", cluster(text=text), "--spread-power")
    assert problem in message
    assert "racks: [{name: r1, limit_watts: 12000}] and nodes: [{name: a, count: 4" in message


def test_a_limit_below_idle_power_is_rejected(jobs: Path, cluster: Callable[..., str], error_of: TextOf) -> None:
    message = error_of("simulate", str(jobs), "--cluster", cluster(400), "--spread-power")
    assert "rack 'left': limit_watts is 400 W, but its nodes and GPUs draw 500 W when idle" in message


def test_jobs_above_the_power_limits_are_rejected_or_skipped(
    jobs: Path, cluster: Callable[..., str], error_of: TextOf, json_of: JsonOf
) -> None:
    words = ("simulate", str(jobs), "--cluster", cluster(2000), "--gpus-per-instance", "4", "--spread-power")
    text = error_of(*words)
    assert "2 jobs above the rack power limits even on an idle cluster, such as a (4 GPUs)" in text
    assert "skip such jobs with --skip-bad" in text
    document = json_of(*words, "--skip-bad")
    assert document["measures"]["outcomes"]["finished"] == 4
    assert document["notes"][-1] == "skipped 2 jobs above the rack power limits even on an idle cluster"
    assert "these are all jobs" in error_of(*words[:3], cluster(500), *words[4:], "--skip-bad")
