"""Everything that Refold raises on purpose.

RefoldError
├── BadValue       a noun that cannot be built: a job of -1 GPUs
├── BadInput       something a person gave us
│   ├── BadFile    a file that cannot be read as what it should be
│   ├── BadRow     one row of a file: line, column, what was there, what was expected
│   ├── BadField   one field of what was asked of a daemon
│   └── UnknownName  no policy 'rubik'; did you mean 'rubick'?
├── BadDecision    a policy broke a rule: which policy, which rule
├── BadJournal     a journal that does not replay to its own orders
├── MissingExtra   a feature whose optional dependency is not installed
├── NoDaemon       nobody serves where a daemon was looked for
├── NotYet         what was waited for has not come in the time that was given
└── Refused        the daemon was asked, and does not do it
    ├── Unknown       it does not know who asks
    ├── Forbidden     who asks may not have that
    ├── NotFound      no such job, node, token
    ├── Conflict      not as things stand: a job that has ended cannot be cancelled
    ├── TooMuch       too many, or too often: later, or less, may work
    │   └── TooLarge  more bytes than it takes at once
    └── Unavailable   it cannot at present: its disk is full, it is ending
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

FEW = 8
"""As many names of a long table are told at once."""


class RefoldError(Exception):
    """The base of all of them: catch this, print it, and nobody sees a traceback."""


class BadValue(RefoldError, ValueError):
    """A noun was asked to be something it cannot be."""


class BadInput(RefoldError):
    """What a person gave cannot be used."""


class BadFile(BadInput):
    """A file is absent, unreadable, or not what it should be."""

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = str(path)
        self.problem = problem


class BadRow(BadInput):
    """One value in one row of a file is not what was expected."""

    def __init__(self, path: object, line: int, column: str, found: object, expected: str) -> None:
        super().__init__(f"{path} line {line}: {column} is {found!r}, expected {expected}")
        self.path = str(path)
        self.line = line
        self.column = column
        self.found = found
        self.expected = expected


class BadField(BadInput):
    """One field of what was asked of a daemon is not what was expected; or all of it, if none is named."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class UnknownName(BadInput):
    """A name that is in none of our tables, with the nearest that is.

    `key` is what names are compared by, as in `sorted`. Of a long table that the command `listed_by` prints, only
    the nearest names are told.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, key: Callable[[str], str] = str, listed_by: str = ""
    ) -> None:
        told = sorted(known)
        by_key = {key(word): word for word in told}
        near = [by_key[match] for match in get_close_matches(key(name), by_key, n=1)]
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if listed_by and len(told) > FEW:
            told = [by_key[match] for match in get_close_matches(key(name), by_key, n=FEW, cutoff=0.0)]
            told.append(f"…; `{listed_by}` lists all")
        super().__init__(f"no {kind} {name!r}{hint} ({', '.join(told)})")
        self.kind = kind
        self.name = name
        self.nearest = near[0] if near else None


class BadDecision(RefoldError):
    """A policy decided something that the cluster or the rules do not allow."""

    def __init__(self, policy: str, rule: str, what: str) -> None:
        super().__init__(f"{policy} {what} (rule: {rule})")
        self.policy = policy
        self.rule = rule
        self.what = what


class BadJournal(RefoldError):
    """A journal did not replay to the orders it recorded."""


class MissingExtra(RefoldError):
    """An optional dependency is needed and absent."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'refold[{extra}]'")
        self.feature = feature
        self.extra = extra


class NoDaemon(RefoldError):
    """Nobody serves where a daemon was looked for."""


class WaitTimeout(RefoldError, TimeoutError):
    """What was waited for has not come in the time that was given."""


class Refused(RefoldError):
    """The daemon was asked for something and does not do it."""


class Unauthenticated(Refused):
    """Who asks has no token, or one that the daemon does not know."""


class Forbidden(Refused):
    """Who asks is known, and may not have what was asked for."""


class NotFound(Refused):
    """There is no such thing."""

    @classmethod
    def near(cls, kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> NotFound:
        """The same with the nearest name of those that there are; of many, `listed_by` lists the others."""
        return cls(str(UnknownName(kind, name, known, listed_by=listed_by)))


class Conflict(Refused):
    """It cannot be done as things stand."""


class TooManyRequests(Refused):
    """Too many things at once, or too often."""


class TooLarge(TooManyRequests):
    """More bytes than are taken at once."""


class Unavailable(Refused):
    """The daemon cannot do it at present."""
