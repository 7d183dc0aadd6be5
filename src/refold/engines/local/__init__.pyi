from .backend import LocalBackend as LocalBackend, local_cluster as local_cluster
from .engine import (
    PRIVILEGED_STATE as PRIVILEGED_STATE,
    describe_user as describe_user,
    serve_machine as serve_machine,
    split_privileges as split_privileges,
)
from .environment import (
    Devices as Devices,
    RunEnvironment as RunEnvironment,
    no_exported_environment as no_exported_environment,
    no_secrets as no_secrets,
)
from .helper_processes import HelperLost as HelperLost
from .live_change import has_agent as has_agent
from .process import Process as Process, identify_process as identify_process, wait_for_exit as wait_for_exit
from .process_host import (
    MARK_VARIABLE as MARK_VARIABLE,
    OwnProcesses as OwnProcesses,
    ProcessHost as ProcessHost,
    find_start_problem as find_start_problem,
)
from .process_tree import ProcessScanner as ProcessScanner, ProcessTree as ProcessTree
from .shim import (
    describe_exit as describe_exit,
    linker_variables as linker_variables,
    output_copies as output_copies,
    read_exit_status as read_exit_status,
    shim_command as shim_command,
    without_linker_variables as without_linker_variables,
)
from .terminal import hand_out as hand_out, terminal_command as terminal_command
