from .backend import RayBackend as RayBackend
from .cluster import (
    RayNode as RayNode,
    RayNodes as RayNodes,
    map_nodes as map_nodes,
    read_nodes as read_nodes,
)
from .connection import RayConnection as RayConnection
from .disconnected import DisconnectedBackend as DisconnectedBackend
from .engine import (
    DAEMON_KEY as DAEMON_KEY,
    RayEngine as RayEngine,
)
from .serving import serve_ray as serve_ray
from .tasks import (
    RayTasks as RayTasks,
    WorkersLost as WorkersLost,
    connected as connected,
    load_ray as load_ray,
)
