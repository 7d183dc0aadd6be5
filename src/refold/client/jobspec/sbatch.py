"""Batch scripts: `#SBATCH` directives as submission fields, the script itself as the command."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from refold.client.api import MAX_COMMAND_CHARS, MAX_NAME_CHARS, MAX_TEXT_CHARS
from refold.client.jobspec.builder import ReadJob, SpecBuilder, SpecSource, make_job_name
from refold.client.jobspec.job_fields import STOP_SIGNALS, read_array, read_begin, read_dependencies
from refold.client.jobspec.quantities import EXPECTED_SLURM_TIME, parse_slurm_seconds
from refold.client.jobspec.sbatch_directives import UNSUPPORTED_OPTIONS, Directives, read_directives
from refold.client.jobspec.sbatch_tasks import SIZE_OPTIONS, put_tasks
from refold.model.documents import Part

Reader = Callable[[SpecBuilder, Part], None]

SHELLS = frozenset(("sh", "bash", "dash", "ksh", "zsh"))
_PYTHON = re.compile(r"python[\d.]*")
_CALLS_SRUN = re.compile(r"(?:^|[;&|(`\n]|\b(?:then|do|else|time)[ \t])[ \t]*srun[ \t]")
_SIGNAL = re.compile(r"(?:[RB]+:)?(?P<name>\w{1,9})(?:@(?P<seconds>\d{1,7}))?", re.ASCII)
_SIGNALS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}

SRUN_FUNCTION = (
    'srun() { while :; do case "${1-}" in --) shift; break ;; --*=*|-[A-Za-z]?*) shift ;; '
    "--label|--unbuffered|--exclusive|--overlap|--exact|--pty|--verbose|--quiet|--no-kill|--kill-on-bad-exit"
    '|--overcommit|-[lukKOQvEsHXZ]) shift ;; -*) shift 2 ;; *) break ;; esac; done; "$@"; }; '
)
"""Shell function that replaces `srun` in a script that runs once per task: it drops its options and runs the command.

