"""The nouns. Each is frozen and cannot be built wrong, so nothing downstream checks it again.

What is frozen when it is built cannot be part of a cycle: the garbage collector need not know (`gc=False`).
"""

from refold.model.allocation import Allocation, Placement, Share
from refold.model.cluster import Cluster, GpuType, Link, Node, Rack, Tenant
from refold.model.decision import KEEP, Decision, End, Expected, Flag, Reshape, Start, Stop
from refold.model.job import Demand, Job, JobClass
from refold.model.launch import Launch
from refold.model.plan import Plan
from refold.model.run import Run
from refold.model.waiting import Reason, Shortage, Wait

__all__ = [
    "KEEP",
    "Allocation",
    "Cluster",
    "Decision",
    "Demand",
    "End",
    "Expected",
    "Flag",
    "GpuType",
    "Job",
    "JobClass",
    "Launch",
    "Link",
    "Node",
    "Placement",
    "Plan",
    "Rack",
    "Reason",
    "Reshape",
    "Run",
    "Share",
    "Shortage",
    "Start",
    "Stop",
    "Tenant",
    "Wait",
]
