"""Nodes that come and go, and what pods of other schedulers use, as events."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core import Event, NodeDrained, NodeLost, NodeReturned
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import DeviceGroup, NodeMap, down_reason, group_use
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.resources import allocatable
from refold.server import Inbox, LiveState, UseByOthers

PREFIX = "kubernetes: "
"""Nodes that are down for a reason that begins so return when Kubernetes says so; others when an operator does."""


class NodeReports:
    """Reports the state and the use of nodes."""

    def __init__(self, state: LiveState, inbox: Inbox, mirror: Mirror, nodes: NodeMap) -> None:
        self._state = state
        self._inbox = inbox
        self._mirror = mirror
        self._nodes = nodes
        self._use_by_others = UseByOthers(state)

    def report(self, names: Iterable[str]) -> None:
        """Report what has changed on these nodes."""
        for name in names:
            for index in self._nodes.indices(name):
                for event in (self._availability(index, name), self._use(index, name)):
                    if event is not None:
                        self._inbox.report(event)

    def _availability(self, index: int, name: str) -> Event | None:
        view, node = self._state.view, self._mirror.nodes.get(name)
        why = down_reason(node) if node is not None else "the node was deleted"
        is_ours = view.down_reason(index).startswith(PREFIX)
        if why:
            return NodeLost(index, PREFIX + why) if view.is_up(index) or (is_ours and view.is_drained(index)) else None
        if node is not None and node.spec.unschedulable:
            return NodeDrained(index, f"{PREFIX}cordoned") if view.is_up(index) else None
        return NodeReturned(index) if is_ours and not view.is_up(index) else None

    def _use(self, index: int, name: str) -> Event | None:
        """Return what others use on a node, if that is not what was reported last."""
        group = self._nodes.groups[index]
        pods = self._mirror.pods_on_node(name).values()
        others = [pod for pod in pods if not pod.has_ended and not self._is_of_current_run(pod)]
        use = group_use(group, others)
        return self._use_by_others.change(index, use.gpus + self._unhealthy(group, name), use.cpu_milli, use.memory_mib)

    def _is_of_current_run(self, pod: Pod) -> bool:
        key = self._mirror.run_of(pod)
        run = self._state.view.runs.get(key[0]) if key is not None else None
        return run is not None and key is not None and run.number == key[1]

    def _unhealthy(self, group: DeviceGroup, name: str) -> int:
        """Return the number of GPUs that the device plug-in does not offer."""
        node = self._mirror.nodes.get(name)
        if node is None or not group.gpus:
            return 0
        return max(0, group.gpus - int(allocatable(node, group.resource)))
