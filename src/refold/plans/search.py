"""The best plans for a setting: exact over all that are valid, with what became of the others.

1. Make every valid plan.
2. Leave out what does not fit into memory, which is quicker to know than time.
3. Time the most promising of the rest, and then what a bound from below does not rule out.
4. Rank them, and say why the others lost; where nothing fits, what would help.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from refold.errors import BadValue
from refold.perf import Estimate, Machines, PlanColumns, Setting, estimate_all, row_of
from refold.plans.ranking import MemoryHeadroom, Rows, fastest, nearest, room_left, seconds_of_the_best
from refold.plans.rejections import RejectedPlans, family_of, impossible, out_of_memory, slower
from refold.plans.space import USUAL, PlanLimits, all_plans

MOST_GPUS = 16384
"""Up to where the number of GPUs is doubled in search of one that is enough."""

FEWER = 64
"""How many smaller numbers of GPUs are tried where a number cannot be divided."""


class Search(msgspec.Struct, frozen=True):
    """The best plans in order, and what became of the others.

    Of `considered` valid plans `out_of_memory` do not fit, and `pruned` were not timed since they could not have
    been among the best. Where nothing fits, `misses` are the plans that lack least, `advice` says what would help,
    and `enough_gpus` is the first doubled number of GPUs on which something fits, if any.
    """

    best: tuple[Estimate, ...]
    considered: int
    out_of_memory: int
    pruned: int
    lost: tuple[RejectedPlans, ...]
    misses: tuple[Estimate, ...] = ()
    advice: tuple[str, ...] = ()
    enough_gpus: int | None = None


def best_plans(setting: Setting, limits: PlanLimits = USUAL, count: int = 10) -> Search:
    """The `count` fastest plans that fit, and why the others lost."""
    if count < 1:
        raise BadValue(f"at least one best plan, not {count}")
    plans = all_plans(setting, limits)
    room = room_left([setting], plans)
    fitting = plans.rows(room.fits)
    family = family_of(fitting)
    seconds = seconds_of_the_best(setting, fitting, family, count)
    search = Search(
        best=_estimates(setting, fitting, fastest(fitting, seconds, count)),
        considered=len(plans),
        out_of_memory=len(plans) - len(fitting),
        pruned=int(np.isinf(seconds).sum()),
        lost=slower(fitting, seconds, family) + out_of_memory(plans, room) + impossible(setting, limits),
    )
    return search if search.best else _with_help(search, setting, limits, plans, room, count)


def best_plan(setting: Setting, limits: PlanLimits = USUAL) -> Estimate | None:
    """The fastest plan that fits, if any: `best_plans` without the reasons."""
    plans = all_plans(setting, limits)
    fitting = plans.rows(room_left([setting], plans).fits) if len(plans) else plans
    if not len(fitting):
        return None
    seconds = seconds_of_the_best(setting, fitting, np.zeros(len(fitting), np.intp), 1)
    return _estimates(setting, fitting, fastest(fitting, seconds, 1))[0]


def _estimates(setting: Setting, plans: PlanColumns, rows: Rows) -> tuple[Estimate, ...]:
    chosen = plans.rows(rows)
    found = estimate_all(setting, chosen)
    return tuple(row_of(setting, chosen.plan(row), found, row) for row in range(len(chosen)))


def _with_help(
    search: Search, setting: Setting, limits: PlanLimits, plans: PlanColumns, room: MemoryHeadroom, count: int
) -> Search:
    """The nearest misses, and what would help."""
    enough = next(_fitting_on(setting, limits, _doubled(setting.machines)), None)
    fewer = None if len(plans) else next(_fitting_on(setting, limits, _smaller(setting.machines)), None)
    freely = best_plan(setting) if limits != USUAL else None
    advice = [
        f"{found.plan.gpus} × {setting.machines.gpu.name} would do: {found.plan}" for found in (fewer, enough) if found
    ]
    advice += [f"without these limits it would fit: {freely.plan}"] if freely else []
    return msgspec.structs.replace(
        search,
        misses=_estimates(setting, plans, nearest(plans, room.missing, count)),
        advice=tuple(advice),
        enough_gpus=enough.plan.gpus if enough else None,
    )


def _fitting_on(setting: Setting, limits: PlanLimits, others: Iterator[Machines]) -> Iterator[Estimate]:
    """The best plans on other machines, where something fits there."""
    found = (best_plan(msgspec.structs.replace(setting, machines=machines), limits) for machines in others)
    return (best for best in found if best)


def _doubled(machines: Machines) -> Iterator[Machines]:
    """Twice as many GPUs, with their CPUs and memory, and twice as many again; a node is filled before the next."""
    while 2 * machines.gpus <= MOST_GPUS:
        layout = machines.gpus_on_node
        alone = len(layout) == 1 and 2 * layout[0] <= machines.gpu.gpus_per_node
        machines = msgspec.structs.replace(
            machines,
            gpus_on_node=(2 * layout[0],) if alone else 2 * layout,
            cpus=2 * machines.cpus,
            memory_gib=2 * machines.memory_gib,
        )
        yield machines


def _smaller(machines: Machines) -> Iterator[Machines]:
    """One GPU fewer, and one fewer again, from the last node."""
    for _ in range(min(FEWER, machines.gpus - 1)):
        *others, last = machines.gpus_on_node
        left = 1 - 1 / machines.gpus
        machines = msgspec.structs.replace(
            machines,
            gpus_on_node=(*others, last - 1) if last > 1 else tuple(others),
            cpus=left * machines.cpus,
            memory_gib=left * machines.memory_gib,
        )
        yield machines
