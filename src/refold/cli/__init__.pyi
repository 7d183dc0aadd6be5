from .app import main as main
from .browser import open_or_print as open_or_print
from .daemon_arguments import (
    DependencyOption as DependencyOption,
    GpuIndex as GpuIndex,
    JobArgument as JobArgument,
    LiveJobsArgument as LiveJobsArgument,
    NodeName as NodeName,
    OptionalLiveJobs as OptionalLiveJobs,
    TenantFilter as TenantFilter,
    TenantOption as TenantOption,
    UserFilter as UserFilter,
    complete_jobs as complete_jobs,
    complete_tenants as complete_tenants,
    complete_tokens as complete_tokens,
)
from .daemon_client import (
    LIVE_STATES as LIVE_STATES,
    MAX_LISTED as MAX_LISTED,
    change_jobs as change_jobs,
    connect as connect,
    format_held_gpus as format_held_gpus,
    format_job_counts as format_job_counts,
    format_job_gpus as format_job_gpus,
    format_placement as format_placement,
    format_rack as format_rack,
    format_reason as format_reason,
    list_jobs as list_jobs,
    make_client as make_client,
    print_node_change as print_node_change,
    select_jobs as select_jobs,
)
from .declare import argument as argument, option as option, switch as switch, with_option_groups as with_option_groups
from .experiment import (
    JOURNAL_FILE_NAME as JOURNAL_FILE_NAME,
    collect_notes as collect_notes,
    count_node_faults as count_node_faults,
    describe_conditions as describe_conditions,
    format_node_faults as format_node_faults,
    output_folder as output_folder,
    prepare_experiment as prepare_experiment,
    run_policy as run_policy,
    trace_notes as trace_notes,
    try_write_report as try_write_report,
)
from .experiment_options import (
    GPUS_PER_INSTANCE as GPUS_PER_INSTANCE,
    ExperimentOptions as ExperimentOptions,
    FaultOptions as FaultOptions,
    NeverEndingOptions as NeverEndingOptions,
    OverheadOptions as OverheadOptions,
    PreemptionMode as PreemptionMode,
    PreemptionOptions as PreemptionOptions,
    TraceFormatOptions as TraceFormatOptions,
    TraceOptions as TraceOptions,
    max_gpus_per_node as max_gpus_per_node,
)
from .options import (
    ClusterFile as ClusterFile,
    HistorySourceOption as HistorySourceOption,
    OptionalTrace as OptionalTrace,
    OtherPolicy as OtherPolicy,
    OutFolder as OutFolder,
    PlacementName as PlacementName,
    PlacementNames as PlacementNames,
    PolicyName as PolicyName,
    PolicyNames as PolicyNames,
    Seed as Seed,
    Settings as Settings,
    Since as Since,
    SpreadPower as SpreadPower,
    TraceName as TraceName,
    TraceOrDemo as TraceOrDemo,
    WatchOption as WatchOption,
    make_folder as make_folder,
    parse_duration_option as parse_duration_option,
    parse_optional_duration as parse_optional_duration,
    parse_settings as parse_settings,
    require_option as require_option,
    write_atomically as write_atomically,
)
from .parallel_runs import (
    run_policies as run_policies,
    run_policies_on_ray as run_policies_on_ray,
    start_tuning_runs as start_tuning_runs,
    study_inputs as study_inputs,
)
from .policy_guard import make_guarded_policy as make_guarded_policy
from .preemption_choice import choose_preemption as choose_preemption, own_outlook as own_outlook
from .source_options import SourceOptions as SourceOptions
from .worker_processes import stoppable as stoppable
