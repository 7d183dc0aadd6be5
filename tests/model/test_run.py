"""The plan of a run."""

from __future__ import annotations

import pytest

from refold.model import Allocation, Plan, Share, run_plan
from refold.testing import make_job

TWO_GPUS = (Share(0, (0, 1)),)


@pytest.mark.parametrize(
    ("pinned", "given", "expected"),
    [
        (None, None, None),
        (None, Plan(2), Plan(2)),
        (Plan(1, 2), None, Plan(1, 2)),
        (Plan(1, 2), Plan(2), Plan(2)),
        (Plan(4), None, None),
    ],
    ids=["none", "chosen", "pinned", "chosen instead", "pinned for more GPUs"],
)
def test_a_run_has_the_plan_of_its_allocation_else_the_pinned_one(
    pinned: Plan | None, given: Plan | None, expected: Plan | None
) -> None:
    assert run_plan(make_job(gpus=2, plan=pinned), Allocation(TWO_GPUS, given)) == expected
