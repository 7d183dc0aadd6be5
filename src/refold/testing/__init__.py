"""For tests of your own policies, back ends and trace readers: small makers, an audit, and contracts to subclass."""

from refold.testing.audit import Audit, Broken
from refold.testing.backend_contract import BackendContract
from refold.testing.makers import make_cluster, make_job
from refold.testing.policy_contract import PolicyContract
from refold.testing.trace_contract import TraceContract
from refold.testing.workloads import reshapable_workload, seeded_workload

__all__ = [
    "Audit",
    "BackendContract",
    "Broken",
    "PolicyContract",
    "TraceContract",
    "make_cluster",
    "make_job",
    "reshapable_workload",
    "seeded_workload",
]
