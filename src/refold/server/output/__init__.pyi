from .log_files import (
    DEFAULT_MAX_OUTPUT_BYTES as DEFAULT_MAX_OUTPUT_BYTES,
    LogChunk as LogChunk,
    LogRotator as LogRotator,
    append_log as append_log,
    continue_log as continue_log,
    log_size as log_size,
    read_log as read_log,
    read_log_at as read_log_at,
    tail_log as tail_log,
)
from .run_files import (
    LOGS_FOLDER as LOGS_FOLDER,
    UNREADABLE as UNREADABLE,
    RunEnd as RunEnd,
    RunFiles as RunFiles,
    StartRecord as StartRecord,
    log_path as log_path,
    mark_prefix as mark_prefix,
    new_mark as new_mark,
)
from .safe_files import (
    OWNER_ONLY_FOLDER as OWNER_ONLY_FOLDER,
    RETRY_SECONDS as RETRY_SECONDS,
    SHARED_FILE as SHARED_FILE,
    SHORTAGE_ERRNOS as SHORTAGE_ERRNOS,
    ResourceShortage as ResourceShortage,
    open_regular as open_regular,
    raise_if_shortage as raise_if_shortage,
    read_regular as read_regular,
    regular_size as regular_size,
    retry_on_shortage as retry_on_shortage,
    write_atomically as write_atomically,
)
