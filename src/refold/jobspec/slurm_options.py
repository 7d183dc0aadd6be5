"""The options of Slurm: their short names, which have values, and which change nothing here."""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SHORT = {
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
VALUE_IF_JOINED = frozenset(_names("exclusive get-user-env immediate nice no-kill propagate"))
"""Options whose value, if they have one, comes after '='."""

_OUTPUT = "`refold logs JOB` shows what a job prints"
_MAIL = "say whom to tell with `refold submit --notify mailto://…`"
_PLACE = "the scheduler chooses among the nodes that fit"
_LATER = "say --hold, and release the job when it is time"
LEFT_OUT = {
    "partition": "there are no partitions; name a kind of GPU with --gres=gpu:KIND:N",
    "qos": "`refold submit --class best-effort` is the class that may be stopped for others",
    **dict.fromkeys(("output", "error", "input", "open-mode"), _OUTPUT),
    **dict.fromkeys(("mail-type", "mail-user"), _MAIL),
    **dict.fromkeys(("begin", "deadline", "time-min"), _LATER),
    **dict.fromkeys(
        _names(
            "cluster-constraint clusters constraint contiguous exclude exclusive immediate licenses nodefile nodelist "
            "no-kill oversubscribe prefer reservation segment spread-job switches tmp use-min-nodes wait-all-nodes"
        ),
        _PLACE,
    ),
    **dict.fromkeys(
        _names(
            "acctg-freq batch bb bbf bcast container container-id core-spec cores-per-socket cpu-freq delay-boot "
            "distribution export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gres-flags hint "
            "kill-on-invalid-dep mcs-label mem-bind mincpus network ntasks-per-core ntasks-per-gpu ntasks-per-socket "
            "overcommit power profile propagate reboot resv-ports sockets-per-node stepmgr test-only thread-spec "
            "threads-per-core tres-bind tres-per-task uid wait wckey"
        ),
        "there is nothing like it here",
    ),
}
"""Options of Slurm that change nothing here, and why."""
