from .agenda import (
    Agenda as Agenda,
    check_jobs as check_jobs,
)
from .backend import SimulatedBackend as SimulatedBackend
from .costs import (
    NO_COSTS as NO_COSTS,
    Costs as Costs,
    RecordedSpeeds as RecordedSpeeds,
    SpeedModel as SpeedModel,
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
from .fork import (
    CannotCopy as CannotCopy,
    Fork as Fork,
)
from .futures import (
    Futures as Futures,
    continue_with_new_policy as continue_with_new_policy,
    continue_with_own_policy as continue_with_own_policy,
    simulate_futures as simulate_futures,
)
from .measured_speeds import MeasuredSpeeds as MeasuredSpeeds
from .modelled_speeds import ModelledSpeeds as ModelledSpeeds
from .run_time_draws import RunTimes as RunTimes
from .simulation import simulate as simulate
from .start_estimates import (
    EstimateMaker as EstimateMaker,
    EstimatingPolicy as EstimatingPolicy,
)
from .start_times import (
    StartSimulator as StartSimulator,
    StartTimes as StartTimes,
    copies_of as copies_of,
    estimate_end as estimate_end,
)
from .state_at import (
    RecordedDecisions as RecordedDecisions,
    StateAt as StateAt,
)
