"""Options of pytest: `--fast` leaves out tests that were measured to be slow, `--long` looks for more examples.

Cases with the marker `long` repeat a test on further seeds or combinations; they run with `--long` and `-m long` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from refold.testing import PolicyContract

SLOW_TESTS = Path(__file__).parents[1] / "slow_tests.txt"
LONG_FACTOR, MOST_EXAMPLES = 10, 2_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("refold")
    group.addoption("--fast", action="store_true", help="leave out the tests in tests/slow_tests.txt")
    group.addoption(
        "--long", action="store_true", help=f"long cases, and property-based tests with {LONG_FACTOR} x the examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Test policies on fewer workloads, unless more is wanted."""
    if not config.getoption("--long"):
        PolicyContract.seeds = range(2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select tests by the options."""
    if config.getoption("--fast"):
        slow = set(SLOW_TESTS.read_text().splitlines()) if SLOW_TESTS.exists() else set()
        _keep(config, items, [item for item in items if _name(item) not in slow])
    if config.getoption("--long"):
        properties = {item for item in items if is_hypothesis_test(getattr(item, "obj", None))}
        for item in properties:
            _look_for_more_examples(getattr(item, "obj", None))
        _keep(config, items, [item for item in items if item in properties or _is_long(item)])
    elif "long" not in config.getoption("markexpr"):
        _keep(config, items, [item for item in items if not _is_long(item)])


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    wanted = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = kept


def _name(item: pytest.Item) -> str:
    """Return the name of a test as in the list: file without its ending, class, function."""
    file, _, rest = item.nodeid.partition("[")[0].partition("::")
    return f"{file.removesuffix('.py')}{'/' if '::' in rest else '::'}{rest}"


def _look_for_more_examples(test: Any) -> None:
    function = getattr(test, "__func__", test)
    own: settings = function._hypothesis_internal_use_settings  # there is no public way to change those of a test
    examples = max(own.max_examples, min(own.max_examples * LONG_FACTOR, MOST_EXAMPLES))
    changed = settings(own, max_examples=examples, derandomize=False)
    function._hypothesis_internal_use_settings = changed
