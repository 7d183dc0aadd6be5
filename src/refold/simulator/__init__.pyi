from .agenda import Agenda as Agenda
from .backend import SimulatedBackend as SimulatedBackend
from .costs import (
    NO_COSTS as NO_COSTS,
    Costs as Costs,
    RecordedSpeeds as RecordedSpeeds,
    SpeedModel as SpeedModel,
)
from .easy_replay import EasyNotes as EasyNotes, replay_easy as replay_easy
from .faults import (
    Endless as Endless,
    Fault as Fault,
    NeverEnds as NeverEnds,
    Stuck as Stuck,
    random_faults as random_faults,
    random_never_ending_jobs as random_never_ending_jobs,
    schedule_faults as schedule_faults,
)
from .fork import CannotCopy as CannotCopy, Fork as Fork
from .futures import (
    Futures as Futures,
    continue_with_new_policy as continue_with_new_policy,
    continue_with_own_policy as continue_with_own_policy,
    simulate_futures as simulate_futures,
)
from .learned_replay import (
    TrainingResult as TrainingResult,
    TrainingTasks as TrainingTasks,
    replay_learned as replay_learned,
    training_tasks as training_tasks,
)
from .measured_speeds import MeasuredSpeeds as MeasuredSpeeds
from .modelled_speeds import ModelledSpeeds as ModelledSpeeds
from .predicted_easy_replay import replay_predicted_easy as replay_predicted_easy
from .queue_replay import replay_queue as replay_queue
from .replay import (
    ReplayedRuns as ReplayedRuns,
    ReplayNotes as ReplayNotes,
    ReplayResult as ReplayResult,
    TaskColumns as TaskColumns,
    replay_compiled as replay_compiled,
    task_columns as task_columns,
)
from .replay_choice import (
    Conditions as Conditions,
    Experiment as Experiment,
    find_journaled_replay as find_journaled_replay,
    find_replay as find_replay,
)
from .replay_journal import easy_entries as easy_entries, replay_entries as replay_entries
from .run_time_draws import RunTimes as RunTimes
from .simulation import simulate as simulate
from .start_times import (
    StartSimulator as StartSimulator,
    StartTimes as StartTimes,
    compile_start_simulator as compile_start_simulator,
    estimate_end as estimate_end,
)
from .state_at import RecordedDecisions as RecordedDecisions, StateAt as StateAt
