"""Users' regular expressions for the output of jobs, in RE2 syntax: matching takes time linear in the text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refold.errors import BadValue

MAX_PROGRAM_SIZE = 2000
"""Maximum number of instructions of a compiled pattern: the time per character is proportional to it."""

MAX_LINE_BYTES = 4096
"""Bytes of a line in which `last_match` searches."""

MAX_MATCH_CHARS = 200
"""Characters of a match that are returned."""

SYNTAX = "RE2 syntax (no back-references, no look-around)"
_MULTILINE = b"(?m)"


class Pattern:
    """A compiled regular expression; raises BadValue if it is invalid or too large.

    Matching does not hold the global interpreter lock.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._captures = _compile(pattern, never_capture=False)
        self._finds = _compile(pattern, never_capture=True)  # several times faster than with groups
        if self._finds.programsize > MAX_PROGRAM_SIZE:
            raise BadValue(
                f"the pattern is too large: {self._finds.programsize:,} instructions, at most {MAX_PROGRAM_SIZE:,}"
            )

    @property
    def groups(self) -> int:
        return int(self._captures.groups)

    def matches(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text. `^` and `$` match at line ends."""
        return self._finds.search(_encode(text)) is not None

    def last_match(self, text: str) -> str | None:
        """Return the last match in the last line that matches: its first group, or all of it without groups."""
        for line in reversed(_encode(text).split(b"\n")):
            begins = [match.start() for match in self._finds.finditer(line[:MAX_LINE_BYTES])]
            if begins:
                match = self._captures.match(line[:MAX_LINE_BYTES], begins[-1])
                found: bytes = match[1 if self.groups else 0] or b""
                return found.decode(errors="replace")[:MAX_MATCH_CHARS]
        return None


def check_patterns(patterns: Iterable[tuple[str, str]]) -> None:
    """Raise BadValue if a pattern, given with its field, is invalid, or has no group though it is for `progress`."""
    for field, pattern in patterns:
        try:
            groups = Pattern(pattern).groups
        except BadValue as error:
            raise BadValue(f"{field} is {pattern!r}, expected a regular expression: {error}") from None
        if field == "progress" and not groups:
            raise BadValue(f"progress is {pattern!r}, expected a pattern with a group such as 'step (\\d+)'")


def _compile(pattern: str, never_capture: bool) -> Any:
    import re2  # few jobs have patterns

    options = re2.Options()
    options.log_errors = False
    options.never_capture = never_capture
    try:
        return re2.compile(_MULTILINE + pattern.encode(errors="surrogatepass"), options)
    except re2.error as error:
        problem = error.args[0].replace(_MULTILINE, b"").decode(errors="replace")[:MAX_MATCH_CHARS]
        raise BadValue(f"{problem}; patterns have {SYNTAX}") from None


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")
