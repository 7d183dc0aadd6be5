from .backend import SlurmBackend as SlurmBackend
from .cluster import (
    GpuGroup as GpuGroup,
    SlurmCluster as SlurmCluster,
    constraint_features as constraint_features,
    map_nodes as map_nodes,
)
from .engine import (
    DAEMON_KEY as DAEMON_KEY,
    SlurmEngine as SlurmEngine,
)
from .held_pool import HeldPool as HeldPool
from .history import (
    RecordedStart as RecordedStart,
    SlurmHistory as SlurmHistory,
    read_history as read_history,
)
from .hostlist import (
    expand_hosts as expand_hosts,
    expand_tasks as expand_tasks,
)
from .job_owners import (
    DaemonOwner as DaemonOwner,
    JobOwners as JobOwners,
    SubmitterOwners as SubmitterOwners,
)
from .job_records import (
    QueueRecords as QueueRecords,
    SlurmJob as SlurmJob,
    read_queue as read_queue,
)
from .node_records import (
    SlurmNode as SlurmNode,
    read_nodes as read_nodes,
)
from .observation import (
    SlurmSnapshot as SlurmSnapshot,
    observe_slurm as observe_slurm,
)
from .pool import PoolSettings as PoolSettings
from .programs import (
    Programs as Programs,
    Run as Run,
    SlurmError as SlurmError,
)
from .recorded import recorded_entries as recorded_entries
from .requests import SlurmSettings as SlurmSettings
from .serving import serve_slurm as serve_slurm
