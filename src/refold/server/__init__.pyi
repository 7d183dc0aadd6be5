from .clock import WallClock as WallClock
from .daemon import Daemon as Daemon, Ready as Ready
from .drained_gpus import is_stand_in as is_stand_in
from .driver import Driver as Driver
from .job_table import Kind as Kind, News as News, Record as Record
from .loop import Loop as Loop, Step as Step
from .outcomes import Outcome as Outcome, Outcomes as Outcomes
from .signals import ASKS_TO_END as ASKS_TO_END, interruptible as interruptible
