from .allocation import (
    Allocation as Allocation,
    Placement as Placement,
    Share as Share,
    additional_shares as additional_shares,
)
from .array import (
    EXPECTED_ARRAY as EXPECTED_ARRAY,
    MAX_ARRAY_TASKS as MAX_ARRAY_TASKS,
    ArrayTask as ArrayTask,
    JobArray as JobArray,
    parse_array as parse_array,
    parse_task_numbers as parse_task_numbers,
    task_id as task_id,
)
from .cluster import (
    ETHERNET as ETHERNET,
    MAX_AMOUNT as MAX_AMOUNT,
    MAX_GPU_TYPES as MAX_GPU_TYPES,
    MAX_GPUS_PER_NODE as MAX_GPUS_PER_NODE,
    PCIE as PCIE,
    Cluster as Cluster,
    GpuType as GpuType,
    Link as Link,
    Node as Node,
    Rack as Rack,
    Tenant as Tenant,
)
from .consent import (
    Consent as Consent,
    Preemption as Preemption,
    PreemptionOutcome as PreemptionOutcome,
    PreemptionOutlook as PreemptionOutlook,
    PreemptionRules as PreemptionRules,
    consent_of as consent_of,
    find_consent as find_consent,
    jobs_under as jobs_under,
    saves_checkpoints as saves_checkpoints,
)
from .decision import (
    NO_CHANGE as NO_CHANGE,
    Decision as Decision,
    End as End,
    Flag as Flag,
    FlagRule as FlagRule,
    Reshape as Reshape,
    Start as Start,
    StartEstimate as StartEstimate,
    Stop as Stop,
)
from .dependency import (
    DEPENDENCY_KINDS as DEPENDENCY_KINDS,
    EXPECTED_DEPENDENCY as EXPECTED_DEPENDENCY,
    SINGLETON as SINGLETON,
    Dependency as Dependency,
    array_dependency as array_dependency,
    dependency_failure as dependency_failure,
    parse_dependencies as parse_dependencies,
    parse_dependency as parse_dependency,
)
from .job import (
    MAX_GPUS as MAX_GPUS,
    ChangeLimit as ChangeLimit,
    Demand as Demand,
    Job as Job,
    JobClass as JobClass,
)
from .launch import (
    AUTO as AUTO,
    LAUNCH_ENGINES as LAUNCH_ENGINES,
    MAX_RETRIES as MAX_RETRIES,
    OUTPUT_FIELDS as OUTPUT_FIELDS,
    AutoRequest as AutoRequest,
    AutoResource as AutoResource,
    Launch as Launch,
    LaunchEngine as LaunchEngine,
    StopSignal as StopSignal,
    check_output_pattern as check_output_pattern,
    expand_output_pattern as expand_output_pattern,
)
from .node_set import NodeSet as NodeSet
from .plan import (
    DEGREES as DEGREES,
    MAX_DEGREE as MAX_DEGREE,
    RECOMPUTE as RECOMPUTE,
    Plan as Plan,
    Recompute as Recompute,
    parse_plan as parse_plan,
    parse_plan_fields as parse_plan_fields,
)
from .run import (
    ChangeAnswer as ChangeAnswer,
    ChangeRequest as ChangeRequest,
    ChangeWay as ChangeWay,
    MeasuredShape as MeasuredShape,
    Run as Run,
    RunUsage as RunUsage,
    measured_shape as measured_shape,
    run_plan as run_plan,
)
from .units import (
    DAY as DAY,
    HOUR as HOUR,
    MINUTE as MINUTE,
    WHOLE as WHOLE,
    MiB as MiB,
    Milli as Milli,
    Seconds as Seconds,
    format_count as format_count,
    format_duration as format_duration,
    format_memory as format_memory,
    mib_from_gib as mib_from_gib,
    milli_from_number as milli_from_number,
    parse_duration as parse_duration,
    plural as plural,
)
from .waiting import (
    Reason as Reason,
    Shortage as Shortage,
    Wait as Wait,
)
