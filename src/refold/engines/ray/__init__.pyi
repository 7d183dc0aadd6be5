from .backend import DisconnectedBackend as DisconnectedBackend, RayBackend as RayBackend
from .cluster import (
    RayNodes as RayNodes,
    map_nodes as map_nodes,
    read_nodes as read_nodes,
)
from .engine import serve_ray as serve_ray
from .tasks import (
    RayTasks as RayTasks,
    WorkersLost as WorkersLost,
    connected as connected,
    load_ray as load_ray,
)
