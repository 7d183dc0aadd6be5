"""Error replies of the daemon as exceptions."""

from __future__ import annotations

import msgspec

from refold.client.api import HTTP_STATUS, Problem
from refold.errors import BadField, RefoldError, Refused

_ERRORS = {status: kind for kind, status in reversed(HTTP_STATUS.items())}


def error_from_reply(status: int, answer: bytes) -> RefoldError:
    """Return the exception for an error reply."""
    try:
        problem = msgspec.json.decode(answer, type=Problem)
    except msgspec.DecodeError:
        problem = Problem(f"the daemon answered with status {status} and no message")
    if problem.field:
        return BadField(problem.error, problem.field)
    return _ERRORS.get(status, Refused)(problem.error)
