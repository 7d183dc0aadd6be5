"""What an agent reads from its environment."""

from __future__ import annotations

import signal

import pytest

from refold.errors import BadInput
from refold.model import Plan
from refold.train.run_settings import read_settings


def test_without_a_plan_every_slot_is_a_data_parallel_rank() -> None:
    settings = read_settings({"REFOLD_SLOTS": "0,2,3", "REFOLD_GRACE": "5", "REFOLD_STOP_SIGNAL": "USR1"})
    assert (settings.plan, settings.grace, settings.stop_signal) == (Plan(data=3), 5.0, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("REFOLD_GRACE", "soon", "REFOLD_GRACE is 'soon', expected a number of seconds"),
        ("REFOLD_INSTANCES", "two", "REFOLD_INSTANCES is 'two', expected a whole number ≥ 1"),
        ("REFOLD_INSTANCES", "0", "REFOLD_INSTANCES is '0', expected a whole number ≥ 1"),
        ("REFOLD_INSTANCES", "2", "MASTER_PORT is '', expected a whole number ≥ 1"),
        ("REFOLD_INSTANCE", "-1", "REFOLD_INSTANCE is '-1', expected a whole number ≥ 0"),
        ("REFOLD_STOP_SIGNAL", "NONE", "REFOLD_STOP_SIGNAL is 'NONE', expected the name of a signal"),
        ("REFOLD_PLAN", "dp2", "REFOLD_PLAN is 'dp2', expected a plan as JSON"),
    ],
)
def test_values_that_cannot_be_read_are_errors(variable: str, value: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_settings({variable: value})
