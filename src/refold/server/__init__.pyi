from .admission import Admission as Admission
from .backend import (
    Backend as Backend,
    ExportedOf as ExportedOf,
    LimitsOf as LimitsOf,
    MachineUse as MachineUse,
    Report as Report,
    RunLimits as RunLimits,
    SecretsOf as SecretsOf,
)
from .batch import BatchRun as BatchRun, JobOutcome as JobOutcome
from .clock import WallClock as WallClock
from .daemon import Daemon as Daemon, DaemonReady as DaemonReady
from .engine import (
    BackendOptions as BackendOptions,
    ClusterEngine as ClusterEngine,
    EngineParts as EngineParts,
    ServedBackend as ServedBackend,
    StatusOf as StatusOf,
    UseByOthers as UseByOthers,
    load_daemon_id as load_daemon_id,
)
from .inbox import Inbox as Inbox
from .job_table import Notice as Notice, NoticeKind as NoticeKind
from .listeners import find_socket_path as find_socket_path
from .live_state import LiveState as LiveState, encode_snapshot as encode_snapshot
from .machine_locks import GpuLocks as GpuLocks, LockHolder as LockHolder, MachineLocks as MachineLocks
from .metrics import Metric as Metric, Sample as Sample
from .recording import Recording as Recording, RecordingServer as RecordingServer, read_recording as read_recording
from .recovery import MAX_PAST_JOBS as MAX_PAST_JOBS
from .serving import (
    ServeRequest as ServeRequest,
    on_termination as on_termination,
    run_until_done as run_until_done,
    serve_cluster as serve_cluster,
)
from .signals import (
    end_with_parent as end_with_parent,
    interruptible as interruptible,
    job_descriptor_limit as job_descriptor_limit,
)
from .subscribers import LoopStep as LoopStep, Subscriber as Subscriber, log_to_stderr as log_to_stderr
from .unix_users import (
    JobAccount as JobAccount,
    find_account as find_account,
    find_job_account as find_job_account,
    is_job_uid as is_job_uid,
    read_account as read_account,
)
from .writer import Writer as Writer
