"""Which nodes and GPUs are up, why others are down, and what is used by others than the scheduler."""

from __future__ import annotations

from refold.core.changes import Changes
from refold.core.events import GpuDrained, GpuLost, GpuReturned, NodeDrained, NodeLost, NodeReturned, NodeUsed
from refold.model import WHOLE, Placement, Share
from refold.placement import FreeResources

Part = tuple[int, int | None]
"""A node and one of its GPUs, or None for the node as a whole."""


class Availability:
    """The nodes and GPUs that are down, with the reasons, and what others use."""

    def __init__(self, free: FreeResources, changes: Changes) -> None:
        self.down_reasons: dict[Part, str] = {}
        self.drained: set[Part] = set()
        """The parts that are down because they are drained."""
        self.used: dict[int, NodeUsed] = {}
        """What others use, by node."""
        self._taken_by_others: dict[int, Placement] = {}
        self._nodes = free.cluster.nodes
        self._free = free
        self._changes = changes

    def exists(self, placement: Placement) -> bool:
        """Whether the cluster has all nodes and GPUs of a placement."""
        parts: list[Part] = [(share.node, None) for share in placement]
        parts += [(share.node, gpu) for share in placement for gpu in share.gpus]
        return all(map(self._exists, parts))

    def take_down(self, event: NodeLost | GpuLost) -> bool:
        """Mark a node or a GPU as down; return whether it was up. If not, a new reason replaces the old one."""
        part = _part(event)
        if not self._exists(part):
            return False
        was_up = part not in self.down_reasons
        if was_up:
            self._set_up(part, False)
        if was_up or event.why:
            self.down_reasons[part] = event.why
            is_drained = isinstance(event, NodeDrained | GpuDrained)
            (self.drained.add if is_drained else self.drained.discard)(part)
        return was_up

    def bring_up(self, event: NodeReturned | GpuReturned) -> bool:
        """Mark a node or a GPU as up; return whether it was down."""
        part = _part(event)
        if part not in self.down_reasons:
            return False
        del self.down_reasons[part]
        self.drained.discard(part)
        self._set_up(part, True)
        return True

    def note_used(self, event: NodeUsed) -> bool:
        """Take what others use on a node, as far as it is free; return whether the node and its GPUs exist."""
        parts: list[Part] = [(event.node, None), *((event.node, gpu) for gpu in event.gpus)]
        if not all(map(self._exists, parts)) or min(event.cpu_milli, event.memory_mib) < 0:
            return False
        self._free.release(self._taken_by_others.pop(event.node, ()))
        self.used.pop(event.node, None)
        if event != NodeUsed(event.node):
            self.used[event.node] = event
            share = Share(event.node, event.gpus, WHOLE, event.cpu_milli, event.memory_mib)
            self._taken_by_others[event.node] = self._free.take_available((share,))
        self._changes.nodes.append(event.node)
        return True

    def _exists(self, part: Part) -> bool:
        node, gpu = part
        return 0 <= node < len(self._nodes) and (gpu is None or 0 <= gpu < self._nodes[node].gpus)

    def _set_up(self, part: Part, up: bool) -> None:
        node, gpu = part
        if gpu is None:
            self._free.set_node_up(node, up)
        else:
            self._free.set_gpu_up(node, gpu, up)
        self._changes.nodes.append(node)


def _part(event: NodeLost | NodeReturned | GpuLost | GpuReturned) -> Part:
    return event.node, event.gpu if isinstance(event, GpuLost | GpuReturned) else None
