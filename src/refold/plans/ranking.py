"""Which of many plans fit, how long they take, and which are the best: exactly, but without timing all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refold.perf import USABLE, Column, PlanColumns, Setting, head_time, layer_time, memory, step_parts
from refold.plans.space import Ints, Mask

Rows = NDArray[np.intp]

SIMPLEST_FIRST = (
    "offload",
    "pipeline",
    "tensor",
    "zero",
    "recompute",
    "interleave",
    "sequence_parallel",
    "accumulation",
)
"""Of plans that are equally good the simplest is best: the one with less of the first of these that differs."""

NEARLY = 1.01
"""Plans whose steps are within this factor are as good as each other: no estimate is that exact."""

WORTH_BOUNDING = 2000
"""With fewer plans, timing all of them takes no longer than finding out which need not be timed."""

FIRST_LOOK = 128
"""How many of the most promising plans of a family are timed before others are ruled out by them."""

SLACK = 1e-6
"""A bound rules out only what is longer by this share: sums of the same numbers differ in their last digits."""


class MemoryHeadroom(NamedTuple):
    """GiB left on the fullest GPU, and on all hosts together; below 0: so much is missing."""

    gpu: Column
    host: Column

    @property
    def fits(self) -> Mask:
        """Which plans fit."""
        return np.asarray((self.gpu >= 0) & (self.host >= 0))

    @property
    def missing(self) -> Column:
        """GiB missing where more is missing."""
        return np.maximum(0.0, -np.minimum(self.gpu, self.host))


def room_left(settings: Sequence[Setting], plans: PlanColumns, which: Ints | int = 0) -> MemoryHeadroom:
    """What plans leave of the memory of GPUs and hosts, each in one of several settings with different machines."""
    needs = memory(settings[0], plans)
    machines = [setting.machines for setting in settings]
    gpu = np.array([each.gpu.memory_gib * USABLE for each in machines])
    host = np.array([each.memory_gib or np.inf for each in machines])
    return MemoryHeadroom(gpu[which] - needs.total, host[which] - needs.host)


def step_seconds(setting: Setting, plans: PlanColumns) -> Column:
    """How long a step of each plan takes: parts are added one by one, so that the sum does not depend on company."""
    return reduce(np.add, step_parts(setting, plans))


def least_seconds(setting: Setting, plans: PlanColumns) -> Column:
    """What no step can be shorter than: computing alone, while the pipeline is full and while it fills."""
    layer = layer_time(setting, plans)
    work = setting.stage_blocks(plans) * (layer.forward + layer.backward + layer.again)
    rounds = plans.accumulation + (plans.pipeline - 1) / plans.interleave
    return rounds * (work + head_time(setting, plans) / plans.pipeline)


def seconds_of_the_best(setting: Setting, plans: PlanColumns, family: Rows, count: int) -> Column:
    """How long a step takes, for every plan that may be among the `count` fastest of all or the fastest of its family.

    The others have infinity. The most promising of each family are timed first; what the bound shows to be
    slower than those is not timed at all.
    """
    if len(plans) <= WORTH_BOUNDING:
        return step_seconds(setting, plans)
    bound = least_seconds(setting, plans)
    first = _most_promising(bound, family)
    seconds = np.full(len(plans), np.inf)
    seconds[first] = step_seconds(setting, plans.rows(first))
    to_beat = np.full(family.max() + 1, np.inf)
    np.minimum.at(to_beat, family[first], seconds[first])
    to_join = np.partition(seconds, count - 1)[count - 1] if count <= len(plans) else np.inf
    left = np.isinf(seconds) & (bound <= np.maximum(to_beat[family], to_join) * (NEARLY + SLACK))
    seconds[left] = step_seconds(setting, plans.rows(left))
    return seconds


def _most_promising(bound: Column, family: Rows) -> Rows:
    order = np.argsort(bound, kind="stable")
    ordered = family[order]
    return np.concatenate([order[ordered == known][:FIRST_LOOK] for known in range(family.max() + 1)])


def fastest(plans: PlanColumns, seconds: Column, count: int) -> Rows:
    """The `count` fastest plans, in order; of those that are nearly as fast as each other the simplest first.

    They are levels above the very fastest: up to 1 % slower, up to 2 %, and so on.
    """
    if not len(plans):
        return np.zeros(0, np.intp)
    return _least(plans, np.floor(np.log(seconds / seconds.min()) / np.log(NEARLY)), seconds, count)


def nearest(plans: PlanColumns, missing: Column, count: int) -> Rows:
    """The `count` plans with the least of something missing, in order; of equal ones the simplest first."""
    return _least(plans, missing.astype(np.float32), missing, count)


def _least(plans: PlanColumns, first: NDArray[np.floating], last: Column, count: int) -> Rows:
    """Least of the first, then simplest, then least of the last; single precision makes the last digits equal."""
    most = np.partition(first, count - 1)[count - 1] if count < len(first) else np.inf
    near = np.flatnonzero((first <= most) & np.isfinite(first))
    simplicity = [getattr(plans, name)[near] for name in reversed(SIMPLEST_FIRST)]
    return near[np.lexsort([last[near].astype(np.float32), *simplicity, first[near]])][:count]
