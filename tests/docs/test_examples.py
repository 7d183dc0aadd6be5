"""The example scripts run and give the documented results, with and without the published measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.client.jobspec.reader import read_jobs
from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.engines.local.backend import local_cluster
from refold.policies.backfill.backfill import Easy
from refold.simulator import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: str, data: str = "nowhere") -> str:
    """Run an example and return its output; `data` is the folder of the measurements."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"REFOLD_DATA": data}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@cache
def results(name: str, data: str = "nowhere") -> list[dict[str, Any]]:
    """Run an example and return its JSON output."""
    parsed: list[dict[str, Any]] = json.loads(run_example(name, "--json", data=data))
    return parsed


def figure8() -> dict[str, dict[str, Any]]:
    """Return the outcomes of Figure 8 by policy."""
    return {outcome["policy"]: outcome for outcome in results("figure8.py")}


def gpus(policy: str) -> tuple[int, int]:
    """Return the number of GPUs of RoBERTa and of T5."""
    parts = figure8()[policy]["parts"]
    return parts["roberta"]["gpus"], parts["t5-3b"]["gpus"]


def test_with_an_equal_split_each_job_has_two_gpus_and_t5_offloads() -> None:
    assert gpus("equal split") == (2, 2)
    assert "offload" in figure8()["equal split"]["parts"]["t5-3b"]["plan"]


def test_rubick_gives_t5_three_gpus_and_tensor_parallelism_as_in_the_paper() -> None:
    assert gpus("rubick") == (1, 3)
    assert figure8()["rubick"]["parts"]["t5-3b"]["plan"] == "DP1 TP3 accumulate 2"


def test_rubick_has_a_higher_throughput_than_an_equal_split() -> None:
    assert figure8()["rubick"]["modelled_sum"] > 1.3 * figure8()["equal split"]["modelled_sum"]


def test_refold_has_a_shorter_mean_completion_time_than_an_equal_split() -> None:
    assert figure8()["refold"]["mean_hours"] < 0.7 * figure8()["equal split"]["mean_hours"]


def test_figure_8_prints_why_roberta_is_reshaped_after_t5_has_ended() -> None:
    printed = run_example("figure8.py")
    assert "T5 has ended" in printed
    assert "RoBERTa is stopped: now 4 GPUs" in printed


def test_llama_is_slower_with_fewer_resources() -> None:
    seconds = [case["modelled"]["seconds"] for case in results("figure7.py")[:4]]
    assert [case["gpus"] for case in results("figure7.py")] == [32, 16, 4, 1, 1]
    assert seconds == sorted(seconds)


def test_llama_is_offloaded_on_one_gpu_only() -> None:
    assert [case["modelled"]["offloads"] for case in results("figure7.py")] == [False, False, False, True, True]


def test_more_cpus_make_offloading_faster() -> None:
    fewer, more = results("figure7.py")[-2:]
    assert more["modelled"]["seconds"] < 0.95 * fewer["modelled"]["seconds"]


def test_our_plans_are_not_slower_than_those_of_the_paper() -> None:
    for case in results("figure7.py"):
        assert case["modelled"]["seconds"] <= case["paper_modelled_seconds"], case["resources"]


def test_figure_7_prints_the_times_of_the_paper() -> None:
    printed = run_example("figure7.py")
    assert "1 GPU, twice the CPUs" in printed
    assert "the paper    66.00 s" in printed
    assert "fitted" not in printed


RUN_TIMES = {"long": 3.0, "wide": 1.0, "slow": 5.0, "short": 1.0, "open": 1.0}


def test_jobs_are_backfilled_as_the_example_describes() -> None:
    jobs = [msgspec.structs.replace(job, work=RUN_TIMES[job.id]) for job in read_jobs(EXAMPLES / "backfill.yaml")[0]]
    journal = ListJournal()
    simulate(jobs, local_cluster(4), Easy(durations="limit"), journal=journal)
    started = [
        (entry.now, order.job, order.allocation.gpu_milli // 1000)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]
    assert started == [(0.0, "long", 3), (0.6, "short", 1), (3.0, "wide", 4), (4.0, "slow", 1), (4.0, "open", 2)]


MEASUREMENTS = Path(os.environ.get("REFOLD_DATA") or EXAMPLES.parents[1] / "shared" / "data")
needs_measurements = pytest.mark.skipif(
    not (MEASUREMENTS / "rubick" / "measured_iter_times.csv").exists(), reason="Rubick's measurements are not available"
)


@needs_measurements
def test_the_measured_throughput_is_that_of_the_paper() -> None:
    outcomes = {outcome["policy"]: outcome for outcome in results("figure8.py", str(MEASUREMENTS))}
    assert outcomes["equal split"]["measured_sum"] == pytest.approx(0.78, abs=0.01)
    assert outcomes["rubick"]["measured_sum"] == pytest.approx(1.44, abs=0.01)


@needs_measurements
def test_the_fitted_model_is_within_20_percent_of_the_measurements() -> None:
    for case in results("figure7.py", str(MEASUREMENTS)):
        assert case["paper_fitted_seconds"] == pytest.approx(case["paper_measured_seconds"], rel=0.2), case["resources"]
