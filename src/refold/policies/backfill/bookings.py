"""What is in use or reserved on each node over time, and the nodes on which resources were released.

Resources that are released early leave a gap: its nodes are recorded, so that the reservations that can move forward,
and the demands that may fit now, are found by checking those nodes only.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from refold.model import Cluster, Demand, Placement, Seconds
from refold.placement import Ints, Placer, Timetable

MAX_PLACEMENT_ATTEMPTS = 8
"""If the placer finds no placement where the resources suffice, later start times are tried, up to this many in all."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A placement, by nodes and GPUs, from `start` to `end`."""

    placement: Placement
    start: Seconds
    end: Seconds

    def shifted(self, start: Seconds) -> Reservation:
        """Return the same placement and duration, from `start` on."""
        return Reservation(self.placement, start, start + self.end - self.start)


class Bookings:
    """The timetable of a cluster, and the nodes with releases."""

    def __init__(self, cluster: Cluster, placer: Placer) -> None:
        self.table = Timetable(cluster)
        self._placer = placer
        self._released: dict[int, None] = {}
        """Nodes with releases since the last call of `pop_released`."""
        self._newly_free: dict[int, None] = {}
        """Nodes with releases since the last call of `pop_newly_free`."""

    def find(self, demand: Demand, duration: Seconds, now: Seconds, before: Seconds = inf) -> Reservation | None:
        """Return the earliest possible reservation that starts before `before`; None: there is none. Book nothing."""
        after = now
        for _ in range(MAX_PLACEMENT_ATTEMPTS):
            start = self.table.earliest_start(demand, duration, after, before)
            if start == inf:
                return None
            placement = self._placer.place(self.table.free_during(start, start + duration), demand)
            if placement is not None:
                return Reservation(placement, start, start + duration)
            after = float(np.nextafter(start, inf))
        return None

    def fits(self, demand: Demand, duration: Seconds, now: Seconds) -> bool:
        """Return whether a demand fits from now on for this long."""
        return self.table.earliest_start(demand, duration, now, float(np.nextafter(now, inf))) == now

    def is_free(self, reservation: Reservation) -> bool:
        """Return whether nothing else is booked on the placement in that time."""
        return self.table.free_during(reservation.start, reservation.end).has(reservation.placement)

    def free_duration(self, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long from now on a demand fits without conflicting with a run or a reservation."""
        return self.table.longest_free_duration(demand, now)

    def free_duration_on(self, nodes: Ints, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long from now on one instance of a demand fits on one of these nodes."""
        return self.table.longest_free_duration_on(nodes, demand, now)

    def place_now(self, demand: Demand, duration: Seconds, now: Seconds) -> Placement | None:
        """Return a placement that is free from now on for this long; None if there is none."""
        return self._placer.place(self.table.free_during(now, now + duration), demand)

    def set_node_up(self, node: int, up: bool) -> bool:
        """Mark a node as up or down; return whether that has changed."""
        if up == self.table.is_up(node):
            return False
        self.table.set_node_up(node, up)
        self._released[node] = self._newly_free[node] = None
        return True

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> bool:
        """Mark a GPU as up or down; return whether that has changed."""
        if up == self.table.is_gpu_up(node, gpu):
            return False
        self.table.set_gpu_up(node, gpu, up)
        self._released[node] = self._newly_free[node] = None
        return True

    def note_released(self, placement: Placement) -> None:
        """Record that the resources of a placement were released, now or at a later time."""
        for share in placement:
            self._released[share.node] = None
            self._newly_free[share.node] = None

    @property
    def released(self) -> dict[int, None]:
        """Nodes with releases since the last call of `pop_released`, in order."""
        return self._released

    def pop_released(self) -> dict[int, None]:
        """Return the nodes with releases since the last call."""
        nodes, self._released = self._released, {}
        return nodes

    @property
    def has_newly_free(self) -> bool:
        """Whether there are nodes with releases since the last call of `pop_newly_free`."""
        return bool(self._newly_free)

    def pop_newly_free(self) -> Ints:
        """Return the nodes with releases since the last call; independent of `pop_released`."""
        nodes, self._newly_free = np.fromiter(self._newly_free, np.int64, len(self._newly_free)), {}
        return nodes
