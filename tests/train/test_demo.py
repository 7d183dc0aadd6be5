"""`make demo`: what it reads from a journal, and that it is skipped without PyTorch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core import Header
from refold.journal import JournalFile
from refold.model import Plan
from refold.planning.perf import Measurement
from refold.planning.plans import Knowledge, Speeds
from refold.simulator import Costs, ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

DEMO = Path(__file__).parents[2] / "examples" / "train" / "demo.py"
CLUSTER = make_cluster(4, types="slot")
COSTS = Costs(start=3.0, restart=1.0, report_every=2.0)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    return module


def measured(*seconds: float) -> tuple[Measurement, ...]:
    sizes = (1, 2, 4)
    return tuple(
        Measurement("gpt", "slot", (size,), Plan(data=size), 16, 1, step_seconds=time)
        for size, time in zip(sizes, seconds, strict=False)
    )


def write_journal(path: Path) -> None:
    """Simulate two jobs under `refold`, and record them."""
    settings = {"knowledge": msgspec.to_builtins(Knowledge(measured=measured(0.4, 0.2, 0.1))), "restart_seconds": 1.0}
    fields: dict[str, Any] = {"workload": "gpt", "batch": 16, "steps": 300, "reshapable": True, "gpu_range": (1, 4)}
    jobs = [make_job(name, at=at, work=None, **fields) for name, at in (("a", 0.0), ("b", 10.0))]
    charge = ModelledSpeeds(Speeds(CLUSTER, Knowledge(measured=measured(0.4, 0.2, 0.1))), RecordedSpeeds(CLUSTER))
    with JournalFile(path, Header(CLUSTER, "refold", settings)) as journal:
        simulate(jobs, CLUSTER, make_policy("refold", settings), charge=charge, costs=COSTS, journal=journal)


def test_the_runs_of_a_journal_are_read_with_their_plans_and_steps(demo: Any, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal.jsonl")
    run = demo.PolicyRun(tmp_path / "journal.jsonl")
    assert [(one.job.id, one.number, one.plan.gpus) for one in run.runs][:3] == [("a", 1, 4), ("a", 2, 2), ("b", 1, 2)]
    for name in ("a", "b"):
        assert sum(one.steps for one in run.runs if one.job.id == name) == pytest.approx(300, abs=1)
    assert run.problems(run.makespan) == []
    assert run.problems(1.2 * run.makespan) == [
        "refold: the simulated time is off by 20%, expected at most 15%",
    ]


def test_a_simulation_with_the_observed_step_times_has_the_observed_makespan(demo: Any, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal.jsonl")
    run = demo.PolicyRun(tmp_path / "journal.jsonl")
    assert {row.plan.gpus: row.step_seconds for row in run.measurements()} == pytest.approx({4: 0.1, 2: 0.2}, rel=0.05)
    assert run.simulate(()) == pytest.approx(run.makespan, rel=0.05)


def test_a_journal_that_does_not_replay_is_a_problem(demo: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    path.write_text(path.read_text().replace('"gpus":[0,1,2,3]', '"gpus":[0,1,2]'))
    run = demo.PolicyRun(path)
    assert any("the journal does not replay" in problem for problem in run.problems(run.makespan))


def test_without_pytorch_the_demo_is_skipped() -> None:
    without = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(DEMO)!r}, run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "skipped: PyTorch is not installed; pip install '.[train]'\n"
