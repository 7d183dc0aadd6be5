from .access import find_access as find_access
from .api_server import ApiError as ApiError, ApiServer as ApiServer
from .backend import KubernetesBackend as KubernetesBackend
from .engine import KubernetesEngine as KubernetesEngine, serve_kubernetes as serve_kubernetes
from .gangs import GangName as GangName, single_pod as single_pod
from .objects import Pod as Pod
from .observation import observe as observe, read_only as read_only
from .owner_specs import Owner as Owner
from .pods import gang_submission as gang_submission
