"""The scripts of examples/train/converted, and what their conversion changes."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "train" / "converted"
NAMES = sorted(path.stem for path in FOLDER.glob("*.diff"))

_HUNK = re.compile(r"@@ -(\d+)")


def converted(name: str) -> str:
    """Return a script with its diff applied."""
    plain, result = (FOLDER / f"{name}.py").read_text().splitlines(), []
    done = 0
    for line in (FOLDER / f"{name}.diff").read_text().splitlines()[2:]:
        if hunk := _HUNK.match(line):
            result += plain[done : int(hunk[1]) - 1]
            done = int(hunk[1]) - 1
        elif line.startswith("+"):
            result.append(line[1:])
        else:
            assert plain[done] == line[1:], f"{name}.diff does not fit: {line}"
            result += [plain[done]] if line.startswith(" ") else []
            done += 1
    return "\n".join([*result, *plain[done:], ""])


def changed_lines(name: str) -> tuple[int, int]:
    """Return how many lines the conversion writes, and how many it removes, without empty ones."""
    lines = (FOLDER / f"{name}.diff").read_text().splitlines()[2:]
    written, removed = ([line for line in lines if line[0] == sign and line[1:].strip()] for sign in "+-")
    return len(written), len(removed)
