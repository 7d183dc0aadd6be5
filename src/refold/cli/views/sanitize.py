"""Make the output of a job safe for a terminal: colours are passed through, other control sequences removed."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"""
    (?P<colours>\x1b\[[0-9;:]{0,64}m)
    | \x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]                # CSI: cursor movement, screen erasure, terminal queries
    | \x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)  # OSC and similar: titles, clipboard, links
    | \x1b[ -/]*[0-~]?
    | [\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]
    """,
    re.VERBOSE,
)
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?)?\Z")
_RESET = "\x1b[0m"


class Sanitizer:
    """Sanitises output chunk by chunk; a control sequence may begin in one chunk and end in the next."""

    def __init__(self) -> None:
        self._incomplete = ""
        self._coloured = False

    def clean(self, text: str) -> str:
        """Return the next chunk without control sequences other than colours."""
        text = self._incomplete + text
        incomplete = _INCOMPLETE.search(text)
        self._incomplete = incomplete[0] if incomplete else ""
        complete = text[: len(text) - len(self._incomplete)]
        return _SEQUENCE.sub(self._keep_colours, complete)

    def _keep_colours(self, match: re.Match[str]) -> str:
        self._coloured = self._coloured or match["colours"] is not None
        return match["colours"] or ""

    @property
    def end(self) -> str:
        """The sequence that resets colours; empty if none were written."""
        return _RESET if self._coloured else ""
