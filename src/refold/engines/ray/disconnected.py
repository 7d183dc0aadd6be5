"""A back end for the time in which the head node of Ray is lost: nothing is started or ended, and nothing is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from refold.core import Order
from refold.model import Job


class DisconnectedBackend:
    """Takes no notice of orders. They are repeated to its successor, which then finds the runs or not."""

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def kill(self, job_id: str) -> None:
        """Do nothing."""

    async def detach(self) -> None:
        """Do nothing."""

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        """Do nothing."""

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return ""
