"""What is said about jobs that wait for the GPU limit of their tenant."""

from __future__ import annotations

from msgspec.structs import replace
from random_histories import History

from refold.core.events import JobSubmitted
from refold.model import Tenant
from refold.policies.queueing.fifo import FifoSkip
from refold.server.wait_texts import WaitTexts
from refold.testing import make_cluster, make_job


def test_a_job_beyond_the_limit_of_its_tenant_names_the_limit_and_its_use() -> None:
    cluster = replace(make_cluster(8), tenants=(Tenant("vision", limit_gpus=4),))
    history = History(cluster, FifoSkip())
    sizes = {"first": 3, "second": 2, "third": 6}
    jobs = {name: make_job(name, gpus=gpus, tenant="vision") for name, gpus in sizes.items()}
    history.step(*map(JobSubmitted, jobs.values()))
    texts = WaitTexts(history.view, {}, lambda moment: moment)
    assert {name: texts.of(jobs[name], history.view.reason(name)) for name in ("second", "third")} == {
        "second": "until other jobs of tenant 'vision' end: it uses 3 GPUs, and may use 4 at once",
        "third": "never starts: it requests 6 GPUs, and tenant 'vision' may use 4 at once",
    }
