"""Reading the complete public traces. They are not part of the repository; without them the tests are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.simulator.traces.formats import read_cluster, read_trace

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not available (../shared/data)")


@pytest.mark.parametrize(
    ("name", "jobs", "gpus"),
    [
        ("traces/jobs_helios_venus.csv.gz", 125_303, 843_981),
        ("traces/jobs_philly.csv.gz", 67_799, 85_213),
        ("traces/jobs_pai2020_sub60k.csv.gz", 60_105, 298_635),
        ("traces/jobs_gavel_msr_seed0.csv.gz", 15_264, 42_192),
        ("traces/jobs_openb_default.csv.gz", 8_152, 7_433),
        ("openb/openb_pod_list_default.csv.gz", 8_152, 7_433),
        ("openb/openb_pod_list_gpushare40.csv.gz", 8_152, 7_382),
        ("openb/openb_pod_list_gpushare100.csv.gz", 8_152, 7_064),
        ("openb/openb_pod_list_gpuspec33.csv.gz", 8_152, 7_433),
        ("openb/openb_pod_list_multigpu30.csv.gz", 8_508, 9_433),
        ("rubick/workload-base.csv", 406, 4_374),
        ("rubick/workload-bp.csv", 406, 4_374),
        ("rubick/workload-mt.csv", 406, 4_374),
    ],
)
def test_every_row_is_read_as_a_job(name: str, jobs: int, gpus: int) -> None:
    trace = read_trace(DATA / name)
    assert (len(trace.jobs), trace.skipped_rows) == (jobs, ())
    assert sum(job.demand.instances * job.demand.gpus for job in trace.jobs) == gpus


@pytest.mark.parametrize(
    ("name", "nodes", "gpus", "cpus_known"),
    [
        ("traces/nodes_philly_552.csv.gz", 552, 2_490, False),
        ("traces/nodes_pai2020.csv.gz", 1_897, 6_742, True),
        ("traces/nodes_openb.csv.gz", 1_523, 6_212, True),
        ("openb/openb_node_list_all_node.csv.gz", 1_523, 6_212, True),
    ],
)
def test_every_row_is_read_as_a_node(name: str, nodes: int, gpus: int, cpus_known: bool) -> None:
    cluster = read_cluster(DATA / name)
    assert (len(cluster.nodes), cluster.gpus, cluster.cpus_known) == (nodes, gpus, cpus_known)


def test_openb_gives_the_same_jobs_in_its_own_and_in_the_common_format() -> None:
    own = read_trace(DATA / "openb/openb_pod_list_default.csv.gz")
    common = read_trace(DATA / "traces/jobs_openb_default.csv.gz")
    assert own.jobs == common.jobs


def test_rubicks_multi_tenant_workload_has_194_guaranteed_jobs() -> None:
    trace = read_trace(DATA / "rubick/workload-mt.csv")
    assert sum(job.job_class == "guaranteed" for job in trace.jobs) == 194
