from .backend import SLOT as SLOT, LocalBackend as LocalBackend, local_cluster as local_cluster
from .environment import (
    Devices as Devices,
    ExportedOf as ExportedOf,
    RunEnvironment as RunEnvironment,
    SecretsOf as SecretsOf,
    no_exported_environment as no_exported_environment,
    no_secrets as no_secrets,
)
from .log_files import (
    LogChunk as LogChunk,
    LogRotator as LogRotator,
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
from .process import Process as Process, identify_process as identify_process, wait_for_exit as wait_for_exit
from .process_tree import (
    MARK_VARIABLE as MARK_VARIABLE,
    ProcessScanner as ProcessScanner,
    ProcessTree as ProcessTree,
)
from .run_files import (
    RunFiles as RunFiles,
    StartRecord as StartRecord,
    log_path as log_path,
    new_mark as new_mark,
)
from .safe_files import (
    OWNER_ONLY_FOLDER as OWNER_ONLY_FOLDER,
    ResourceShortage as ResourceShortage,
    read_regular as read_regular,
    write_atomically as write_atomically,
)
from .shim import (
    describe_exit as describe_exit,
    find_start_problem as find_start_problem,
    output_copies as output_copies,
    read_exit_status as read_exit_status,
    shim_command as shim_command,
)
from .terminal import hand_out as hand_out, terminal_command as terminal_command
