"""Slurm's sbatch options: short names, options without a value, and options that are ignored."""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LONG_NAMES = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "I": "immediate",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}

WITHOUT_VALUE = frozenset(
    _names(
        "contiguous hold ignore-pbs kill-on-invalid-dep no-requeue overcommit parsable quiet reboot requeue spread-job "
        "stepmgr test-only use-min-nodes verbose wait oversubscribe"
    )
)
OPTIONAL_VALUE = frozenset(_names("exclusive get-user-env immediate nice no-kill propagate"))
"""Options with an optional value, which follows '='."""

_MAIL = "use `refold submit --notify mailto://…`"
_NODES = "the scheduler chooses the nodes"
_SITE = "the daemon submits all jobs alike: set it in the section `slurm` of refold.yaml"
UNSUPPORTED_OPTIONS = {
    "partition": "select a GPU type with --gres=gpu:TYPE:N; on Slurm, the partition is that of the chosen nodes",
    "qos": "use `refold submit --class best-effort` for jobs that may be preempted; on Slurm, see slurm.qos in "
    "refold.yaml",
    "exclusive": "request all GPUs of the node instead: other jobs may get what is left of its CPUs and memory",
    **dict.fromkeys(("constraint", "prefer", "cluster-constraint", "licenses", "reservation"), _SITE),
    "gpu-bind": "each process sees the GPUs of its instance",
    "open-mode": "the first run replaces the output file, later ones append",
    **dict.fromkeys(("mail-type", "mail-user"), _MAIL),
    **dict.fromkeys(("deadline", "time-min"), "use --time"),
    **dict.fromkeys(
        _names(
            "clusters contiguous exclude immediate nodefile nodelist no-kill oversubscribe segment spread-job switches "
            "tmp use-min-nodes wait-all-nodes"
        ),
        _NODES,
    ),
    **dict.fromkeys(
        _names(
            "acctg-freq batch bb bbf bcast container container-id core-spec cores-per-socket cpu-freq delay-boot "
            "distribution export-file extra extra-node-info gid gpu-freq gpus-per-socket gres-flags hint input "
            "mcs-label mem-bind mincpus network ntasks-per-core ntasks-per-gpu ntasks-per-socket "
            "overcommit power profile propagate reboot resv-ports sockets-per-node stepmgr test-only thread-spec "
            "threads-per-core tres-bind tres-per-task uid wait wckey"
        ),
        "it is not supported",
    ),
}
"""Options that are ignored, and why or what to use instead."""
