"""The examples run as they stand, and decide what they say they do; with the published measurements and without."""

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

from refold.backends.local.backend import local_cluster
from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.jobspec.jobs_file import read_jobs
from refold.policies.backfill.backfill import Easy
from refold.simulator import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, data: str = "nowhere") -> str:
    """What an example prints; `data` is where it looks for measurements."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"REFOLD_DATA": data}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@cache
def answer(name: str, data: str = "nowhere") -> list[dict[str, Any]]:
    """The same, for programs."""
    plain: list[dict[str, Any]] = json.loads(run(name, "--json", data=data))
    return plain


def figure8() -> dict[str, dict[str, Any]]:
    return {one["policy"]: one for one in answer("figure8.py")}


def gpus(policy: str) -> tuple[int, int]:
    """Of RoBERTa and of T5."""
    parts = figure8()[policy]["parts"]
    return parts["roberta"]["gpus"], parts["t5-3b"]["gpus"]


def test_an_equal_split_is_equal() -> None:
    assert gpus("equal split") == (2, 2)
    assert "offload" in figure8()["equal split"]["parts"]["t5-3b"]["plan"]


def test_rubick_gives_t5_three_gpus_and_slices_it_as_the_paper_does() -> None:
    assert gpus("rubick") == (1, 3)
    assert figure8()["rubick"]["parts"]["t5-3b"]["plan"] == "DP1 TP3 accumulate 2"


def test_rubick_has_more_throughput_than_an_equal_split() -> None:
    assert figure8()["rubick"]["modelled_sum"] > 1.3 * figure8()["equal split"]["modelled_sum"]


def test_under_refold_jobs_end_sooner_than_with_an_equal_split() -> None:
    assert figure8()["refold"]["mean_hours"] < 0.7 * figure8()["equal split"]["mean_hours"]


def test_figure_8_tells_why_roberta_was_changed_when_t5_had_ended() -> None:
    story = run("figure8.py")
    assert "T5 has ended" in story
    assert "RoBERTa is stopped: now 4 GPUs" in story


def test_llama_slows_down_as_its_resources_shrink() -> None:
    seconds = [one["modelled"]["seconds"] for one in answer("figure7.py")[:4]]
    assert [one["gpus"] for one in answer("figure7.py")] == [32, 16, 4, 1, 1]
    assert seconds == sorted(seconds)


def test_llama_is_offloaded_on_one_gpu_only() -> None:
    assert [one["modelled"]["offloads"] for one in answer("figure7.py")] == [False, False, False, True, True]


def test_more_cpus_make_offloading_faster() -> None:
    fewer, more = answer("figure7.py")[-2:]
    assert more["modelled"]["seconds"] < 0.95 * fewer["modelled"]["seconds"]


def test_our_plans_are_no_slower_than_those_of_the_paper() -> None:
    for one in answer("figure7.py"):
        assert one["modelled"]["seconds"] <= one["paper_modelled_seconds"], one["resources"]


def test_figure_7_can_be_read() -> None:
    page = run("figure7.py")
    assert "1 GPU, twice the CPUs" in page
    assert "the paper    66.00 s" in page
    assert "fitted" not in page


SLEEPS = {"long": 3.0, "wide": 1.0, "slow": 5.0, "short": 1.0, "open": 1.0}


def test_backfill_goes_as_the_example_says() -> None:
    jobs = [msgspec.structs.replace(job, work=SLEEPS[job.id]) for job in read_jobs(EXAMPLES / "backfill.yaml")]
    journal = ListJournal()
    simulate(jobs, local_cluster(4), Easy(durations="limit"), journal=journal)
    started = [
        (entry.now, order.job, order.allocation.gpu_milli // 1000)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]
    assert started == [(0.0, "long", 3), (0.6, "short", 1), (3.0, "wide", 4), (4.0, "slow", 1), (4.0, "open", 2)]


MEASURED = Path(os.environ.get("REFOLD_DATA") or EXAMPLES.parents[1] / "shared" / "data")
beside_measurements = pytest.mark.skipif(
    not (MEASURED / "rubick" / "measured_iter_times.csv").exists(), reason="Rubick's measurements are not here"
)


@beside_measurements
def test_measured_throughput_is_that_of_the_paper() -> None:
    told = {one["policy"]: one for one in answer("figure8.py", str(MEASURED))}
    assert told["equal split"]["measured_sum"] == pytest.approx(0.78, abs=0.01)
    assert told["rubick"]["measured_sum"] == pytest.approx(1.44, abs=0.01)


@beside_measurements
def test_a_fit_comes_near_to_what_was_measured() -> None:
    for one in answer("figure7.py", str(MEASURED)):
        assert one["paper_fitted_seconds"] == pytest.approx(one["paper_measured_seconds"], rel=0.2), one["resources"]