It is prepended to the first line of the script, so that line numbers do not change.
"""


def read_script(text: str, source: SpecSource) -> ReadJob:
    text = text.replace("\r\n", "\n")
    root = Part(source.where, 1, None)
    if len(text) > MAX_COMMAND_CHARS:
        raise root.error(f"the script has {len(text):,} characters, expected at most {MAX_COMMAND_CHARS:,}")
    builder = SpecBuilder(source, root)
    directives = read_directives(text, root, frozenset((*READERS, *SIZE_OPTIONS, *UNSUPPORTED_OPTIONS)))
    for name, part in directives.options.items():
        if reader := READERS.get(name):
            reader(builder, part)
        elif name in UNSUPPORTED_OPTIONS:
            builder.note(part, f"--{name} is ignored: {UNSUPPORTED_OPTIONS[name]}")
    if directives.late_line:
        late = Part(source.where, directives.late_line, None)
        builder.note(late, "#SBATCH after the first command is ignored, as in Slurm")
    program = _interpreter(text, root)
    calls_srun = program[0] in SHELLS and bool(_CALLS_SRUN.search(text))
    name = builder.fields.setdefault("name", make_job_name(source.name))
    builder.put("command", [*program, "-c", SRUN_FUNCTION + text if calls_srun else text, name], root)
    put_tasks(builder, directives.options, calls_srun)
    _put_variables(builder, directives)
    return ReadJob(builder.submission(), builder.notes, builder.export)


def _interpreter(text: str, root: Part) -> list[str]:
    """Return the interpreter of the shebang line with its arguments; `sh` without one."""
    first = text.partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else ["sh"]
    if words and PurePosixPath(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    program = PurePosixPath(words[0]).name if words else ""
    if program not in SHELLS and not _PYTHON.fullmatch(program):
        raise root.error(
            f"the interpreter {program[:40]!r} is not supported, expected a first line such as #!/bin/bash"
        )
    return [program, *words[1:]]


def _put_variables(builder: SpecBuilder, directives: Directives) -> None:
    """Set the SLURM_* variables that are known at submission."""
    variables = {"SLURM_JOB_NAME": builder.fields["name"]}
    for option, variable in _VARIABLE_OF_OPTION.items():
        if option in directives.options:
            variables[variable] = directives.options[option].written
    if builder.source.folder:
        variables["SLURM_SUBMIT_DIR"] = builder.source.folder
    builder.add_variables(variables, builder.root)


_VARIABLE_OF_OPTION = {
    "account": "SLURM_JOB_ACCOUNT",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
}


# Readers, one per option.


def _name(builder: SpecBuilder, part: Part) -> None:
    requested = part.text("a name", 1024)
    name = make_job_name(requested)
    builder.put("name", name, part)
    if name != requested:
        builder.note(part, f"the job is renamed to {name!r}: names may contain only letters, digits, '.', '_' and '-'")


def _time(builder: SpecBuilder, part: Part) -> None:
    try:
        builder.put("time_limit", parse_slurm_seconds(part.written), part)
    except ValueError:
        raise part.unexpected(EXPECTED_SLURM_TIME) from None


def _tenant(builder: SpecBuilder, part: Part) -> None:
    builder.put("tenant", part.text("an account", MAX_NAME_CHARS), part)


def _folder(builder: SpecBuilder, part: Part) -> None:
    builder.put("folder", builder.source.folder_at(part), part)


def _signal(builder: SpecBuilder, part: Part) -> None:
    match = _SIGNAL.fullmatch(part.written)
    name = match["name"].upper().removeprefix("SIG") if match else ""
    signal = _SIGNALS.get(name, name)
    if match is None or signal not in STOP_SIGNALS:
        raise part.unexpected(f"a signal such as USR1@60, one of {', '.join(STOP_SIGNALS)}")
    builder.put("stop_signal", signal, part)
    builder.put("grace", float(match["seconds"] or 60), part)


def _dependency(builder: SpecBuilder, part: Part) -> None:
    builder.put("after", read_dependencies(part), part)


def _begin(builder: SpecBuilder, part: Part) -> None:
    builder.put("begin", builder.source.now + read_begin(part), part)


def _text(builder: SpecBuilder, part: Part, field: str) -> None:
    builder.put(field, part.text(maximum=MAX_TEXT_CHARS), part)


def _array(builder: SpecBuilder, part: Part) -> None:
    builder.put("array", read_array(part), part)


def _priority(builder: SpecBuilder, part: Part, sign: int, default: int) -> None:
    value = default if part.value is None else part.integer("a whole number", -(2**31), 2**31)
    builder.put("priority", sign * value, part)


def _export(builder: SpecBuilder, part: Part) -> None:
    """Set variables that are given with a value; the others are chosen from the submitter's environment later."""
    words = part.text("variables", 2**16).split(",")
    given = [word.partition("=") for word in words if "=" in word]
    builder.add_variables({name: value for name, _, value in given}, part)
    builder.export = "NONE" if words == ["NIL"] else part.written


def _invalid_dependency(builder: SpecBuilder, part: Part) -> None:
    """Do nothing for `yes`: a job whose dependency has failed is ended, always."""
    if part.written not in ("", "yes"):
        builder.note(part, "--kill-on-invalid-dep=no is ignored: a job whose dependency has failed is ended")


def _user_environment(builder: SpecBuilder, part: Part) -> None:
    builder.note(part, "--get-user-env is ignored: the job has the environment of the submitting shell (--export)")


def _requeue(builder: SpecBuilder, part: Part) -> None:
    builder.put("retries", 1, part)
    builder.put("preemptible", True, part)


def _put(builder: SpecBuilder, part: Part, field: str, value: Any) -> None:
    builder.put(field, value, part)


def _no_effect(builder: SpecBuilder, part: Part) -> None:
    """Ignore an option that needs no note: it is read elsewhere or does not affect the job."""


READERS: dict[str, Reader] = {
    "job-name": _name,
    "time": _time,
    "account": _tenant,
    "chdir": _folder,
    "requeue": _requeue,
    "no-requeue": partial(_put, field="preemptible", value=False),
    "dependency": _dependency,
    "signal": _signal,
    "hold": partial(_put, field="hold", value=True),
    "nice": partial(_priority, sign=-1, default=100),
    "priority": partial(_priority, sign=1, default=0),
    "export": _export,
    "array": _array,
    "output": partial(_text, field="output"),
    "error": partial(_text, field="error"),
    "begin": _begin,
    "kill-on-invalid-dep": _invalid_dependency,
    "get-user-env": _user_environment,
    **dict.fromkeys(("comment", "parsable", "quiet", "verbose", "ignore-pbs"), _no_effect),
}
