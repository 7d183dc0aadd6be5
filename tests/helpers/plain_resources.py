"""Free resources in plain Python, to check the compiled placement against."""

from refold.model import Cluster, Placement
from refold.model.units import WHOLE


class PlainResources:
    """The free thousandths of each GPU, and the free CPUs and memory of each node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpus = [[WHOLE] * node.gpus for node in cluster.nodes]
        self.cpu = [node.cpu_milli for node in cluster.nodes]
        self.memory = [node.memory_mib for node in cluster.nodes]

    def add(self, placement: Placement, sign: int) -> None:
        """Release a placement (sign 1), or allocate it (sign -1)."""
        for share in placement:
            for gpu in share.gpus:
                self.gpus[share.node][gpu] += sign * share.gpu_milli
            self.cpu[share.node] += sign * share.cpu_milli
            self.memory[share.node] += sign * share.memory_mib
