"""Run a user's policy: its errors are reported with a traceback of the user's code only."""

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

PACKAGE_FOLDER = str(Path(refold.__file__).parent)
"""The folder of the `refold` package."""


class PolicyFailed(RefoldError):
    """A policy raised an exception or did not return a Decision. `frames`: the traceback from the user's file on."""

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


def make_guarded_policy(name: str, settings: Mapping[str, Any]) -> Policy:
    """Make a policy by name or file. Policies of the package are not guarded: their errors are bugs of Refold."""
    from refold.simulator import (
        START_ESTIMATES,
        make_policy,
        split_settings,
        with_run_watch,
        with_start_estimates,
        without_start_estimates,
    )

    try:
        own, rules = split_settings(name, settings)
        policy = make_policy(name, without_start_estimates(own))
    except RefoldError:
        raise
    except Exception as error:
        raise _policy_failed(f"cannot create policy {name}", error) from error
    guarded = policy if type(policy).__module__.startswith("refold.") else _GuardedPolicy(policy)
    return with_run_watch(with_start_estimates(guarded) if own.get(START_ESTIMATES) else guarded, rules)


class _GuardedPolicy:
    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.oracle = bool(getattr(policy, "oracle", False))
        self._policy = policy

    def decide(self, view: View) -> Decision:
        """Return the policy's decision; raise `PolicyFailed` if it raises an exception or returns anything else."""
        from refold.model import Decision

        try:
            decision: object = self._policy.decide(view)
        except (Exception, SystemExit) as error:
            raise _policy_failed(f"policy {self.name} failed", error) from error
        if not isinstance(decision, Decision):
            returned = "None" if decision is None else f"a {type(decision).__name__}"
            raise PolicyFailed(f"policy {self.name} returned {returned}, expected a Decision")
        return decision


def _policy_failed(context: str, error: BaseException) -> PolicyFailed:
    detail = f": {error}" if str(error) else ""
    return PolicyFailed(f"{context}: {type(error).__name__}{detail}", _user_frames(error))


def _user_frames(error: BaseException) -> str:
    """Return the traceback from the first frame outside the package on; empty if all frames are in the package."""
    for frame, _ in walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            break
    else:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame is not frame:
        trace = trace.tb_next
    return "".join(["Traceback (most recent call last):\n", *format_tb(trace)])
