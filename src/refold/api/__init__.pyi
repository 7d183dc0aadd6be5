from .app import Api as Api, Page as Page
from .asgi import (
    BodyLimits as BodyLimits,
    Reply as Reply,
    Scope as Scope,
    accepts_gzip as accepts_gzip,
    header as header,
)
from .authentication import UNIX_CLIENT as UNIX_CLIENT, user_subject as user_subject
from .calls import (
    CALLS as CALLS,
    ENDED_STATES as ENDED_STATES,
    HTTP_STATUS as HTTP_STATUS,
    LINK_CALL as LINK_CALL,
    MAX_BODY_BYTES as MAX_BODY_BYTES,
    MAX_REQUEST_BYTES as MAX_REQUEST_BYTES,
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
    TimelineQuery as TimelineQuery,
)
from .roles import UNIX_PREFIX as UNIX_PREFIX, Caller as Caller
from .session_calls import SESSION_PATH as SESSION_PATH
from .sessions import Session as Session, Sessions as Sessions
from .signatures import (
    IDENTITY_PATH as IDENTITY_PATH,
    MAX_TOKEN_CHARS as MAX_TOKEN_CHARS,
    ServerProof as ServerProof,
    hash_token as hash_token,
    is_proven as is_proven,
    new_nonce as new_nonce,
    sign as sign,
    token_id as token_id,
)
from .tokens import StoredToken as StoredToken, TokenAuthenticator as TokenAuthenticator, make_token as make_token
from .wire import (
    MAX_COMMAND_CHARS as MAX_COMMAND_CHARS,
    MAX_EXPORTED_BYTES as MAX_EXPORTED_BYTES,
    MAX_JOB_GPUS as MAX_JOB_GPUS,
    MAX_JOB_NUMBER as MAX_JOB_NUMBER,
    MAX_NAME_CHARS as MAX_NAME_CHARS,
    MAX_TEXT_CHARS as MAX_TEXT_CHARS,
    MAX_TIME_SECONDS as MAX_TIME_SECONDS,
    Alert as Alert,
    Catalogue as Catalogue,
    CreatedToken as CreatedToken,
    DaemonInfo as DaemonInfo,
    Event as Event,
    GpuStatus as GpuStatus,
    JobEnvironment as JobEnvironment,
    JobExplanation as JobExplanation,
    Jobs as Jobs,
    JobStarts as JobStarts,
    JobState as JobState,
    JobStatus as JobStatus,
    Logs as Logs,
    NewEnvironment as NewEnvironment,
    NewToken as NewToken,
    NodeGpus as NodeGpus,
    NodeStatus as NodeStatus,
    PlanAnswer as PlanAnswer,
    PlanQuestion as PlanQuestion,
    PlanRejection as PlanRejection,
    PlanRow as PlanRow,
    PolicyComparison as PolicyComparison,
    PolicyForecast as PolicyForecast,
    PolicyQuestion as PolicyQuestion,
    Preview as Preview,
    Problem as Problem,
    Role as Role,
    SessionStatus as SessionStatus,
    SignInLink as SignInLink,
    StartAccuracy as StartAccuracy,
    StoredEnvironment as StoredEnvironment,
    Submission as Submission,
    TenantStatus as TenantStatus,
    TimeEstimate as TimeEstimate,
    Timeline as Timeline,
    TimelineRun as TimelineRun,
    TokenStatus as TokenStatus,
    UserStatus as UserStatus,
    VariantOutcome as VariantOutcome,
    WhatIf as WhatIf,
    WhatIfOutcome as WhatIfOutcome,
    is_variable_name as is_variable_name,
)
