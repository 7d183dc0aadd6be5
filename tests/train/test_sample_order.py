"""The order of samples."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadInput
from refold.train.samples import SampleOrder


@given(samples=st.integers(1, 50), batch=st.integers(1, 6), parts=st.integers(1, 4), seed=st.integers(0, 3))
def test_parts_of_a_batch_are_the_batch_and_epochs_contain_every_sample_once(
    samples: int, batch: int, parts: int, seed: int
) -> None:
    order = SampleOrder(samples, batch * parts, seed)
    steps = range(2 * samples)
    batches = [order.of_step(step) for step in steps]
    assert batches == [
        [sample for part in range(parts) for sample in order.of_step(step, part, parts)] for step in steps
    ]
    sequence = [sample for samples_of_step in batches for sample in samples_of_step]
    for epoch in range(2):
        assert sorted(sequence[epoch * samples : (epoch + 1) * samples]) == [*range(samples)]


def test_the_order_depends_on_the_seed_and_the_epoch_only() -> None:
    first, again, other = SampleOrder(40, 4, 1), SampleOrder(40, 4, 1), SampleOrder(40, 4, 2)
    assert first.of_step(25) == again.of_step(25)
    assert [first.of_step(step) for step in range(10)] != [other.of_step(step) for step in range(10)]
    assert [first.of_step(step) for step in range(10)] != [first.of_step(step) for step in range(10, 20)]
    assert SampleOrder(5, 2, 1, shuffle=False).of_step(2) == [4, 0]


@pytest.mark.parametrize(("samples", "batch"), [(0, 1), (1, 0)])
def test_no_samples_are_an_error(samples: int, batch: int) -> None:
    with pytest.raises(BadInput):
        SampleOrder(samples, batch, 0)
