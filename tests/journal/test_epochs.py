"""The history of a journal with several epochs: nothing is counted twice, and nothing is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from refold.cli import count_node_faults
from refold.core import (
    Entry,
    Event,
    Header,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    RunAdopted,
    RunFinished,
    RunStarted,
    Scheduler,
)
from refold.errors import BadFile
from refold.journal import History, NodeChange, Outcome, check_replay, read_epochs, read_history, read_journal
from refold.model import Allocation, Cluster, Node
from refold.simulator.registry import make_policy
from refold.testing import make_job


def cluster(**gpus: int) -> Cluster:
    return Cluster(tuple(Node(name, count, "A100", 8000, 8192) for name, count in gpus.items()))


def write(path: Path, *epochs: tuple[Header, list[Entry]]) -> Path:
    lines = [line for header, entries in epochs for line in (header, *entries)]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def run_epoch(
    on: Cluster, steps: list[tuple[float, list[Event]]], policy: str = "fifo"
) -> tuple[Header, list[Entry], Scheduler]:
    scheduler = Scheduler(on, make_policy(policy))
    return Header(on, policy), [scheduler.step(now, events) for now, events in steps], scheduler


def start(job: str) -> list[Event]:
    return [JobSubmitted(make_job(job, work=None))]


def intervals(history: History) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the start and end of each run by job and number."""
    runs = history.runs
    return {
        (history.jobs.jobs[job].id, int(number)): (float(begin), float(end))
        for job, number, begin, end in zip(runs.job, runs.number, runs.start, runs.end, strict=True)
    }


def test_runs_that_continue_are_counted_once_with_their_start(tmp_path: Path) -> None:
    header, first, before = run_epoch(
        cluster(a=2),
        [(0.0, start("early")), (5.0, [*start("long"), RunStarted("early", 1)]), (8.0, [RunFinished("early", 1)])],
    )
    other, second, _ = run_epoch(
        cluster(a=2),
        [(20.0, list(before.snapshot())), (30.0, start("late")), (40.0, [RunFinished("long", 1)])],
        "fifo-skip",
    )
    last, history = read_history(write(tmp_path / "j.jsonl", (header, first), (other, second)))
    assert last.policy == "fifo-skip"
    assert [job.id for job in history.jobs.jobs] == ["early", "long", "late"]
    assert [Outcome(outcome) for outcome in history.jobs.outcome] == [
        Outcome.FINISHED,
        Outcome.FINISHED,
        Outcome.RUNNING,
    ]
    runs = intervals(history)
    assert (runs["early", 1], runs["long", 1]) == ((0.0, 8.0), (5.0, 40.0))
    assert len(runs) == 3
    assert history.node_changes == []


def test_added_and_removed_nodes_and_gpus_are_down_while_they_are_missing(tmp_path: Path) -> None:
    epochs = [
        run_epoch(on, [(now, [])])[:2]
        for now, on in ((0.0, cluster(a=1, b=1)), (10.0, cluster(c=2, a=3)), (20.0, cluster(a=2, c=2)))
    ]
    _, history = read_history(write(tmp_path / "j.jsonl", *epochs))
    assert [(node.name, node.gpus) for node in history.cluster.nodes] == [("a", 3), ("c", 2), ("b", 1)]
    changes = [(change.at, change.node, change.gpu, change.up) for change in history.node_changes]
    assert changes == [
        (0.0, 0, 1, False),
        (0.0, 0, 2, False),
        (0.0, 1, None, False),
        (10.0, 0, 1, True),
        (10.0, 0, 2, True),
        (10.0, 1, None, True),
        (10.0, 2, None, False),
        (20.0, 0, 2, False),
    ]
    assert count_node_faults(history) == 0


def test_a_drained_node_is_not_a_fault(tmp_path: Path) -> None:
    epoch = run_epoch(cluster(a=1, b=1), [(0.0, [NodeDrained(0, "fan"), NodeLost(1)])])[:2]
    assert count_node_faults(read_history(write(tmp_path / "j.jsonl", epoch))[1]) == 1


def test_nodes_are_matched_by_name(tmp_path: Path) -> None:
    first = run_epoch(cluster(a=1, b=1), [(0.0, [NodeLost(0, "cables"), *start("on-b")])])
    share = first[2].view.runs["on-b"].allocation.placement[0]
    adopted = RunAdopted("on-b", 1, Allocation((replace(share, node=0),)), 0.0)
    snapshot: list[Event] = [*start("on-b"), adopted, NodeLost(1, "cables")]
    second = run_epoch(cluster(b=1, a=1), [(5.0, snapshot), (9.0, [RunFinished("on-b", 1)])])
    _, history = read_history(write(tmp_path / "j.jsonl", first[:2], second[:2]))
    assert intervals(history) == {("on-b", 1): (0.0, 9.0)}
    assert history.runs.allocations[0].placement[0].node == history.cluster.index_of_node["b"]
    assert history.node_changes == [NodeChange(0.0, history.cluster.index_of_node["a"], False, why="cables")]


def test_a_run_that_is_not_continued_ends_where_the_next_epoch_begins(tmp_path: Path) -> None:
    first = run_epoch(cluster(a=1), [(0.0, start("lost"))])
    second = run_epoch(cluster(b=1), [(7.0, start("lost")), (9.0, [RunFinished("lost", 1)])])
    _, history = read_history(write(tmp_path / "j.jsonl", first[:2], second[:2]))
    assert [(float(begin), float(end)) for begin, end in zip(history.runs.start, history.runs.end, strict=True)] == [
        (0.0, 7.0),
        (7.0, 9.0),
    ]


def test_a_journal_with_several_epochs_replays_epoch_by_epoch(tmp_path: Path) -> None:
    epochs = [run_epoch(cluster(a=1), [(now, start(f"job-{now:g}"))])[:2] for now in (0.0, 10.0)]
    path = write(tmp_path / "j.jsonl", *epochs)
    assert [check_replay(header, entries, make_policy(header.policy)) for header, entries in read_epochs(path)] == [
        1,
        1,
    ]
    _, entries = read_journal(path)
    assert [entry.now for entry in entries] == [10.0]


def test_a_damaged_header_of_an_epoch_is_named(tmp_path: Path) -> None:
    header, entries, _ = run_epoch(cluster(a=1), [(0.0, [])])
    path = write(tmp_path / "j.jsonl", (header, entries))
    with path.open("ab") as file:
        file.write(b'{"cluster": 5}\n')
    with pytest.raises(BadFile, match="line 3 is not the header of an epoch"):
        read_history(path)
