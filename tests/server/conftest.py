"""Compile kernels before any clock runs, for the tests and the processes that they start."""

from __future__ import annotations

import pytest

from refold.backends.local.backend import local_cluster
from refold.registry import make_policy
from refold.simulator import simulate
from refold.testing import make_job


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    jobs = [make_job("long", gpus=2), make_job("short", at=1.0, work=1.0, gpus=2)]
    for policy in ("fifo", "srtf", "easy", "refold"):
        simulate(jobs, local_cluster(2), make_policy(policy))
