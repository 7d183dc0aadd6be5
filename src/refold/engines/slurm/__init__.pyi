from .engine import SlurmEngine as SlurmEngine, serve_slurm as serve_slurm
from .history import (
    SlurmHistory as SlurmHistory,
    read_history as read_history,
    recorded_entries as recorded_entries,
)
from .nodes import (
    SlurmCluster as SlurmCluster,
    SlurmNode as SlurmNode,
    map_nodes as map_nodes,
    read_nodes as read_nodes,
)
from .observation import (
    SlurmSnapshot as SlurmSnapshot,
    observe_slurm as observe_slurm,
)
from .programs import (
    Programs as Programs,
    SlurmError as SlurmError,
)
from .scheduling import (
    POLICY as POLICY,
    Scheduling as Scheduling,
    history_settings as history_settings,
)
from .topology import (
    read_topology as read_topology,
    with_levels as with_levels,
)
