from .app import Api as Api
from .calls import (
    CALLS as CALLS,
    ENDED_STATES as ENDED_STATES,
    HTTP_STATUS as HTTP_STATUS,
    MAX_BODY_BYTES as MAX_BODY_BYTES,
    V1 as V1,
    Call as Call,
)
from .event_stream import MAX_BUFFERED_EVENTS as MAX_BUFFERED_EVENTS, EventStream as EventStream
from .field_errors import field_error as field_error
from .hosts import LOOPBACK_OF_WILDCARD as LOOPBACK_OF_WILDCARD, AllowedHosts as AllowedHosts
from .queries import (
    MAX_LOG_BYTES as MAX_LOG_BYTES,
    MAX_PAGE_JOBS as MAX_PAGE_JOBS,
    CancelQuery as CancelQuery,
    DrainQuery as DrainQuery,
    GpuQuery as GpuQuery,
    JobsQuery as JobsQuery,
    LogsQuery as LogsQuery,
    SnapshotQuery as SnapshotQuery,
)
from .roles import Caller as Caller
from .tokens import StoredToken as StoredToken, TokenAuthenticator as TokenAuthenticator, make_token as make_token
from .wire import (
    MAX_COMMAND_CHARS as MAX_COMMAND_CHARS,
    MAX_EXPORTED_BYTES as MAX_EXPORTED_BYTES,
    MAX_JOB_GPUS as MAX_JOB_GPUS,
    MAX_JOB_NUMBER as MAX_JOB_NUMBER,
    MAX_NAME_CHARS as MAX_NAME_CHARS,
    MAX_TEXT_CHARS as MAX_TEXT_CHARS,
    MAX_TIME_SECONDS as MAX_TIME_SECONDS,
    CreatedToken as CreatedToken,
    DaemonInfo as DaemonInfo,
    Event as Event,
    GpuStatus as GpuStatus,
    JobEnvironment as JobEnvironment,
    JobExplanation as JobExplanation,
    Jobs as Jobs,
    JobState as JobState,
    JobStatus as JobStatus,
    Logs as Logs,
    NewEnvironment as NewEnvironment,
    NewToken as NewToken,
    NodeGpus as NodeGpus,
    NodeStatus as NodeStatus,
    Preview as Preview,
    Problem as Problem,
    Role as Role,
    StartAccuracy as StartAccuracy,
    StoredEnvironment as StoredEnvironment,
    Submission as Submission,
    TenantStatus as TenantStatus,
    TimeEstimate as TimeEstimate,
    TokenStatus as TokenStatus,
    UserStatus as UserStatus,
    VariantOutcome as VariantOutcome,
    WhatIf as WhatIf,
    WhatIfOutcome as WhatIfOutcome,
    is_variable_name as is_variable_name,
)
