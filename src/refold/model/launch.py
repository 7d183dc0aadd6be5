"""How the command of a job is run. Back ends read it and policies do not, but for what it says of progress."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from refold.errors import BadValue
from refold.model.units import Seconds

StopSignal = Literal["TERM", "INT", "USR1", "USR2", "HUP"]
MOST_RETRIES = 1000


class Launch(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where and with what a command runs, how it is asked to stop, what its output means, whom to tell.

    `environment`: variables and their values, beside those that every run gets. `folder`: where it runs; empty: in a
    folder of its own, which its runs share. `grace`: how long it may take to stop after `stop_signal`; None: as long as
    everybody.
    `progress`: a regular expression whose first group is the number of steps done, looked for in its output.
    `no_progress`: a run that reports no progress for so long is taken to hang.
    `never_retry`: regular expressions for its output after which a failed run is not tried again.
    `after`: jobs that must have finished before this one is looked at. `notify`: addresses, as apprise writes them.
    """

    environment: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    grace: Seconds | None = None
    stop_signal: StopSignal = "TERM"
    retries: int = 0
    progress: str = ""
    no_progress: Seconds | None = None
    never_retry: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stop_signal not in get_args(StopSignal):
            raise BadValue(f"stop_signal is {self.stop_signal!r}, expected one of {', '.join(get_args(StopSignal))}")
        if not 0 <= self.retries <= MOST_RETRIES:
            raise BadValue(f"retries is {self.retries}, expected 0 to {MOST_RETRIES}")
        if self.grace is not None and not 0 <= self.grace < math.inf:
            raise BadValue(f"grace is {self.grace}, expected seconds ≥ 0")
        if self.no_progress is not None and not 0 < self.no_progress < math.inf:
            raise BadValue(f"no_progress is {self.no_progress}, expected seconds > 0")


AS_USUAL = Launch()
"""Nothing but the command."""
