"""Which ranks stay where they are, and where others start, when the hosts or the plan of a run change. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from refold.train.run_settings import HostSlots, Place


def renumbered(ranks: Mapping[int, int], count: int) -> dict[int, int]:
    """Return new numbers of processes: they keep theirs if it is below `count`; others get what is free, in order.

    What is left over gets numbers from `count` on.
    """
    kept = {process: rank for process, rank in ranks.items() if rank < count}
    free = [number for number in range(len(ranks) + count) if number not in kept.values()]
    others = sorted(ranks.keys() - kept.keys(), key=lambda process: ranks[process])
    return {**kept, **dict(zip(others, free, strict=False))}


def places_for(stay: Mapping[int, Place], hosts: Sequence[HostSlots], count: int) -> tuple[Place, ...] | None:
    """Return where the ranks of a plan run, of which some stay; None if one of these has no slot any more.

    The free slots of the hosts are filled in order.
    """
    slots = [(host.instance, local) for host in hosts for local in range(host.slots)]
    used = {rank: (place.host, place.local_rank) for rank, place in stay.items() if rank < count}
    if not set(used.values()) <= set(slots):
        return None
    free = (slot for slot in slots if slot not in used.values())
    found = [used[rank] if rank in used else next(free) for rank in range(count)]
    on_host = Counter(host for host, _ in found)
    return tuple(Place(host, local, on_host[host]) for host, local in found)
