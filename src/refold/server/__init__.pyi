from .admission import Admission as Admission
from .batch import BatchRun as BatchRun, JobOutcome as JobOutcome
from .clock import WallClock as WallClock
from .cluster_engine import (
    BackendOptions as BackendOptions,
    ClusterEngine as ClusterEngine,
    EngineParts as EngineParts,
    StatusOf as StatusOf,
    load_daemon_id as load_daemon_id,
)
from .daemon import Daemon as Daemon, Ready as Ready
from .inbox import Inbox as Inbox
from .job_table import Notice as Notice, NoticeKind as NoticeKind
from .live_state import LiveState as LiveState
from .recovery import MAX_PAST_JOBS as MAX_PAST_JOBS
from .signals import TERMINATION_SIGNALS as TERMINATION_SIGNALS, interruptible as interruptible
from .snapshot import encode_snapshot as encode_snapshot
from .subscribers import LoopStep as LoopStep, Subscriber as Subscriber
from .writer import Writer as Writer
