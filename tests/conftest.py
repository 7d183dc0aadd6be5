"""Shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The first call of a kernel may compile it, which takes seconds: no deadline, and chance is the same for everyone.
settings.register_profile(
    "refold", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("refold")

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables are compared at their usual width

SHARED_DATA = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real traces are not there ({SHARED_DATA.name} beside the repository)")
    return SHARED_DATA
