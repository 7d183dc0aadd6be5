"""The state of a training in memory of its ranks: each sends what others need, from its tensors into theirs."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from refold.train.handover import Region
from refold.train.local_optimizer import Slots
from refold.train.state import Box
from refold.train.training_state import Facts, TrainingState, gather, merge
from refold.train.transfers import Holding, Transfer, newest_holdings, transfers


class HeldState(NamedTuple):
    """What a rank has when it leaves a layout. `facts`: None if a step was interrupted while it changed the state."""

    boxes: dict[str, Box]
    slots: Slots
    facts: Facts | None


NOTHING = HeldState({}, {}, None)
"""What a rank has that joins."""


def hold(state: TrainingState, facts: Facts | None) -> HeldState:
    """Return what this rank has in its present layout."""
    return HeldState({box.name: box for box in state.boxes}, state.optimizer.slots(), facts)


def exchange(state: TrainingState, held: HeldState) -> Facts | None:
    """Fill the new layout with the state of the ranks that have come furthest; None if they lack parts. Collective."""
    kept = state.take_kept()
    usable = held if held.facts is not None else NOTHING
    step = -1 if usable.facts is None else usable.facts["step"]
    regions = {name: box.region() for name, box in usable.boxes.items()}
    holding = Holding(step, regions, {name: prod(box.whole) for name, box in usable.boxes.items()})
    tables = gather((holding, usable.slots, usable.facts))
    sources = newest_holdings([Holding(*table[0]) for table in tables])
    if not sources:
        return None
    state.optimizer.create_state(merge(tables[rank][1] for rank in sources), kept)
    facts: Facts = tables[min(sources)][2]
    state.expect_user_state(facts)
    targets = {box.name: box for box in state.boxes}
    wanted = gather({name: (box.region(), box.local.device.type) for name, box in targets.items()})
    plan = transfers(sources, [{name: region for name, (region, _) in table.items()} for table in wanted])
    devices = [{name: device for name, (_, device) in table.items()} for table in wanted]
    with torch.no_grad():
        _carry_out(plan, held.boxes, targets, devices)
    state.optimizer.write_back()
    return facts


def _carry_out(
    plan: Iterable[Transfer], held: dict[str, Box], targets: dict[str, Box], devices: list[dict[str, str]]
) -> None:
    """Send and receive; tensors on GPUs and on hosts by different ways."""
    me = dist.get_rank()
    operations: dict[str, list[dist.P2POp]] = {"cpu": [], "cuda": []}
    received: list[tuple[Tensor, Tensor]] = []
    for number, (name, region, source, target) in enumerate(plan):
        if source == me == target:
            part, place = _part(held[name], region), _part(targets[name], region)
            if part.data_ptr() != place.data_ptr():
                place.copy_(part)
        elif source == me:
            part = _part(held[name], region).to(devices[target][name]).contiguous()
            operations[part.device.type].append(dist.P2POp(dist.isend, part, target, tag=number))
        elif target == me:
            place = _part(targets[name], region)
            buffer = place if place.is_contiguous() else torch.empty_like(place, memory_format=torch.contiguous_format)
            operations[place.device.type].append(dist.P2POp(dist.irecv, buffer, source, tag=number))
            received.append((buffer, place))
    for batch in operations.values():
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
    for buffer, place in received:
        if buffer is not place:
            place.copy_(buffer)


def _part(box: Box, region: Region) -> Tensor:
    rows: Any = tuple(slice(first - at, end - at) for (first, end), at in zip(region, box.offset, strict=True))
    return box.local.detach()[rows]
