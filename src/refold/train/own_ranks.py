"""The ranks of a host, from the point of view of its agent. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from refold.train.group_messages import RankHeld
from refold.train.messages import Change, StartRank


class OwnRanks:
    """Keeps which ranks were started here and have not ended, and which of them were told to train."""

    def __init__(self) -> None:
        self._ranks: dict[int, RankHeld] = {}

    def started(self, start: StartRank) -> None:
        """Note a new rank."""
        self._ranks[start.process] = RankHeld(start.process, start.rank, start.local_rank)

    def told(self, process: int, change: Change) -> None:
        """Note what a rank was told."""
        if own := self._ranks.get(process):
            rank = change.rank if change.lost else own.rank
            self._ranks[process] = RankHeld(process, rank, own.local_rank, trains=rank < change.ranks)

    def ended(self, process: int) -> bool:
        """Note the end of a rank; return whether it was not given up before."""
        return self._ranks.pop(process, None) is not None

    def give_up(self, *, keeps_training: bool) -> None:
        """Forget ranks, except those that train if they are kept."""
        self._ranks = {rank.process: rank for rank in self.training() if keeps_training}

    def training(self) -> list[RankHeld]:
        """Return the ranks that were told to train."""
        return [rank for rank in self._ranks.values() if rank.trains]

    def given_up(self, running: Iterable[int]) -> list[int]:
        """Return the processes that are not among these ranks."""
        return [process for process in running if process not in self._ranks]

    def processes(self) -> list[int]:
        """Return all ranks."""
        return sorted(self._ranks)

    def __contains__(self, process: int) -> bool:
        return process in self._ranks


def starts_of(held: Mapping[int, Sequence[RankHeld]]) -> list[StartRank]:
    """Return how the ranks were started that hosts have, for a new leader."""
    return [
        StartRank(rank.process, rank.rank, 0, None, host, rank.local_rank)
        for host, ranks in held.items()
        for rank in ranks
    ]
