"""The process that looks for regular expressions. It knows nothing else, and may be killed at any time.

It reads requests line by line as JSON, [text, [pattern, …]], and answers each pattern in a line of its own: null where
it was not found, else what its first group has at the last place where it was found (all of it, without a group).
Without a text, null, it tells of each pattern how many groups it has and what is wrong with it.
"""

import json
import re
import resource
import sys
from collections import deque

MOST_MEMORY = 512 * 2**20
"""Bytes. A pattern can be made to need any amount."""

LONGEST_ANSWER = 200


def last_found(pattern: str, text: str) -> str | None:
    """What the pattern last matched in the text, line by line."""
    last = deque(re.finditer(pattern, text, re.MULTILINE), maxlen=1)
    if not last:
        return None
    found = last[0]
    return (found[1] or "" if found.re.groups else found[0])[:LONGEST_ANSWER]


def read_pattern(pattern: str) -> tuple[int, str]:
    """How many groups a pattern has; and what is wrong with it, if it is none."""
    try:
        return re.compile(pattern, re.MULTILINE).groups, ""
    except (re.error, OverflowError, RecursionError) as error:
        return 0, str(error)[:LONGEST_ANSWER]


def _answer(pattern: str, text: str | None) -> object:
    if text is None:
        return read_pattern(pattern)
    try:
        return last_found(pattern, text)
    except (re.error, OverflowError, RecursionError):
        return None


def main() -> None:
    """Answer until nobody asks any more."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for line in sys.stdin.buffer:
        text, patterns = json.loads(line)
        for pattern in patterns:
            sys.stdout.write(json.dumps(_answer(pattern, text)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
