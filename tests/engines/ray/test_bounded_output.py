"""Output of which the last part is kept."""

from __future__ import annotations

from hypothesis import given, strategies as st

from refold.engines.ray.rank_actor import BoundedOutput


@given(st.lists(st.binary(max_size=30)), st.integers(2, 20), st.integers(0, 200), st.integers(1, 50))
def test_it_has_the_last_bytes_at_their_offsets(parts: list[bytes], limit: int, offset: int, count: int) -> None:
    output, everything = BoundedOutput(limit), b"".join(parts)
    for part in parts:
        output.write(part)
    begin, data = output.read(offset, count)
    first, _ = output.read(0, 1)
    assert (output.size, begin) == (len(everything), min(max(offset, first), output.size))
    assert data == everything[begin : begin + count]
    assert min(len(everything), limit // 2) <= len(everything) - first <= limit
    output.close()
