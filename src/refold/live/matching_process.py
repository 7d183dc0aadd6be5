"""The process that looks for regular expressions. It knows nothing else, and may be killed at any time.

It reads requests line by line as JSON, [text, [pattern, …]], and answers each pattern in a line of its own: null where
it was not found, else what its first group has at the last place where it was found (all of it, without a group).
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


def main() -> None:
    """Answer until nobody asks any more."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for line in sys.stdin.buffer:
        text, patterns = json.loads(line)
        for pattern in patterns:
            try:
                answer = last_found(pattern, text)
            except (re.error, OverflowError, RecursionError):
                answer = None
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
