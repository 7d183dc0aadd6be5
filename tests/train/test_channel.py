"""The connection between the agent and a rank."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.errors import Disconnected, RanksLost, WaitTimeout
from refold.model import Plan
from refold.train.channel import AGENT_VARIABLE, AgentChannel, Listener, RankChannel, connect
from refold.train.messages import Change, Finished, Progress, Ready, StopTraining


@pytest.fixture(autouse=True)
def _restore_stop_signal() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[AgentChannel, RankChannel]]:
    """The agent's and the rank's end of a channel."""
    listener = Listener(tmp_path / "rank")
    rank = connect({AGENT_VARIABLE: str(listener.path)})
    assert rank is not None
    agent = listener.accept()
    yield agent, rank
    agent.close()
    rank.close()


def test_messages_arrive_in_order(ends: tuple[AgentChannel, RankChannel]) -> None:
    agent, rank = ends
    change = Change(Plan(tensor=2), ranks=2, generation=3, state="/dev/shm/x", resume=True)
    for order in (change, StopTraining(5.0)):
        agent.send(order)
    assert [rank.wait(), rank.poll(), rank.poll()] == [change, StopTraining(5.0), None]
    rank.send(Ready(1, state_bytes=10))
    rank.send(Progress(step=2, loss=0.5, samples_per_second=8.0))
    assert [agent.wait(), agent.wait()] == [Ready(1, 10), Progress(2, 0.5, 8.0)]
    rank.send(Progress(step=3, loss=float("nan"), samples_per_second=8.0))
    assert agent.wait() == Progress(3, None, 8.0)


def test_messages_sent_before_the_end_are_received_first(ends: tuple[AgentChannel, RankChannel]) -> None:
    agent, rank = ends
    rank.send(Finished(7))
    rank.close()
    assert agent.poll() == Finished(7)
    with pytest.raises(Disconnected, match="the rank has ended"):
        agent.poll()


def test_a_rank_notices_that_the_agent_is_gone(ends: tuple[AgentChannel, RankChannel]) -> None:
    agent, rank = ends
    agent.close()
    with pytest.raises(Disconnected, match="the agent has ended"):
        rank.wait()
    with pytest.raises(Disconnected, match="the agent has ended"):
        rank.send(Finished(1))


def test_waiting_has_a_time_limit(ends: tuple[AgentChannel, RankChannel]) -> None:
    with pytest.raises(WaitTimeout, match=r"the agent sent no message within 0\.01 s"):
        ends[1].wait(timeout=0.01)


def test_a_rank_that_waits_hears_that_others_are_lost(ends: tuple[AgentChannel, RankChannel]) -> None:
    agent, rank = ends
    interrupted = threading.Event()
    rank.listen(interrupted.set)
    planned = Change(Plan(data=2), 2, 3, "", False)
    agent.send(planned)
    assert rank.wait(10.0) == planned
    change = Change(Plan(), 1, 4, "", False, keep=True, lost=True)
    agent.send(StopTraining(5.0))
    agent.send(change)
    assert interrupted.wait(10.0)
    with pytest.raises(RanksLost):
        rank.wait(10.0)
    with pytest.raises(RanksLost):
        rank.poll()
    assert rank.take_loss(10.0) == change
    assert rank.poll() is None, "what was sent before is of no use"
    assert rank.take_loss(0.01) is None
    agent.send(StopTraining(7.0))
    assert rank.wait(10.0) == StopTraining(7.0)


def test_there_is_no_channel_without_an_agent() -> None:
    assert connect({}) is None


def test_an_agent_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Disconnected, match=r"no agent listens at .*gone \(REFOLD_AGENT\): No such file or directory"):
        connect({AGENT_VARIABLE: str(tmp_path / "gone")})


def test_the_stop_signal_does_not_end_a_connected_rank_but_its_children(ends: tuple[AgentChannel, RankChannel]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")
        signal.pause()
        os._exit(0)
    assert os.read(reader, 1) == b"!"
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.close(reader)
    os.close(writer)
