"""A policy of one's own, watched while it decides: what it does wrong is told with its own lines and without ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from traceback import format_tb, walk_tb
from typing import TYPE_CHECKING, Any

import refold
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.core import Policy, View
    from refold.model import Decision

OURS = str(Path(refold.__file__).parent)
"""The folder of the package."""


class PolicyFailed(RefoldError):
    """A policy raised something, or what it returned is no decision. `frames` is where, from its own file on."""

    def __init__(self, what: str, frames: str = "") -> None:
        super().__init__(what)
        self.frames = frames


def make_guarded(name: str, settings: Mapping[str, Any]) -> Policy:
    """A policy by name or file. Those of the package are not watched: a traceback of theirs is for us to see."""
    from refold.registry import make_policy, parted, watched

    try:
        own, rules = parted(name, settings)
        policy = make_policy(name, own)
    except RefoldError:
        raise
    except Exception as error:
        raise _failed(f"{name} cannot be made", error) from error
    return watched(policy if type(policy).__module__.startswith("refold.") else _Guarded(policy), rules)


class _Guarded:
    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.oracle = bool(getattr(policy, "oracle", False))
        self._policy = policy

    def decide(self, view: View) -> Decision:
        """What the policy says, if it is a decision."""
        from refold.model import Decision

        try:
            decision: object = self._policy.decide(view)
        except (Exception, SystemExit) as error:
            raise _failed(f"policy {self.name} failed", error) from error
        if not isinstance(decision, Decision):
            found = "None" if decision is None else f"a {type(decision).__name__}"
            raise PolicyFailed(f"policy {self.name} returned {found}, expected a Decision")
        return decision


def _failed(what: str, error: BaseException) -> PolicyFailed:
    said = f": {error}" if str(error) else ""
    return PolicyFailed(f"{what}: {type(error).__name__}{said}", _frames_of(error))


def _frames_of(error: BaseException) -> str:
    """The traceback, from the first frame on that is not of the package; nothing, if all are."""
    for frame, _ in walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith(OURS):
            break
    else:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame is not frame:
        trace = trace.tb_next
    return "".join(["Traceback (most recent call last):\n", *format_tb(trace)])
