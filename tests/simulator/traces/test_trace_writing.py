"""A written trace is read back unchanged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from refold.errors import BadFile
from refold.model import MAX_AMOUNT, Demand, Job, Plan, TopologyRequest
from refold.simulator.traces.formats import read_trace, write_trace
from refold.simulator.traces.trace import Trace

FIXTURES = Path(__file__).parent / "fixtures"

_seconds = st.floats(0, MAX_AMOUNT) | st.integers(0, 10**9).map(float)
_words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
_arguments = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_demands = st.builds(
    Demand,
    instances=st.integers(1, 2**20),
    gpus=st.integers(0, 2**20),
    gpu_milli=st.integers(1, 1000),
    cpu_milli=st.integers(0, MAX_AMOUNT),
    memory_mib=st.integers(0, MAX_AMOUNT),
    gpu_types=st.sets(st.sampled_from(["A100-80GB", "T4", "H100 SXM", 'odd"name', "a,b"])).map(sorted).map(tuple),
    topology=st.none() | st.builds(TopologyRequest, st.just(""), st.sampled_from(["rack", "a|b"])),
)
_plans = st.builds(
    Plan,
    data=st.integers(1, 64),
    zero=st.integers(0, 3),
    offload=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
_jobs = st.builds(
    Job,
    id=_words.filter(bool),
    submitted=_seconds,
    demand=_demands,
    work=st.none() | _seconds,
    tenant=_words | st.just("default"),
    user=_words,
    group=_words,
    job_class=st.sampled_from(["guaranteed", "best-effort"]),
    priority=st.integers(-5, 5),
    preemptible=st.booleans(),
    reshapable=st.booleans(),
    time_limit=st.none() | st.floats(0.001, MAX_AMOUNT),
    workload=_words | st.sampled_from(["BE", "steps=3", "a|b", "x=y"]),
    plan=st.none() | _plans,
    steps=st.none() | st.integers(0, 2**40),
    batch=st.integers(0, MAX_AMOUNT),
    sequence=st.integers(0, MAX_AMOUNT),
    command=st.lists(_arguments, max_size=3).map(tuple),
)


@settings(deadline=None)
@given(st.lists(_jobs, min_size=1, max_size=5, unique_by=lambda job: job.id))
def test_written_jobs_are_read_back_unchanged(jobs: list[Job]) -> None:
    ordered = tuple(sorted(jobs, key=lambda job: job.submitted))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        write_trace(Trace("any", ordered), path)
        assert read_trace(path).jobs == ordered


@pytest.mark.parametrize(
    "name", ["common.csv", "openb.csv", "philly.json", "helios.csv", "pai_task_table.csv", "rubick.csv", "sacct.txt"]
)
def test_every_format_converts_to_the_common_format_and_back(name: str, tmp_path: Path) -> None:
    trace = read_trace(FIXTURES / name)
    write_trace(trace, tmp_path / "converted.csv.gz")
    assert read_trace(tmp_path / "converted.csv.gz").jobs == trace.jobs


def test_the_same_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    trace = read_trace(FIXTURES / "common.csv")
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(trace, tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_an_unwritable_path_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be written"):
        write_trace(read_trace(FIXTURES / "common.csv"), tmp_path / "no" / "folder.csv")
