from .access import Access as Access, find_access as find_access, read_kubeconfig as read_kubeconfig
from .api_server import ApiError as ApiError, ApiServer as ApiServer
from .backend import KubernetesBackend as KubernetesBackend, OwnJobs as OwnJobs, is_submitted as is_submitted
from .constraints import selected_labels as selected_labels, unsupported_fields as unsupported_fields
from .gang_run import bindable as bindable, pod_path as pod_path
from .gangs import (
    GangName as GangName,
    controller_of as controller_of,
    is_ours as is_ours,
    parse_gang_name as parse_gang_name,
)
from .mirror import Changed as Changed, Mirror as Mirror, run_of as run_of
from .nodes import Labels as Labels, NodeMap as NodeMap, down_reason as down_reason, map_nodes as map_nodes
from .objects import Node as Node, Pod as Pod
from .owners import Owner as Owner, Owners as Owners
from .resources import (
    PodNeed as PodNeed,
    is_accelerator as is_accelerator,
    largest_need as largest_need,
    parse_amount as parse_amount,
    pod_need as pod_need,
)
