from .backlog import read_queued as read_queued
from .charges import (
    charging_from as charging_from,
    charging_text as charging_text,
    knowledge_from as knowledge_from,
    told as told,
)
from .hardware import GpuPool as GpuPool, sources_from as sources_from, with_gpus as with_gpus
from .job_classes import ClassName as ClassName, OtherClass as OtherClass, class_from as class_from
from .journal_state import (
    NOW as NOW,
    Arrivals as Arrivals,
    AtMoment as AtMoment,
    ForecastOptions as ForecastOptions,
    FutureSeed as FutureSeed,
    InFutures as InFutures,
    JournalState as JournalState,
    futures_of as futures_of,
    journal_state_at as journal_state_at,
    schedulers_from as schedulers_from,
    state_of_daemon as state_of_daemon,
)
from .journal_workload import recorded_in as recorded_in, workload_of as workload_of
from .plan_request import layout_text as layout_text, rate_text as rate_text, seconds_text as seconds_text
from .policy_choice import (
    SPREAD as SPREAD,
    Choice as Choice,
    chosen_policies as chosen_policies,
    chosen_policy as chosen_policy,
    is_oracle as is_oracle,
    name_of as name_of,
    refuse_other_places as refuse_other_places,
    takes_placement as takes_placement,
)
from .power_limits import limit_notes as limit_notes, spreads_power as spreads_power, within_limits as within_limits
from .submission import SubmitOptions as SubmitOptions, submissions_from as submissions_from
from .workload import (
    TraceReadOptions as TraceReadOptions,
    Workload as Workload,
    with_charging as with_charging,
    with_faults as with_faults,
    with_never_ending as with_never_ending,
)
from .workload_reader import read_workload as read_workload
