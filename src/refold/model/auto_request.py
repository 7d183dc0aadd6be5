"""Requests of CPUs or memory that the scheduler chooses (`auto`), from what earlier runs of a group have used."""

from __future__ import annotations

from typing import Literal

import msgspec

from refold.model.units import WHOLE, format_count, format_memory

AutoResource = Literal["cpus", "memory"]
AUTO: Literal["auto"] = "auto"


class AutoRequest(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A resource whose amount was chosen: from `runs` earlier runs, of which none has used more than `used`.

    `used` is in MiB, or in thousandths of a CPU. Without runs, the amount is the default.
    """

    resource: AutoResource
    runs: int = 0
    used: int = 0

    def text(self, chosen: int) -> str:
        """Describe the choice: 'memory: auto is 5 GiB: 7 earlier runs used 4 GiB at most'."""
        amount = _format(self.resource, chosen) if chosen else "not limited"
        runs = f"{format_count(self.runs, 'earlier run')} used"
        why = f"{runs} {_format(self.resource, self.used)} at most" if self.runs else "no earlier run was measured"
        return f"{self.resource}: auto is {amount}: {why}"


def _format(resource: AutoResource, amount: int) -> str:
    if resource == "memory":
        return format_memory(amount)
    return "1 CPU" if amount == WHOLE else f"{amount / WHOLE:g} CPUs"
