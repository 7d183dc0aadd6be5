"""The Slurm back end fulfils the contract of back ends, against a real Slurm."""

from __future__ import annotations

import pytest
from slurm_backend import OnSlurm
from slurm_servers import SlurmServers


class TestSlurmBackend(OnSlurm):
    @pytest.fixture(autouse=True)
    def use(self, slurm: SlurmServers) -> None:
        self.slurm = slurm
