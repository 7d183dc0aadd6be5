"""Batch scripts: what their `#SBATCH` lines ask for, and the script itself as the command."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import msgspec

from refold.api import LONGEST_COMMAND, LONGEST_NAME, Submission
from refold.documents import Part
from refold.jobspec.arrays import array_variables
from refold.jobspec.builder import SpecBuilder, SpecSource, name_from
from refold.jobspec.quantities import SLURM_TIME, slurm_seconds
from refold.jobspec.refold_yaml import signal_at
from refold.jobspec.sbatch_directives import Head, read_head
from refold.jobspec.sbatch_tasks import SIZES, put_tasks
from refold.jobspec.slurm_options import LEFT_OUT

Reader = Callable[[SpecBuilder, Part], None]

SHELLS = frozenset(("sh", "bash", "dash", "ksh", "zsh"))
_PYTHON = re.compile(r"python[\d.]*")
_CALLS_SRUN = re.compile(r"(?:^|[;&|(`\n]|\b(?:then|do|else|time)[ \t])[ \t]*srun[ \t]")
_SIGNAL = re.compile(r"(?:[RB]+:)?(?P<name>\w{1,9})(?:@(?P<seconds>\d{1,7}))?", re.ASCII)
_SIGNALS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
_DEPENDENCY = re.compile(r"afterok((?::[\w.-]+)+)")

SRUN = (
    'srun() { while :; do case "${1-}" in --) shift; break ;; --*=*|-[A-Za-z]?*) shift ;; '
    "--label|--unbuffered|--exclusive|--overlap|--exact|--pty|--verbose|--quiet|--no-kill|--kill-on-bad-exit"
    '|--overcommit|-[lukKOQvEsHXZ]) shift ;; -*) shift 2 ;; *) break ;; esac; done; "$@"; }; '
)
"""A script that runs once for each task has no tasks to start: `srun` drops its options and runs the command.

