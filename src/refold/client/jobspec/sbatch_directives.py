"""Parser of the `#SBATCH` lines of a script: options and their values, with line numbers."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from refold.errors import BadLine, BadRow, UnknownName
from refold.model.documents import Part, shorten

PREFIX = "#SBATCH"
MAX_LINE_CHARS = 8192

_WORD = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""")
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Directives:
    """The options before the first command, and the line of the first `#SBATCH` after it (0: none)."""

    options: dict[str, Part]
    late_line: int


def read_directives(text: str, root: Part, known: frozenset[str]) -> Directives:
    """Read the options by their long names. If an option is repeated, the last one counts, as in Slurm."""
    options: dict[str, Part] = {}
    late_line = 0
    in_commands = False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(PREFIX) and line[len(PREFIX) :][:1].strip() == "":
            if in_commands:
                late_line = late_line or number
            else:
                options |= _parse_line(line[len(PREFIX) :], number, root, known)
        in_commands = in_commands or (bool(line.strip()) and not line.lstrip().startswith("#"))
    return Directives(options, late_line)


def _parse_line(line: str, number: int, root: Part, known: frozenset[str]) -> dict[str, Part]:
    options: dict[str, Part] = {}
    words = _split_words(line, number, root)
    while words:
        name, value = _take_option(words, number, root, known)
        parsed = int(value) if value is not None and _INTEGER.fullmatch(value) else value
        options[name] = Part(root.where, number, parsed, value or "", root, f"--{name}")
    return options


def _split_words(line: str, number: int, root: Part) -> list[str]:
    """Split a line into words as a shell does, up to a comment."""
    if len(line) > MAX_LINE_CHARS:
        raise BadLine(root.where, number, f"{PREFIX} has {len(line):,} characters, expected at most {MAX_LINE_CHARS:,}")
    words: list[str] = []
    position = 0
    while match := _WORD.match(line, position):
        if match[1].startswith("#"):
            return words
        words += shlex.split(match[1])
        position = match.end()
    if line[position:].strip():
        raise BadLine(root.where, number, f"{PREFIX} has {shorten(line.strip())!r}, expected a closing quote")
    return words


def _take_option(words: list[str], number: int, root: Part, known: frozenset[str]) -> tuple[str, str | None]:
    word = words.pop(0)
    if word.startswith("--"):
        name, joined, value = word[2:].partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = LONG_NAMES.get(word[1], word[:2]), word[2:].removeprefix("=")
        joined = value
    else:
        raise BadRow(root.where, number, PREFIX, shorten(word), "an option, such as --time=1:00:00")
    if name not in known:
        options = [f"--{option}" for option in known]
        unknown = shorten(f"--{name}" if word.startswith("--") else word)
        raise BadLine(root.where, number, str(UnknownName("option", unknown, options, listed_by="man sbatch")))
    if joined or name in WITHOUT_VALUE or name in OPTIONAL_VALUE:
        return name, value if joined else None
    if not words:
        raise BadLine(root.where, number, f"--{name} has no value, expected --{name}=…")
    return name, words.pop(0)


# Slurm's sbatch options: short names, options without a value, and options that are ignored.


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
            "clusters contiguous exclude immediate nodefile nodelist no-kill oversubscribe spread-job "
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
