"""A new epoch on another cluster: nodes are matched by name; jobs on missing nodes wait again."""

from __future__ import annotations

from pathlib import Path

from refold.core import Header, Scheduler
from refold.core.events import Event, GpuLost, JobCancelled, JobSubmitted, NodeLost, PastJob
from refold.core.scheduler import raise_rejection
from refold.model import Cluster, Node
from refold.server.job_table import JobTable
from refold.server.recovery import _snapshot_for, recover
from refold.server.store import Checkpoint, Commit, Store
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Node(name, 1, "A100", 8000, 8192) for name in names))


def start_on(before: Scheduler, after: Cluster) -> Scheduler:
    scheduler = Scheduler(after, make_policy("fifo", {}))
    scheduler.step(10.0, _snapshot_for(after, before, []))
    return scheduler


def test_nodes_are_matched_by_name() -> None:
    before = Scheduler(cluster("a", "b", "c"), make_policy("fifo", {}))
    before.step(0.0, [NodeLost(0, "cables"), JobSubmitted(make_job("on-b")), JobSubmitted(make_job("on-c"))])
    after = start_on(before, cluster("new", "c", "a", "b"))
    where = {job: run.allocation.placement[0].node for job, run in after.view.runs.items()}
    assert where == {"on-b": 3, "on-c": 1}
    assert [after.view.is_up(node) for node in range(4)] == [True, True, False, True]
    assert after.view.down_reason(2) == "cables"


def test_drained_gpus_that_still_exist_stay_drained() -> None:
    before = Scheduler(make_cluster(2, 2), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-n0"))])
    before.step(1.0, [GpuLost(0, 0, "fan"), GpuLost(0, 1, "fan"), GpuLost(1, 1)])
    after = start_on(before, make_cluster(1))
    assert after.view.down_gpus == {(0, 0): "fan"}
    assert list(after.view.runs) == ["on-n0"]
    assert after.view.free_gpus == 0.0


def test_a_job_whose_node_is_gone_waits_again_with_its_run_count() -> None:
    before = Scheduler(cluster("a", "b"), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-a")), JobSubmitted(make_job("on-b"))])
    after = start_on(before, cluster("b"))
    assert {job: run.number for job, run in after.view.runs.items()} == {"on-b": 1}
    assert (list(after.view.waiting), after.view.run_count("on-a")) == (["on-a"], 1)


def test_a_cancelled_job_whose_node_is_gone_ends(tmp_path: Path) -> None:
    before, store = Header(cluster("a", "b"), "fifo"), Store(tmp_path)
    scheduler, table = Scheduler(before.cluster, make_policy("fifo", {})), JobTable(before.cluster)
    steps: list[list[Event]] = [[JobSubmitted(make_job("on-a"))], [JobCancelled("on-a")]]
    for number, events in enumerate(steps, start=1):
        entry = scheduler.step(float(number), events)
        table.apply(entry, scheduler.view.infeasible)
        checkpoint = Checkpoint(number, scheduler.snapshot(), tuple(table.records.values()))
        store.commit(Commit(number, entry, epoch=before if number == 1 else None, checkpoint=checkpoint))
    after = Header(cluster("b"), "fifo")
    recovered = recover(store.reader, after, lambda: make_policy("fifo", {}), raise_rejection)
    store.close()
    entry = recovered.scheduler.step(3.0, recovered.snapshot or ())
    _, notices = recovered.job_table.apply(entry, recovered.scheduler.view.infeasible)
    assert [(notice.kind, notice.job and notice.job.id) for notice in notices] == [("cancelled", "on-a")]
    assert not recovered.job_table.records


def test_a_policy_learns_from_the_history_at_first_and_in_every_new_epoch(tmp_path: Path) -> None:
    history = [PastJob(make_job("earlier"), 60.0)]
    first, other = Header(cluster("a"), "fifo"), Header(cluster("b"), "fifo")
    with Store(tmp_path) as store:
        empty = recover(store.reader, first, lambda: make_policy("fifo", {}), raise_rejection, history)
        assert empty.snapshot == tuple(history)
        entry = empty.scheduler.step(1.0, empty.snapshot)
        store.commit(Commit(1, entry, epoch=first, checkpoint=Checkpoint(1, empty.scheduler.snapshot(), ())))
        later = recover(store.reader, other, lambda: make_policy("fifo", {}), raise_rejection, history)
    assert [event for event in later.snapshot or () if isinstance(event, PastJob)] == history


def test_jobs_accept_the_same_nodes_if_their_gpu_types_have_other_names_now() -> None:
    before = Scheduler(make_cluster(2, 2, 2, types=["H100", "H100", "A100"]), make_policy("fifo", {}))
    jobs = [
        make_job("any"),
        make_job("h100", gpus=8, types=["H100"]),
        make_job("a100", types=["A100"]),
        make_job("both", types=["A100", "H100"]),
        make_job("other", types=["B200"]),
    ]
    before.step(0.0, [JobSubmitted(job) for job in jobs])
    events = _snapshot_for(make_cluster(2, 2, 2, types=["H100/pool=x", "H100", "A100"]), before, [])
    assert {event.job.id: event.job.demand.gpu_types for event in events if isinstance(event, JobSubmitted)} == {
        "any": (),
        "h100": ("H100", "H100/pool=x"),
        "a100": ("A100",),
        "both": ("A100", "H100", "H100/pool=x"),
        "other": ("B200",),
    }
