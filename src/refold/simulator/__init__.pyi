from .agenda import Agenda as Agenda
from .backend import PretendBackend as PretendBackend
from .costs import FREE_OF_CHARGE as FREE_OF_CHARGE, AsRecorded as AsRecorded, Charge as Charge, Costs as Costs
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
from .fork import CannotCopy as CannotCopy, Snapshot as Snapshot
from .futures import Futures as Futures, going_on as going_on, look_ahead as look_ahead, taking_over as taking_over
from .measured_speeds import Measured as Measured
from .modelled_speeds import Modelled as Modelled
from .replay import Replayed as Replayed, Tasks as Tasks, replay_compiled as replay_compiled, tasks_of as tasks_of
from .simulation import simulate as simulate
from .state_at import AsWritten as AsWritten, Present as Present
