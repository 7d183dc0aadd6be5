from .charges import (
    format_charging as format_charging,
    parse_charging as parse_charging,
    read_knowledge as read_knowledge,
    with_knowledge as with_knowledge,
)
from .forecast_arguments import (
    Arrivals as Arrivals,
    AtTime as AtTime,
    FutureCount as FutureCount,
    FutureSeed as FutureSeed,
)
from .forecast_options import MAX_WAITING_FOR_FUTURES as MAX_WAITING_FOR_FUTURES, ForecastOptions as ForecastOptions
from .hardware import GpuPool as GpuPool, parse_gpu_pools as parse_gpu_pools, pools_with_gpus as pools_with_gpus
from .journal_state import (
    NOW as NOW,
    JournalState as JournalState,
    forecast_starts as forecast_starts,
    make_scheduler_factory as make_scheduler_factory,
    read_daemon_state as read_daemon_state,
    read_journal_state as read_journal_state,
    stop_after as stop_after,
)
from .named_options import (
    ClassName as ClassName,
    GpuTotal as GpuTotal,
    InstanceCount as InstanceCount,
    LaunchEngineName as LaunchEngineName,
    LaunchTargetName as LaunchTargetName,
    OtherClass as OtherClass,
    PreferredLevel as PreferredLevel,
    RequiredLevel as RequiredLevel,
    Segment as Segment,
    Switches as Switches,
    parse_job_class as parse_job_class,
    parse_launch_engine as parse_launch_engine,
    read_or_trace_model as read_or_trace_model,
)
from .plan_values import find_plan as find_plan
from .policy_choice import (
    POWER_PLACEMENT as POWER_PLACEMENT,
    SelectedPolicy as SelectedPolicy,
    check_spread_power as check_spread_power,
    is_oracle as is_oracle,
    parse_policies as parse_policies,
    parse_policy as parse_policy,
    policy_label as policy_label,
    takes_placement as takes_placement,
    with_start_estimates as with_start_estimates,
)
from .power_limits import (
    power_limit_notes as power_limit_notes,
    spreads_power as spreads_power,
    with_power_limits as with_power_limits,
)
from .submission import SubmitOptions as SubmitOptions, read_submissions as read_submissions
from .tuning_inputs import KeptHistory as KeptHistory, parse_ranges as parse_ranges
from .workload import (
    Workload as Workload,
    with_charging as with_charging,
    with_faults as with_faults,
    with_never_ending as with_never_ending,
    with_preemption as with_preemption,
)
from .workload_reader import (
    DEMO as DEMO,
    jobs_with_work as jobs_with_work,
    parse_since as parse_since,
    read_backlog as read_backlog,
    read_recorded_run as read_recorded_run,
    read_slurm_workload as read_slurm_workload,
    read_workload as read_workload,
    workload_from_history as workload_from_history,
)