It stands before the first line of the script, so that line numbers stay as they are.
"""


def read_script(text: str, source: SpecSource) -> tuple[list[Submission], list[str]]:
    """The job that a script asks for, or those of its array; and what of it is not honoured."""
    text = text.replace("\r\n", "\n")
    root = Part(source.where, 1, None)
    if len(text) > LONGEST_COMMAND:
        raise root.refused(f"the script has {len(text):,} characters, expected at most {LONGEST_COMMAND:,}")
    draft = SpecBuilder(source, root)
    head = read_head(text, root, frozenset((*READERS, *SIZES, *LEFT_OUT)))
    for name, part in head.options.items():
        if reader := READERS.get(name):
            reader(draft, part)
        elif name in LEFT_OUT:
            draft.note(part, f"--{name} is not honoured: {LEFT_OUT[name]}")
    if head.too_late:
        late = Part(source.where, head.too_late, None)
        draft.note(late, "#SBATCH after the first command is not read, as in Slurm")
    program = _interpreter(text, root)
    tasks = program[0] in SHELLS and bool(_CALLS_SRUN.search(text))
    name = draft.fields.setdefault("name", name_from(source.name))
    draft.put("command", [*program, "-c", SRUN + text if tasks else text, name], root)
    put_tasks(draft, head.options, tasks)
    _put_variables(draft, head)
    return _each_of_array(draft, head.options.get("array")), draft.notes


def _interpreter(text: str, root: Part) -> list[str]:
    """Who runs the script, by its first line; `sh` where it names nobody."""
    first = text.partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else ["sh"]
    if words and PurePosixPath(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    program = PurePosixPath(words[0]).name if words else ""
    if program not in SHELLS and not _PYTHON.fullmatch(program):
        raise root.refused(f"the script is for {program[:40]!r}, expected a first line such as #!/bin/bash")
    return [program, *words[1:]]


def _put_variables(draft: SpecBuilder, head: Head) -> None:
    """What Slurm would tell the script and is known already."""
    variables = {"SLURM_JOB_NAME": draft.fields["name"]}
    for option, variable in _VARIABLES.items():
        if option in head.options:
            variables[variable] = head.options[option].written
    if draft.source.folder:
        variables["SLURM_SUBMIT_DIR"] = draft.source.folder
    draft.add_variables(variables, draft.root)


_VARIABLES = {
    "account": "SLURM_JOB_ACCOUNT",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
}


def _each_of_array(draft: SpecBuilder, array: Part | None) -> list[Submission]:
    one = draft.submission()
    if array is None:
        return [one]
    variables, limit = array_variables(array, one.name)
    if limit:
        draft.note(array, f"%{limit} of --array is not honoured: as many tasks run at once as there is room for")
    return [msgspec.structs.replace(one, environment=one.environment | each) for each in variables]


# Readers of one option each.


def _name(draft: SpecBuilder, part: Part) -> None:
    said = part.text("a name", 1024)
    draft.put("name", name_from(said), part)
    if name_from(said) != said:
        draft.note(part, f"the job is called {name_from(said)!r}: letters, digits, '.', '_' and '-' only")


def _time(draft: SpecBuilder, part: Part) -> None:
    try:
        draft.put("time_limit", slurm_seconds(part.written), part)
    except ValueError:
        raise part.wrong(SLURM_TIME) from None


def _tenant(draft: SpecBuilder, part: Part) -> None:
    draft.put("tenant", part.text("an account", LONGEST_NAME), part)


def _folder(draft: SpecBuilder, part: Part) -> None:
    draft.put("folder", draft.source.folder_at(part), part)


def _signal(draft: SpecBuilder, part: Part) -> None:
    found = _SIGNAL.fullmatch(part.written)
    if found is None:
        raise part.wrong("a signal such as USR1@60")
    draft.put("stop_signal", signal_at(part, _SIGNALS.get(found["name"], found["name"])), part)
    draft.put("grace", float(found["seconds"] or 60), part)


def _dependency(draft: SpecBuilder, part: Part) -> None:
    after: list[str] = []
    for one in part.written.split(","):
        found = _DEPENDENCY.fullmatch(one)
        if found is None:
            raise part.wrong(
                "afterok:JOB or afterok:JOB:JOB: a job can wait for others to finish, and for nothing else"
            )
        after += found[1][1:].split(":")
    draft.put("after", after, part)


def _priority(draft: SpecBuilder, part: Part, sign: int, usual: int) -> None:
    value = usual if part.value is None else part.whole("a whole number", -(2**31), 2**31)
    draft.put("priority", sign * value, part)


def _export(draft: SpecBuilder, part: Part) -> None:
    variables: dict[str, str] = {}
    for word in part.text("variables", 2**16).split(","):
        name, given, value = word.partition("=")
        if given:
            variables[name] = value
        elif name not in ("ALL", "NONE", "NIL"):
            draft.note(part, f"--export does not carry {name[:64]!r} over: write {name[:64]}=value")
    draft.add_variables(variables, part)


def _put(draft: SpecBuilder, part: Part, field: str, value: Any) -> None:
    draft.put(field, value, part)


def _quietly(draft: SpecBuilder, part: Part) -> None:
    """Nothing follows from it, in Slurm neither."""


READERS: dict[str, Reader] = {
    "job-name": _name,
    "time": _time,
    "account": _tenant,
    "chdir": _folder,
    "requeue": partial(_put, field="retries", value=1),
    "no-requeue": partial(_put, field="preemptible", value=False),
    "dependency": _dependency,
    "signal": _signal,
    "hold": partial(_put, field="hold", value=True),
    "nice": partial(_priority, sign=-1, usual=100),
    "priority": partial(_priority, sign=1, usual=0),
    "export": _export,
    **dict.fromkeys(("array", "comment", "parsable", "quiet", "verbose", "ignore-pbs"), _quietly),
}
