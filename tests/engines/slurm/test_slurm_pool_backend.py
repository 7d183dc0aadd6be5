"""The Slurm back end with a pool fulfils the contract of back ends, against a real Slurm."""

from __future__ import annotations

import pytest
from slurm_backend import InPool
from slurm_servers import SlurmServers


class TestSlurmPoolBackend(InPool):
    @pytest.fixture(autouse=True)
    def use(self, slurm: SlurmServers) -> None:
        self.slurm = slurm
