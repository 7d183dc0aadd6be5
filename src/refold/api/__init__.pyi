from .app import Api as Api
from .calls import (
    CALLS as CALLS,
    LARGEST_BODY as LARGEST_BODY,
    OVER as OVER,
    STATUSES as STATUSES,
    V1 as V1,
    Call as Call,
)
from .event_stream import MOST_EVENTS as MOST_EVENTS, EventStream as EventStream
from .field_errors import bad_field as bad_field
from .hosts import ANYWHERE as ANYWHERE, AllowedHosts as AllowedHosts
from .queries import LARGEST_LOGS as LARGEST_LOGS, MOST_JOBS as MOST_JOBS
from .roles import Caller as Caller
from .tokens import StoredToken as StoredToken, TokenAuthenticator as TokenAuthenticator, make_token as make_token
from .wire import (
    LARGEST_ID as LARGEST_ID,
    LONGEST_COMMAND as LONGEST_COMMAND,
    LONGEST_NAME as LONGEST_NAME,
    LONGEST_TEXT as LONGEST_TEXT,
    LONGEST_TIME as LONGEST_TIME,
    MOST_GPUS as MOST_GPUS,
    DaemonInfo as DaemonInfo,
    Event as Event,
    GpuStatus as GpuStatus,
    Interval as Interval,
    Jobs as Jobs,
    JobState as JobState,
    JobStatus as JobStatus,
    Logs as Logs,
    MadeToken as MadeToken,
    NewToken as NewToken,
    NodeStatus as NodeStatus,
    Place as Place,
    Preview as Preview,
    Problem as Problem,
    Role as Role,
    Submission as Submission,
    TenantStatus as TenantStatus,
    TokenStatus as TokenStatus,
    Why as Why,
)
