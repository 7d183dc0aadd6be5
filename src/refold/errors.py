"""The exceptions that Refold raises deliberately.

RefoldError
├── BadValue            an object that cannot be constructed: a job with -1 GPUs
├── BadInput            invalid input from a user
│   ├── BadFile         a file that is missing, unreadable or of the wrong kind
│   │   └── BadLine     one line of a file
│   │       └── BadRow  one value in a file: line, column, value found, value expected
│   ├── BadField        one field of a request to the daemon
│   └── UnknownName     unknown policy 'rubik'; did you mean 'rubick'?
├── BadDecision         a policy broke a rule: which policy, which rule
├── BadJournal          a journal whose replay does not give the recorded orders
├── MissingExtra        a feature whose optional dependency is not installed
├── CheckpointNotWritten  a checkpoint of a training job could not be written
├── StateNotMoved       a training job could not change its plan, and continues with the previous one
├── Disconnected        the agent of a training job, or one of its ranks, has ended
├── NoDaemon            no daemon answers at the address
├── WaitTimeout         the awaited state was not reached in time
└── Refused             the daemon rejected a request
    ├── Unauthenticated   no token, or an unknown one
    ├── Forbidden         the token's role does not permit the request
    ├── NotFound          no such job, node or token
    ├── Conflict          not possible in the current state: a job that has ended cannot be cancelled
    ├── TooManyRequests   too many objects, or too many requests per unit of time
    │   └── TooLarge      the request has too many bytes
    └── Unavailable       temporarily impossible: the disk is full, the daemon is shutting down
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MAX_SUGGESTIONS = 8
"""How many names an error lists if there is a command that prints all of them."""


class RefoldError(Exception):
    """Base class: programs catch it and print its message instead of a traceback."""


class BadValue(RefoldError, ValueError):
    """An object was constructed from values that are invalid for it."""


class BadInput(RefoldError):
    """Input from a user is invalid."""


class BadFile(BadInput):
    """A file is missing, unreadable or of the wrong kind."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = str(path)
        self.problem = problem


class BadLine(BadFile):
    """One line of a file is invalid."""

    def __init__(self, path: object, line: int, problem: str) -> None:
        super().__init__(path, problem)
        self.args = (f"{path} line {line}: {problem}",)
        self.line = line


class BadRow(BadLine):
    """One value in one line of a file is invalid."""

    def __init__(self, path: object, line: int, column: str, found: object, expected: str) -> None:
        super().__init__(path, line, f"{column} is {found!r}, expected {expected}")
        self.column = column
        self.found = found
        self.expected = expected


class BadField(BadInput):
    """One field of a request to the daemon is invalid; if `field` is empty, the request as a whole."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class UnknownName(BadInput):
    """A name is not in a table; the message suggests the most similar known name.

    `key` normalises names before they are compared, as in `sorted`. If the command `listed_by` prints the whole
    table and the table is long, the message lists only the most similar names and refers to that command.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, key: Callable[[str], str] = str, listed_by: str = ""
    ) -> None:
        from difflib import get_close_matches  # no command needs it, unless something is misspelt

        listed = sorted(known)
        by_key = {key(word): word for word in listed}
        near = [by_key[match] for match in get_close_matches(key(name), by_key, n=1)]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if listed_by and len(listed) > MAX_SUGGESTIONS:
            listed = [by_key[match] for match in get_close_matches(key(name), by_key, n=MAX_SUGGESTIONS, cutoff=0.0)]
            listed.append(f"…; `{listed_by}` lists all")
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(listed) or 'none'})")
        self.kind = kind
        self.name = name
        self.nearest = near[0] if near else None


class BadDecision(RefoldError):
    """A policy made a decision that the cluster or the scheduling rules do not allow."""

    def __init__(self, policy: str, rule: str, problem: str) -> None:
        super().__init__(f"{policy} {problem} (rule: {rule})")
        self.policy = policy
        self.rule = rule
        self.problem = problem


class BadJournal(RefoldError):
    """A journal is inconsistent, or its replay does not give the recorded orders."""


class MissingExtra(RefoldError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install '.[{extra}]' in the source folder")
        self.feature = feature
        self.extra = extra


class CheckpointNotWritten(RefoldError):
    """A checkpoint could not be written, for example to a full disk. Earlier checkpoints are intact."""


class StateNotMoved(RefoldError):
    """The state of a training could not be handed over to another plan. The previous one is still in use."""


class Disconnected(RefoldError):
    """The other end of a channel is gone. For a rank: the agent has ended, and the rank should exit."""


class RanksLost(RefoldError):
    """Other ranks of a training are lost, and those that are left form a new group."""


class NoDaemon(RefoldError):
    """No daemon answers at the address."""


class WaitTimeout(RefoldError, TimeoutError):
    """The awaited state was not reached within the timeout."""


class Refused(RefoldError):
    """The daemon rejected a request."""


class Unauthenticated(Refused):
    """The request carries no token, or one that the daemon does not know."""


class Forbidden(Refused):
    """The token is valid, but its role does not permit the request."""


class NotFound(Refused):
    """The named object does not exist."""

    @classmethod
    def near(cls, kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> NotFound:
        """Return the error with a suggestion from the `known` names, worded as `UnknownName`."""
        return cls(str(UnknownName(kind, name, known, listed_by=listed_by)))


class Conflict(Refused):
    """The request is not possible in the current state of the object."""


class TooManyRequests(Refused):
    """A limit on the number of objects or on the request rate is reached."""


class TooLarge(TooManyRequests):
    """The request has more bytes than the daemon accepts."""


class Unavailable(Refused):
    """The daemon cannot process the request at present."""
