from .admission import Admission as Admission
from .batch import BatchRun as BatchRun, JobOutcome as JobOutcome
from .clock import WallClock as WallClock
from .cluster_engine import (
    BackendOptions as BackendOptions,
    ClusterEngine as ClusterEngine,
    EngineParts as EngineParts,
    ServedBackend as ServedBackend,
    StatusOf as StatusOf,
    load_daemon_id as load_daemon_id,
)
from .daemon import Daemon as Daemon, Ready as Ready
from .inbox import Inbox as Inbox
from .job_table import Notice as Notice, NoticeKind as NoticeKind
from .live_state import LiveState as LiveState
from .local_engine import (
    PRIVILEGED_STATE as PRIVILEGED_STATE,
    describe_user as describe_user,
    split_privileges as split_privileges,
)
from .log_format import log_to_stderr as log_to_stderr
from .recording import Recording as Recording, read_recording as read_recording
from .recording_server import RecordingServer as RecordingServer
from .recovery import MAX_PAST_JOBS as MAX_PAST_JOBS
from .signals import TERMINATION_SIGNALS as TERMINATION_SIGNALS, interruptible as interruptible
from .snapshot import encode_snapshot as encode_snapshot
from .subscribers import LoopStep as LoopStep, Subscriber as Subscriber
from .use_by_others import UseByOthers as UseByOthers
from .writer import Writer as Writer
