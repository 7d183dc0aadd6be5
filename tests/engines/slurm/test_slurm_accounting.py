"""Slurm's accounting: the jobs, the GPU types that they could use, and what Slurm did with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from slurm_output import FakePrograms, node_line
from typer.testing import CliRunner, Result

from refold.cli.lazy_group import app
from refold.core import Entry, JobSubmitted, RunFinished, RunStarted, StartRun
from refold.engines.slurm.history import COLUMNS, SlurmHistory, read_history, recorded_entries
from refold.engines.slurm.nodes import map_nodes, read_nodes
from refold.errors import BadInput
from refold.journal import History
from refold.model import Allocation, Share
from refold.simulator.results import measure

NODES = [node_line("n0", "gpu:a100:4"), node_line("n1", "gpu:a100:4", Partitions="debug,gpu")]
CLUSTER = map_nodes(read_nodes(FakePrograms([], NODES).run))


def row(number: int, eligible: int, start: int, seconds: int, gpus: int = 4, **fields: str) -> str:
    cells = {
        "JobID": str(number),
        "Partition": "gpu",
        "User": "ada",
        "Account": "lab",
        "State": "COMPLETED",
        "Eligible": str(eligible),
        "Start": str(start),
        "End": str(start + seconds),
        "ElapsedRaw": str(seconds),
        "NNodes": "1",
        "ReqTRES": f"gres/gpu={gpus}",
        "AllocTRES": f"gres/gpu={gpus}",
        "NodeList": "n0",
        "JobName": "train | eval",
        **fields,
    }
    return "|".join(cells.get(column, "") for column in COLUMNS)


def read(*rows: str) -> SlurmHistory:
    text = "\n".join(["|".join(COLUMNS), *rows]) + "\n"
    return read_history(FakePrograms([], NODES, sacct=text).run, CLUSTER, 0.0)


def entries_of(*rows: str) -> tuple[list[Entry], int]:
    found = read(*rows)
    return recorded_entries(found.trace.jobs, found.starts, CLUSTER)


def test_jobs_accept_the_gpus_of_their_partition() -> None:
    found = read(row(1, 1000, 1060, 50), row(2, 1010, 1010, 5, Partition="debug"), row(3, 1020, 1020, 5, gpus=0))
    assert {job.id: (job.demand.gpu_types, job.group) for job in found.trace.jobs} == {
        "1": ((), "train | eval"),
        "2": (("a100/debug,gpu",), "train | eval"),
    }
    assert found.trace.notes[-1] == "1 job without GPUs skipped"
    assert [(start.at, start.nodes) for start in found.starts.values()] == [(60.0, "n0"), (10.0, "n0")]


def test_an_empty_accounting_is_an_error() -> None:
    with pytest.raises(BadInput, match="no jobs in this time"):
        read()


def test_slurm_s_own_starts_and_ends_are_a_history() -> None:
    entries, left_out = entries_of(row(1, 1000, 1000, 100), row(2, 1010, 1100, 50))
    assert left_out == 0
    first, second = [event.job for entry in entries for event in entry.events if isinstance(event, JobSubmitted)]
    allocation = Allocation((Share(0, (0, 1, 2, 3)),))
    assert entries == [
        Entry(0.0, (JobSubmitted(first),)),
        Entry(0.0, orders=(StartRun("1", 1, allocation),)),
        Entry(0.0, (RunStarted("1", 1),)),
        Entry(10.0, (JobSubmitted(second),)),
        Entry(100.0, (RunFinished("1", 1),)),
        Entry(100.0, orders=(StartRun("2", 1, allocation),)),
        Entry(100.0, (RunStarted("2", 1),)),
        Entry(150.0, (RunFinished("2", 1),)),
    ]
    measures = measure(History.from_entries(CLUSTER.cluster, entries))
    assert (measures.outcomes.finished, measures.waiting.mean, measures.makespan) == (2, 45.0, 150.0)


def test_jobs_on_nodes_that_have_gone_or_have_no_free_gpus_are_placed_elsewhere() -> None:
    entries, left_out = entries_of(
        row(1, 1000, 1000, 100), row(2, 1001, 1001, 100), row(3, 1002, 1101, 9, NodeList="old[7"), row(4, 1003, 1003, 9)
    )
    placements = {
        order.job: [share.node for share in order.allocation.placement]
        for entry in entries
        for order in entry.orders
        if isinstance(order, StartRun)
    }
    assert placements == {"1": [0], "2": [1], "3": [0]}
    assert left_out == 1, "the fourth job ran while all GPUs were taken, by the records"


def test_a_requeued_job_starts_with_its_last_run() -> None:
    rows = (row(1, 1000, 1000, 30, State="NODE_FAIL"), row(1, 1050, 1060, 100), row(2, 1001, 1001, 0))
    found = read(*rows)
    assert [(job.id, job.submitted, job.work) for job in found.trace.jobs] == [("1", 0.0, 100.0), ("2", 1.0, 0.0)]
    assert found.starts["1"].at == 60.0
    entries, _ = recorded_entries(found.trace.jobs, found.starts, CLUSTER)
    assert measure(History.from_entries(CLUSTER.cluster, entries)).outcomes.finished == 2


def test_jobs_without_a_start_are_only_submitted() -> None:
    entries, left_out = recorded_entries(read(row(1, 1000, 1000, 5)).trace.jobs, {}, CLUSTER)
    assert ([type(event) for entry in entries for event in entry.events], left_out) == ([JobSubmitted], 1)


# `refold tune --from slurm`.


def invoke_tune(monkeypatch: pytest.MonkeyPatch, out: Path, rows: Sequence[str], *options: str) -> Result:
    text = "\n".join(["|".join(COLUMNS), *rows]) + "\n"
    monkeypatch.setattr("refold.engines.slurm.Programs", lambda: FakePrograms([], NODES, sacct=text))
    search = ("--policy", "las", "--baselines", "fifo", "--trials", "1", "--out", str(out))
    return CliRunner().invoke(app, ["tune", "--from", "slurm", *search, *options])


def test_a_search_on_slurm_s_jobs_continues_with_the_same_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(number, 1000 * number, 1000 * number + 60, 5000, gpus=number % 4 + 1) for number in range(1, 151)]
    first = invoke_tune(monkeypatch, tmp_path / "out", rows, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["report"]["jobs"] == 60
    later = invoke_tune(monkeypatch, tmp_path / "out", rows[10:])
    assert "150 jobs on 2 nodes with 8 GPUs" in later.stdout
    assert "the jobs are those of the earlier command" in later.stderr
    other = invoke_tune(monkeypatch, tmp_path / "out", rows, "--since", "3d")
    assert "has jobs that were read with other options; choose another --out" in str(other.exception)


def test_too_few_jobs_of_slurm_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = invoke_tune(monkeypatch, tmp_path / "out", [row(1, 1000, 1060, 50)])
    assert "expected a history of at least 100 jobs, found 1" in str(ended.exception)
    assert not (tmp_path / "out").exists()


def test_a_search_on_slurm_s_jobs_does_not_continue_on_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(number, 1000 * number, 1000 * number + 60, 5000, gpus=number % 4 + 1) for number in range(1, 151)]
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node_id,gpu_type,num_gpu,cpu,mem_gib\nn1,A100,4,64,512\n")
    first = invoke_tune(monkeypatch, tmp_path / "out", rows, "--cluster", str(nodes))
    assert first.exit_code == 0, (first.output, first.exception)
    nodes.write_text("node_id,gpu_type,num_gpu,cpu,mem_gib\nn1,A100,8,64,512\n")
    other = invoke_tune(monkeypatch, tmp_path / "out", rows, "--cluster", str(nodes))
    assert "has jobs that were read with other options; choose another --out" in str(other.exception)
