from .clock import WallClock as WallClock
from .daemon import Daemon as Daemon, Ready as Ready
from .drained_gpus import is_drain_placeholder as is_drain_placeholder
from .driver import LiveDriver as LiveDriver
from .job_table import JobRecord as JobRecord, Kind as Kind, Notice as Notice
from .loop import Loop as Loop, LoopStep as LoopStep
from .outcomes import JobOutcome as JobOutcome, JobOutcomes as JobOutcomes
from .signals import ASKS_TO_END as ASKS_TO_END, interruptible as interruptible
