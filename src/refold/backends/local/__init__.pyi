from .backend import SLOT as SLOT, LocalBackend as LocalBackend, local_cluster as local_cluster
from .log_files import (
    LogChunk as LogChunk,
    append_log as append_log,
    log_size as log_size,
    read_log as read_log,
    read_log_at as read_log_at,
    tail_log as tail_log,
)
from .nvidia import (
    DetectedGpu as DetectedGpu,
    GpuProblem as GpuProblem,
    GpuReading as GpuReading,
    NvidiaDriver as NvidiaDriver,
    open_driver as open_driver,
)
from .run_files import RunFiles as RunFiles, log_path as log_path
from .safe_files import (
    ResourceShortage as ResourceShortage,
    read_regular as read_regular,
    write_atomically as write_atomically,
)
from .terminal import hand_out as hand_out, terminal_command as terminal_command
