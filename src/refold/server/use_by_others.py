"""What others than the scheduler use on the nodes of an engine, as events."""

from __future__ import annotations

from refold.core import NodeUsed
from refold.model import WHOLE, MiB, Milli
from refold.server.live_state import LiveState


class UseByOthers:
    """Reports changes of what others use. What an earlier daemon has reported still counts, until it is replaced."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._reported: dict[int, NodeUsed] = {}

    def change(self, node: int, gpus: int, cpu_milli: Milli, memory_mib: MiB) -> NodeUsed | None:
        """Return what others use on a node, if that is not what was reported last. Negative numbers count as 0."""
        before = self._reported.get(node) or self._state.view.used_by_others(node)
        used = NodeUsed(node, self._choose_gpus(before, max(0, gpus)), max(0, cpu_milli), max(0, memory_mib))
        if used == before:
            return None
        self._reported[node] = used
        return used

    def _choose_gpus(self, before: NodeUsed, count: int) -> tuple[int, ...]:
        """Return GPUs that no run has: those that were reported before, then the last ones.

        Which GPU of a node is used is decided by the engine; the scheduler only counts them.
        """
        free = [gpu for gpu, milli in enumerate(self._state.view.free_gpu_milli(before.node)) if milli == WHOLE]
        candidates = [*before.gpus, *(gpu for gpu in reversed(free) if gpu not in before.gpus)]
        return tuple(sorted(candidates[:count]))
