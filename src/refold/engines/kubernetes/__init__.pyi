from .access import (
    Access as Access,
    find_access as find_access,
    own_namespace as own_namespace,
)
from .api_server import (
    CONFLICT as CONFLICT,
    FORBIDDEN as FORBIDDEN,
    NOT_FOUND as NOT_FOUND,
    STRATEGIC_PATCH as STRATEGIC_PATCH,
    ApiError as ApiError,
    ApiServer as ApiServer,
    ObjectList as ObjectList,
    as_dict as as_dict,
)
from .backend import KubernetesBackend as KubernetesBackend
from .constraints import unsupported_fields as unsupported_fields
from .engine import (
    KubernetesEngine as KubernetesEngine,
    serve_kubernetes as serve_kubernetes,
)
from .gang_queue import LocalQueues as LocalQueues
from .gangs import (
    INSTANCE_ANNOTATION as INSTANCE_ANNOTATION,
    SCHEDULER_NAME as SCHEDULER_NAME,
    GangName as GangName,
    controller_of as controller_of,
    gang_name as gang_name,
    is_ours as is_ours,
    parse_gang_name as parse_gang_name,
    run_of as run_of,
    single_pod as single_pod,
)
from .job_objects import OwnJobs as OwnJobs
from .leadership import (
    DAEMON_KEY as DAEMON_KEY,
    Leadership as Leadership,
    Lease as Lease,
    LeaseLost as LeaseLost,
    this_process as this_process,
)
from .mirror import (
    NODES as NODES,
    PODS as PODS,
    Changed as Changed,
    Mirror as Mirror,
)
from .nodes import (
    DeviceGroup as DeviceGroup,
    NodeMap as NodeMap,
    down_reason as down_reason,
    group_use as group_use,
    is_unchanged as is_unchanged,
    map_nodes as map_nodes,
)
from .objects import (
    ApiNode as ApiNode,
    Pod as Pod,
)
from .observation import (
    observe as observe,
    read_only as read_only,
)
from .own_jobs import is_submitted as is_submitted
from .owner_specs import (
    QUEUE_LABEL as QUEUE_LABEL,
    Owner as Owner,
    read_owner as read_owner,
)
from .owners import Owners as Owners
from .pod_output import read_pod_log as read_pod_log
from .pod_states import (
    bindable as bindable,
    pod_path as pod_path,
)
from .pods import (
    gang_submission as gang_submission,
    pod_constraints as pod_constraints,
)
from .resources import (
    largest_need as largest_need,
    parse_amount as parse_amount,
    pod_need as pod_need,
)
from .snapshot_events import Observation as Observation
