from .accounts import find_account as find_account, find_job_account as find_job_account
from .backend import (
    SLOT as SLOT,
    LocalBackend as LocalBackend,
    RunLimits as RunLimits,
    local_cluster as local_cluster,
)
from .cgroup_mounts import find_hierarchies as find_hierarchies
from .cgroups import Cgroups as Cgroups, open_cgroups as open_cgroups
from .descriptors import raise_descriptor_limit as raise_descriptor_limit
from .environment import (
    Devices as Devices,
    ExportedOf as ExportedOf,
    RunEnvironment as RunEnvironment,
    SecretsOf as SecretsOf,
    no_exported_environment as no_exported_environment,
    no_secrets as no_secrets,
)
from .helper import start_daemon as start_daemon
from .helper_processes import HelperLost as HelperLost, HelperProcesses as HelperProcesses
from .log_files import (
    LogChunk as LogChunk,
    LogRotator as LogRotator,
    append_log as append_log,
    log_size as log_size,
    read_log as read_log,
    read_log_at as read_log_at,
    tail_log as tail_log,
)
from .machine_locks import GpuLocks as GpuLocks, LockHolder as LockHolder, MachineLocks as MachineLocks
from .nvidia import (
    DetectedGpu as DetectedGpu,
    GpuProblem as GpuProblem,
    GpuReading as GpuReading,
    NvidiaDriver as NvidiaDriver,
    open_driver as open_driver,
)
from .process import Process as Process, identify_process as identify_process, wait_for_exit as wait_for_exit
from .process_host import MARK_VARIABLE as MARK_VARIABLE, OwnProcesses as OwnProcesses, ProcessHost as ProcessHost
from .process_tree import (
    ProcessScanner as ProcessScanner,
    ProcessTree as ProcessTree,
)
from .run_files import (
    RunFiles as RunFiles,
    StartRecord as StartRecord,
    log_path as log_path,
    mark_prefix as mark_prefix,
    new_mark as new_mark,
)
from .safe_files import (
    OWNER_ONLY_FOLDER as OWNER_ONLY_FOLDER,
    SHARED_FILE as SHARED_FILE,
    ResourceShortage as ResourceShortage,
    read_regular as read_regular,
    write_atomically as write_atomically,
)
from .shim import (
    describe_exit as describe_exit,
    linker_variables as linker_variables,
    output_copies as output_copies,
    read_exit_status as read_exit_status,
    shim_command as shim_command,
    without_linker_variables as without_linker_variables,
)
from .start_check import find_start_problem as find_start_problem
from .terminal import hand_out as hand_out, terminal_command as terminal_command
