"""The output of somebody's program on a terminal: its colours, and nothing else that a terminal would obey."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"""
    (?P<colours>\x1b\[[0-9;:]{0,64}m)
    | \x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]                # moves the cursor, empties the screen, asks the terminal
    | \x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)  # titles, clipboards, links, what else has an end of its own
    | \x1b[ -/]*[0-~]?
    | [\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]
    """,
    re.VERBOSE,
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?)?\Z")
_PLAIN = "\x1b[0m"


class Sanitizer:
    """Makes output harmless, piece by piece: what is begun in one piece and ends in the next is one thing."""

    def __init__(self) -> None:
        self._begun = ""
        self._coloured = False

    def of(self, text: str) -> str:
        """The next piece."""
        text = self._begun + text
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        whole = text[: len(text) - len(self._begun)]
        return _SEQUENCE.sub(self._kept, whole)

    def _kept(self, found: re.Match[str]) -> str:
        self._coloured = self._coloured or found["colours"] is not None
        return found["colours"] or ""

    @property
    def end(self) -> str:
        """What takes back the colours that are left."""
        return _PLAIN if self._coloured else ""
