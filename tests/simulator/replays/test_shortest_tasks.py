"""Waiting tasks by demand: the shortest one, and the first one that is short enough."""

import random

import numpy as np
import pytest

from refold.simulator.replays.shortest_tasks import ShortestTasks


@pytest.mark.parametrize("seed", range(5))
def test_the_trees_give_the_same_as_a_search_in_lists(seed: int) -> None:
    rng = random.Random(seed)
    count, demands = rng.randint(1, 60), 4
    demand_of = np.array([rng.randrange(demands) for _ in range(count)], dtype=np.int64)
    waiting, expected = ShortestTasks(demand_of, demands), dict[int, float]()
    for _ in range(300):
        task = rng.randrange(count)
        if task in expected:
            waiting.remove(task)
            del expected[task]
        else:
            expected[task] = float(rng.randint(1, 9))
            waiting.add(task, expected[task])
        for demand in range(demands):
            durations = {task: expected[task] for task in sorted(expected) if demand_of[task] == demand}
            assert waiting.number[demand] == len(durations)
            assert waiting.shortest(demand) == min(durations.values(), default=np.inf)
            for longest in (3.0, 6.0, np.inf):
                found = [task for task, duration in durations.items() if duration <= longest]
                if found:
                    assert waiting.first(demand, longest) == found[0]
