"""Jobs made ready for a cluster: types in its spelling, and the cause named where a job can never run."""

from __future__ import annotations

from refold.model import Demand
from refold.testing import make_cluster, make_job
from refold.traces.adapt import for_cluster, with_types_of
from refold.traces.formats import read_cluster, read_trace
from refold.traces.trace import Trace

MIXED = make_cluster(8, 8, 2, types=("A100", "A100", "T4"))


def asking(*types: str, id: str = "a", **more: int) -> Trace:
    return Trace("any", (make_job(id, types=types, **more),))


def types_of(trace: Trace) -> list[tuple[str, ...]]:
    return [job.demand.gpu_types for job in trace.jobs]


def test_types_are_spelt_as_the_cluster_does() -> None:
    ready = for_cluster(asking("a100", "t4"), MIXED)
    assert (types_of(ready), ready.notes) == ([("A100", "T4")], ())
    assert types_of(for_cluster(asking("T4", "V100"), MIXED)) == [("T4",)]


def test_a_cluster_of_two_spellings_has_both() -> None:
    cluster = make_cluster(8, 8, types=("A100", "a100"))
    assert types_of(for_cluster(asking("A100"), cluster)) == [("A100", "a100")]


def test_what_is_spelt_well_is_left_as_it_is() -> None:
    demo = read_trace("demo")
    assert for_cluster(demo, read_cluster("demo")) == demo


def test_a_cluster_that_does_not_say_its_types_takes_any() -> None:
    ready = for_cluster(asking("A100"), read_cluster("2x8"))
    assert types_of(ready) == [()]
    assert ready.notes == ("1 job asks for A100; the cluster does not say its GPU types, so any will do there",)


def test_nodes_that_do_not_say_their_type_are_open_to_all() -> None:
    ready = for_cluster(asking("A100"), read_cluster("2x8+1x2:T4"))
    assert types_of(ready) == [("GPU",)]
    assert ready.notes == ("1 job asks for A100; some nodes do not say theirs, so any will do there",)
    assert types_of(for_cluster(asking("t4"), read_cluster("2x8+1x2:T4"))) == [("GPU", "T4")]


def test_types_that_the_cluster_does_not_have_are_kept_and_named() -> None:
    jobs = tuple(make_job(f"j{n}", types=("A100-80GB",) if n else ("H100", "V100")) for n in range(4))
    ready = for_cluster(Trace("any", jobs, notes=("read well",)), MIXED)
    assert ready.jobs == jobs
    assert ready.notes == ("read well", "4 jobs ask for A100-80GB, H100, V100; the cluster has A100, T4")


def test_jobs_without_room_are_counted_and_the_first_is_named() -> None:
    two = Trace("any", (make_job("job-17", instances=4, gpus=8), make_job("job-18", gpus=9)))
    assert for_cluster(two, MIXED).notes == (
        "2 jobs ask for more than the whole cluster has room for, such as job-17: 4 × 8 GPU",
    )
    assert for_cluster(asking("a100", instances=3, gpus=8), MIXED).notes == (
        "1 job asks for more than the whole cluster has room for, such as a: 3 × 8 GPU (A100)",
    )


def test_of_a_job_that_wants_too_many_cpus_the_cpus_are_named() -> None:
    assert for_cluster(asking(cpus=100, memory_gib=1000), MIXED).notes == (
        "1 job asks for more than the whole cluster has room for, such as a: 1 GPU, 100 CPU and 1,000 GiB of memory"
        " on one node",
    )


def test_jobs_that_need_no_gpu_have_no_wrong_type() -> None:
    assert for_cluster(Trace("any", (make_job(gpus=0, types=("V100",)),)), MIXED).notes == ()


def test_a_cluster_without_gpus_says_so() -> None:
    assert for_cluster(asking("V100"), make_cluster(0)).notes == ("1 job asks for V100; the cluster has no GPUs",)


def test_a_workload_made_for_a_cluster_asks_for_its_types_only() -> None:
    jobs = (make_job("a", types=("V100",)), make_job("b", types=("t4", "V100")), make_job("c"))
    made = with_types_of(Trace("any", jobs), MIXED)
    assert types_of(made) == [(), ("T4",), ()]
    assert made.notes == ("the cluster does not have V100: 1 job may run on any type",)
    assert made.jobs[0].demand == Demand()
