"""The `#SBATCH` lines of a script, as options and their values, each with its line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from refold.documents import BadLine, Part, short
from refold.errors import BadRow, UnknownName
from refold.jobspec.slurm_options import SHORT, VALUE_IF_JOINED, WITHOUT_VALUE

MARK = "#SBATCH"
LONGEST_LINE = 8192

_WORD = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""")
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Head:
    """What a script says before its first command; and the first line that says something too late (0: none does)."""

    options: dict[str, Part]
    too_late: int


def read_head(text: str, root: Part, known: frozenset[str]) -> Head:
    """Options by their long names, the last where one is there twice, as in Slurm."""
    options: dict[str, Part] = {}
    too_late = 0
    commands_began = False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(MARK) and line[len(MARK) :][:1].strip() == "":
            if commands_began:
                too_late = too_late or number
            else:
                options |= _options(line[len(MARK) :], number, root, known)
        commands_began = commands_began or (bool(line.strip()) and not line.lstrip().startswith("#"))
    return Head(options, too_late)


def _options(line: str, number: int, root: Part, known: frozenset[str]) -> dict[str, Part]:
    options: dict[str, Part] = {}
    words = _words(line, number, root)
    while words:
        name, value = _option(words, number, root, known)
        meant = int(value) if value is not None and _WHOLE.fullmatch(value) else value
        options[name] = Part(root.where, number, meant, value or "", root, f"--{name}")
    return options


def _words(line: str, number: int, root: Part) -> list[str]:
    """Words as a shell has them, up to a comment."""
    if len(line) > LONGEST_LINE:
        raise BadLine(root.where, number, f"{MARK} has {len(line):,} characters, expected at most {LONGEST_LINE:,}")
    words: list[str] = []
    position = 0
    while found := _WORD.match(line, position):
        if found[1].startswith("#"):
            return words
        words += shlex.split(found[1])
        position = found.end()
    if line[position:].strip():
        raise BadLine(root.where, number, f"{MARK} has {short(line.strip())!r}, expected the quote to be closed")
    return words


def _option(words: list[str], number: int, root: Part, known: frozenset[str]) -> tuple[str, str | None]:
    """The next option and its value, taken from the words."""
    word = words.pop(0)
    if word.startswith("--"):
        name, joined, value = word[2:].partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = SHORT.get(word[1], word[:2]), word[2:].removeprefix("=")
        joined = value
    else:
        raise BadRow(root.where, number, MARK, short(word), "an option, such as --time=1:00:00")
    if name not in known:
        options = [f"--{one}" for one in known]
        unknown = short(f"--{name}" if word.startswith("--") else word)
        raise BadLine(root.where, number, str(UnknownName("option", unknown, options, listed_by="man sbatch")))
    if joined or name in WITHOUT_VALUE or name in VALUE_IF_JOINED:
        return name, value if joined else None
    if not words:
        raise BadLine(root.where, number, f"--{name} has no value, expected --{name}=…")
    return name, words.pop(0)
