from .agenda import Agenda as Agenda
from .backend import SimulatedBackend as SimulatedBackend
from .costs import (
    FREE_OF_CHARGE as FREE_OF_CHARGE,
    Costs as Costs,
    RecordedSpeeds as RecordedSpeeds,
    SpeedModel as SpeedModel,
)
from .easy_replay import replay_easy as replay_easy
from .faults import (
    Endless as Endless,
    Fault as Fault,
    NeverEnds as NeverEnds,
    Stuck as Stuck,
    put_on as put_on,
    seeded_faults as seeded_faults,
    seeded_never_ending as seeded_never_ending,
)
from .fork import CannotCopy as CannotCopy, Fork as Fork
from .futures import Futures as Futures, going_on as going_on, look_ahead as look_ahead, taking_over as taking_over
from .measured_speeds import MeasuredSpeeds as MeasuredSpeeds
from .modelled_speeds import ModelledSpeeds as ModelledSpeeds
from .replay import (
    Replayed as Replayed,
    TaskColumns as TaskColumns,
    replay_compiled as replay_compiled,
    tasks_of as tasks_of,
)
from .simulation import simulate as simulate
from .state_at import RecordedDecisions as RecordedDecisions, StateAt as StateAt
