"""Adapting traces to a cluster: spelling of GPU types, and notes about jobs that can never run."""

from __future__ import annotations

from refold.model import Demand
from refold.simulator.traces.adapt import adapt_to_cluster, ignore_gpu_types, relax_missing_types
from refold.simulator.traces.formats import read_cluster, read_trace
from refold.simulator.traces.trace import Trace
from refold.testing import make_cluster, make_job

MIXED = make_cluster(8, 8, 2, types=("A100", "A100", "T4"))


def trace_requesting(*types: str, id: str = "a", **more: int) -> Trace:
    return Trace("any", (make_job(id, types=types, **more),))


def types_of(trace: Trace) -> list[tuple[str, ...]]:
    return [job.demand.gpu_types for job in trace.jobs]


def test_types_are_spelled_as_in_the_cluster() -> None:
    ready = adapt_to_cluster(trace_requesting("a100", "t4"), MIXED)
    assert (types_of(ready), ready.notes) == ([("A100", "T4")], ())
    assert types_of(adapt_to_cluster(trace_requesting("T4", "V100"), MIXED)) == [("T4",)]


def test_a_type_that_the_cluster_spells_in_two_ways_matches_both() -> None:
    cluster = make_cluster(8, 8, types=("A100", "a100"))
    assert types_of(adapt_to_cluster(trace_requesting("A100"), cluster)) == [("A100", "a100")]


def test_a_trace_with_matching_types_is_unchanged() -> None:
    demo = read_trace("demo")
    assert adapt_to_cluster(demo, read_cluster("demo")) == demo


def test_a_cluster_of_unknown_types_matches_any_request() -> None:
    ready = adapt_to_cluster(trace_requesting("A100"), read_cluster("2x8"))
    assert types_of(ready) == [()]
    assert ready.notes == ("1 job requests A100; the GPU types of this cluster are unknown and match any request",)


def test_nodes_of_unknown_type_match_any_request() -> None:
    ready = adapt_to_cluster(trace_requesting("A100"), read_cluster("2x8+1x2:T4"))
    assert types_of(ready) == [("GPU",)]
    assert ready.notes == ("1 job requests A100; the GPU types of some nodes are unknown and match any request",)
    assert types_of(adapt_to_cluster(trace_requesting("t4"), read_cluster("2x8+1x2:T4"))) == [("GPU", "T4")]


def test_types_named_as_by_slurm_are_found_in_the_cluster_and_the_note_says_so() -> None:
    jobs = tuple(make_job(f"j{n}", types=("nvidia_a100-sxm4-80gb",) if n else ("tesla_t4",)) for n in range(3))
    ready = adapt_to_cluster(Trace("any", jobs), MIXED)
    assert types_of(ready) == [("T4",), ("A100",), ("A100",)]
    assert ready.notes == (
        "GPU types of the cluster were found by name: nvidia_a100-sxm4-80gb is A100 (2 jobs), tesla_t4 is T4 (1 job)",
    )


def test_a_general_name_accepts_every_variant() -> None:
    cluster = make_cluster(8, 8, 8, types=("A100-40GB", "A100-80GB", "H100"))
    assert types_of(adapt_to_cluster(trace_requesting("a100"), cluster)) == [("A100-40GB", "A100-80GB")]


def test_a_given_map_comes_before_names_and_may_accept_every_type() -> None:
    types = {"fast": ["A100"], "T4": ["A100"], "any": []}
    assert types_of(adapt_to_cluster(trace_requesting("FAST"), MIXED, types)) == [("A100",)]
    assert types_of(adapt_to_cluster(trace_requesting("t4"), MIXED, types)) == [("A100",)]
    assert types_of(adapt_to_cluster(trace_requesting("any"), MIXED, types)) == [("A100", "T4")]


def test_requested_types_can_be_ignored() -> None:
    ready = ignore_gpu_types(trace_requesting("V100"))
    assert types_of(ready) == [()]
    assert ready.notes == ("requested GPU types are ignored: 1 job may run on any type",)
    untyped = trace_requesting()
    assert ignore_gpu_types(untyped) is untyped


def test_types_that_the_cluster_does_not_have_are_kept_and_noted() -> None:
    jobs = tuple(make_job(f"j{n}", types=("L40S",) if n else ("H100", "V100")) for n in range(4))
    ready = adapt_to_cluster(Trace("any", jobs, notes=("a note",)), MIXED)
    assert ready.jobs == jobs
    assert ready.notes == ("a note", "4 jobs request L40S, H100, V100; the cluster has A100, T4 (see --gpu-types)")


def test_jobs_that_do_not_fit_are_counted_and_the_first_is_named() -> None:
    two = Trace("any", (make_job("job-17", instances=4, gpus=8), make_job("job-18", gpus=9)))
    assert adapt_to_cluster(two, MIXED).notes == (
        "2 jobs request more than the whole cluster has, such as job-17: 4 × 8 GPUs",
    )
    assert adapt_to_cluster(trace_requesting("a100", instances=3, gpus=8), MIXED).notes == (
        "1 job requests more than the whole cluster has, such as a: 3 × 8 GPUs (A100)",
    )


def test_the_note_about_a_job_with_too_many_cpus_names_its_cpus_and_memory() -> None:
    assert adapt_to_cluster(trace_requesting(cpus=100, memory_gib=1000), MIXED).notes == (
        "1 job requests more than the whole cluster has, such as a: 1 GPU, 100 CPU and 1,000 GiB of memory on one node",
    )


def test_the_gpu_type_of_a_job_without_gpus_is_ignored() -> None:
    assert adapt_to_cluster(Trace("any", (make_job(gpus=0, types=("V100",)),)), MIXED).notes == ()


def test_the_note_about_a_cluster_without_gpus_says_so() -> None:
    assert adapt_to_cluster(trace_requesting("V100"), make_cluster(0)).notes == (
        "1 job requests V100; the cluster has no GPUs",
    )


def test_a_workload_generated_for_a_cluster_requests_only_its_types() -> None:
    jobs = (make_job("a", types=("V100",)), make_job("b", types=("t4", "V100")), make_job("c"))
    made = relax_missing_types(Trace("any", jobs), MIXED)
    assert types_of(made) == [(), ("T4",), ()]
    assert made.notes == ("the cluster has no V100: 1 job may run on any type",)
    assert made.jobs[0].demand == Demand()
