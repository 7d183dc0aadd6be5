"""The process that evaluates regular expressions. It does nothing else and may be killed at any time.

It reads requests as lines of JSON, [text, [pattern, …]], and answers each pattern with a line: null if there is no
match, else the last match (its first group, or all of it if the pattern has no groups). With null as the text, it
answers each pattern with [number of groups, syntax error].
"""

import json
import re
import resource
import sys
from collections import deque

MAX_MEMORY_BYTES = 512 * 2**20
"""Address space limit: a malicious pattern can use any amount of memory."""

MAX_ANSWER_CHARS = 200


def find_last_match(pattern: str, text: str) -> str | None:
    """Return the last match: its first group, or all of it without groups. `^` and `$` match at line ends."""
    matches = deque(re.finditer(pattern, text, re.MULTILINE), maxlen=1)
    if not matches:
        return None
    match = matches[0]
    return (match[1] or "" if match.re.groups else match[0])[:MAX_ANSWER_CHARS]


def compile_pattern(pattern: str) -> tuple[int, str]:
    """Return the number of groups of a pattern, and its syntax error ("" if valid)."""
    try:
        return re.compile(pattern, re.MULTILINE).groups, ""
    except (re.error, OverflowError, RecursionError) as error:
        return 0, str(error)[:MAX_ANSWER_CHARS]


def _answer(pattern: str, text: str | None) -> object:
    if text is None:
        return compile_pattern(pattern)
    try:
        return find_last_match(pattern, text)
    except (re.error, OverflowError, RecursionError):
        return None


def main() -> None:
    """Answer requests until standard input is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for line in sys.stdin.buffer:
        text, patterns = json.loads(line)
        for pattern in patterns:
            sys.stdout.write(json.dumps(_answer(pattern, text)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
