"""The messages between the agents of a run on several hosts: JSON, one per line. No PyTorch.

Orders and reports carry the reign of the leader for whom they are meant; those of another reign are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from refold.model import ChangeRequest, InstanceGpus, Plan, Seconds
from refold.train.agent import print_line
from refold.train.copies import CopyToLoad, HostCopy
from refold.train.group_link import Peer
from refold.train.membership import Beat
from refold.train.messages import Announce, Answer, Exit, Log, Report, Send, SignalRank, StartRank, ToSupervisor


class AgentBeat(msgspec.Struct, frozen=True, tag=True):
    """A beat, with what a leader must know of a host.

    `slots`: how many ranks it can have. `meeting_port`: where a group can meet whose first rank is there. `peers`:
    where other agents listen, as far as this one knows. `processes`: its ranks, in case that a message gets lost.
    """

    beat: Beat
    slots: int
    port: int
    meeting_port: int
    peers: dict[int, Peer]
    processes: list[int] = []


# From the leader.


class Order(msgspec.Struct, frozen=True, tag=True):
    """Start, message or signal a rank on this host. `address`, `port`: where a script can form a group itself."""

    reign: int
    action: StartRank | Send | SignalRank
    address: str = ""
    port: int = 0


class Shared(msgspec.Struct, frozen=True, tag=True):
    """What all agents do, because any of them may be the one that the back end follows."""

    reign: int
    action: Announce | Answer | Report | Log | Exit


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """What the next leader must know: the requested plan, what each instance may use, and the batch."""

    reign: int
    plan: Plan
    batch: int
    instances: tuple[InstanceGpus, ...] = ()


class BackUp(msgspec.Struct, frozen=True, tag=True):
    """Fetch these parts of a copy, which only one host has."""

    reign: int
    copy: CopyToLoad


# To the leader.


class RankHeld(msgspec.Struct, frozen=True):
    """A rank of a host. `trains`: it was told to."""

    process: int
    rank: int
    local_rank: int
    trains: bool = False


class CopiesHeld(msgspec.Struct, frozen=True, tag=True):
    """The complete copies of a host, and its ranks. `failed`: parts of a copy of this step could not be fetched."""

    reign: int
    copies: list[HostCopy]
    failed: int | None = None
    ranks: list[RankHeld] = []


class RankSaid(msgspec.Struct, frozen=True, tag=True):
    """A message of a rank."""

    reign: int
    process: int
    message: ToSupervisor


class RankEnded(msgspec.Struct, frozen=True, tag=True):
    """The end of a rank."""

    reign: int
    process: int
    status: int


class Requested(msgspec.Struct, frozen=True, tag=True):
    """A request of the back end to change the plan."""

    reign: int
    request: ChangeRequest


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    """The stop signal: the run must end within `grace` seconds."""

    reign: int
    grace: Seconds


FromLeader = Order | Shared | Wanted | BackUp
ToLeader = CopiesHeld | RankSaid | RankEnded | Requested | StopRequested
GroupMessage = AgentBeat | FromLeader | ToLeader


def decoded(lines: Iterable[tuple[Peer, bytes]]) -> Iterator[tuple[Peer, GroupMessage]]:
    """Return the messages that others have sent; print why one cannot be read."""
    for peer, line in lines:
        try:
            yield peer, msgspec.json.decode(line, type=GroupMessage)
        except msgspec.DecodeError as error:
            print_line(f"instance {peer.instance} sent a message that cannot be read: {error}")
