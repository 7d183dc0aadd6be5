"""Parts of the genetic searches: random numbers, selection by tournament, and sorting. Compiled."""

from __future__ import annotations

from refold.placement.layout import Floats, Ints

STEP, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1


class Random:
    """A generator of random numbers (SplitMix64)."""

    def __init__(self, state: int) -> None:
        self.state = state & WORD

    def __reduce__(self) -> tuple[object, ...]:
        return Random, (self.state,)


def next_random(rng: Random) -> int:
    """Return the next random integer, 0 … 2^53 - 1."""
    rng.state = word = (rng.state + STEP) & WORD
    word = (word ^ (word >> 30)) * MIX_1 & WORD
    word = (word ^ (word >> 27)) * MIX_2 & WORD
    return (word ^ (word >> 31)) >> 11


def random_fraction(rng: Random) -> float:
    """Return a random number from 0 to 1."""
    return next_random(rng) / 9007199254740992.0


def select_by_tournament(size: int, fitness: Floats, rng: Random) -> int:
    """Return the fittest of `size` random members of the population."""
    best = next_random(rng) % fitness.shape[0]
    highest = fitness[best]
    for _ in range(size - 1):
        other = next_random(rng) % fitness.shape[0]
        if fitness[other] > highest:
            best, highest = other, fitness[other]
    return best


def sort_by_keys(keys: Floats, first: int, order: Ints, scratch: Ints) -> None:
    """Write 0, 1, … to `order`, and sort it by `keys` from entry `first` on; equal keys keep their order.

    Merge sort; the first runs are sorted by insertion.
    """
    count, width = order.shape[0], 8
    for position in range(first):
        order[position] = position
    for position in range(first, count):
        slot, start = position, position - ((position - first) & (width - 1))
        while slot > start and keys[position] < keys[order[slot - 1]]:
            order[slot] = order[slot - 1]
            slot -= 1
        order[slot] = position
    while width < count - first:
        start = first
        while start < count:
            middle, end = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for position in range(start, end):
                if right == end or (left < middle and keys[order[left]] <= keys[order[right]]):
                    scratch[position] = order[left]
                    left += 1
                else:
                    scratch[position] = order[right]
                    right += 1
            start = end
        for position in range(first, count):
            order[position] = scratch[position]
        width *= 2
