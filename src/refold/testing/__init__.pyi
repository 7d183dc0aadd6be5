from .audit import Audit as Audit, AuditFailed as AuditFailed
from .backend_contract import BackendContract as BackendContract
from .makers import (
    make_cluster as make_cluster,
    make_job as make_job,
    reshapable_workload as reshapable_workload,
    seeded_workload as seeded_workload,
)
from .policy_contract import PolicyContract as PolicyContract
from .trace_contract import TraceContract as TraceContract
