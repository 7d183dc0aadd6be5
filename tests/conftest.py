"""Configuration and fixtures for all tests."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: machines are slow at times. Derandomised: every run is the same.
settings.register_profile(
    "refold",
    max_examples=40,  # `make test-long` draws ten times as many
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("refold")

# Hypothesis also draws constants from the modules of the project that are loaded, so the examples of a test depend
# on the tests before it. There is no setting for that; here no module counts as one of the project. In a release
# without this function, `test_drawn_examples.py` shows whether another way is needed.
with suppress(ImportError, AttributeError):
    pytest.MonkeyPatch().setattr("hypothesis.internal.conjecture.providers.is_local_module_file", lambda _: False)

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables are compared at the default width

pytest_plugins = ["cgroup_tests", "selected_tests"]

SOURCES = Path(__file__).parent.parent / "src"


def pytest_sessionstart() -> None:
    """Refuse to test kernels that were compiled from older sources."""
    for types in SOURCES.rglob("*.pxd"):
        source = types.with_suffix(".py")
        compiled = [path.stat().st_mtime for path in types.parent.glob(f"{types.stem}.*.so")]
        if compiled and max(compiled) < max(path.stat().st_mtime for path in (types, source) if path.exists()):
            pytest.exit(f"{source} is newer than what was compiled from it: run `make kernels`", 2)


SHARED_DATA = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces; tests that need it are skipped without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real traces are missing ({SHARED_DATA.name} beside the repository)")
    return SHARED_DATA
