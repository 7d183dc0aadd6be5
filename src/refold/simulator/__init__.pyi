from .agenda import Agenda as Agenda, check_jobs as check_jobs
from .backend import SimulatedBackend as SimulatedBackend
from .costs import (
    NO_COSTS as NO_COSTS,
    Costs as Costs,
    CrossingSpeeds as CrossingSpeeds,
    MeasuredSpeeds as MeasuredSpeeds,
    ModelledSpeeds as ModelledSpeeds,
    RecordedSpeeds as RecordedSpeeds,
    SpeedModel as SpeedModel,
    recorded_speeds as recorded_speeds,
)
from .faults import (
    Endless as Endless,
    Fault as Fault,
    NeverEnds as NeverEnds,
    Stuck as Stuck,
    random_faults as random_faults,
    random_never_ending_jobs as random_never_ending_jobs,
    schedule_faults as schedule_faults,
)
from .fork import CannotCopy as CannotCopy
from .futures import (
    AS_SIMULATED as AS_SIMULATED,
    OTHER_SCHEDULER as OTHER_SCHEDULER,
    Futures as Futures,
    RangeFactors as RangeFactors,
    continue_with_new_policy as continue_with_new_policy,
    continue_with_own_policy as continue_with_own_policy,
    simulate_futures as simulate_futures,
)
from .preemption_outlook import (
    DAEMON_COSTS as DAEMON_COSTS,
    DEFAULT_POLICY as DEFAULT_POLICY,
    MAX_OUTLOOK_JOBS as MAX_OUTLOOK_JOBS,
    compute_outlook as compute_outlook,
    simulate_outlook as simulate_outlook,
)
from .registry import (
    START_ESTIMATES as START_ESTIMATES,
    PolicyFile as PolicyFile,
    PolicyInfo as PolicyInfo,
    chooses_plans as chooses_plans,
    default_policies as default_policies,
    default_settings as default_settings,
    is_policy_file as is_policy_file,
    list_policies as list_policies,
    make_policy as make_policy,
    policy_names as policy_names,
    resolve_policy as resolve_policy,
    setting_ranges as setting_ranges,
    split_settings as split_settings,
    with_run_watch as with_run_watch,
    with_start_estimates as with_start_estimates,
    without_start_estimates as without_start_estimates,
)
from .run_time_draws import RunTimes as RunTimes
from .simulation import simulate as simulate
from .start_estimates import EstimateMaker as EstimateMaker
from .start_times import (
    MAX_VISITS as MAX_VISITS,
    StartSimulator as StartSimulator,
    StartTimes as StartTimes,
    copies_of as copies_of,
    estimate_end as estimate_end,
)
from .state_at import RecordedDecisions as RecordedDecisions, StateAt as StateAt
