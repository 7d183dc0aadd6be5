"""Connections between agents, and parts of copies: real sockets on the loopback address."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refold.errors import BadFile, Disconnected
from refold.train import copy_files
from refold.train.copies import CopySource, CopyToLoad, volume
from refold.train.copy_files import CHUNK_BYTES, CopyFiles, CopyHeader, MappedCopy, chunks_of, copy_path, header_path
from refold.train.group_link import Greeting, GroupLink, dial
from refold.train.messages import Copied

SECRET = b"secret"


def refuse(connection: Any, lines: Any) -> None:
    raise AssertionError("nobody asks for copies")


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


@pytest.fixture
def links() -> Iterator[Callable[..., GroupLink]]:
    made: list[GroupLink] = []

    def make(instance: int, *seeds: GroupLink, secret: bytes = SECRET, incarnation: str = "") -> GroupLink:
        made.append(GroupLink(secret, instance, incarnation or f"i{instance}", ("127.0.0.1", 0), refuse))
        made[-1].add_seeds([("127.0.0.1", seed.port) for seed in seeds])
        return made[-1]

    yield make
    for link in made:
        link.close()


def received(link: GroupLink, sender: GroupLink, message: object) -> list[Any]:
    """Send a message until it has arrived, and return who sent it."""

    def attempt() -> list[Any]:
        sender.send(link._greeting.instance, message)
        time.sleep(0.02)
        return link.take_messages()

    found: list[Any] = wait_until(attempt)
    return found


def test_agents_that_know_a_common_one_exchange_messages(links: Callable[..., GroupLink]) -> None:
    first = links(0)
    second = links(1, first)
    third = links(2, first)
    peer, line = received(first, second, {"hello": 1})[0]
    assert (peer.instance, peer.incarnation, peer.port, json.loads(line)) == (1, "i1", second.port, {"hello": 1})
    assert received(second, first, [2])[0][0].instance == 0
    received(first, third, [3])
    second.know(first.peers())
    assert received(third, second, [4])[0][0].instance == 1
    assert received(second, third, [5])[0][0].instance == 2


def test_who_does_not_know_the_secret_is_not_connected(links: Callable[..., GroupLink]) -> None:
    first = links(0)
    stranger = links(1, first, secret=b"another")
    time.sleep(1.0)
    assert first.peers() == {} == stranger.peers()
    with pytest.raises((OSError, Disconnected)):
        dial(("127.0.0.1", first.port), b"another", Greeting("copies"), 1.0)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 200, b""])
def test_garbage_does_not_disturb_the_others(links: Callable[..., GroupLink], garbage: bytes) -> None:
    first = links(0)
    with socket.create_connection(("127.0.0.1", first.port)) as stranger:
        stranger.sendall(garbage)
        received(first, links(1, first), [1])
        stranger.settimeout(5)
        with suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass  # the connection is closed, whatever was sent


def test_an_agent_that_has_ended_is_refused_and_its_successor_takes_its_place(links: Callable[..., GroupLink]) -> None:
    first = links(0)
    second = links(1, first)
    received(first, second, [1])
    second.close()
    refused = wait_until(first.take_refused)
    assert {peer.incarnation for peer in refused} == {"i1"}
    successor = links(1, first, incarnation="later")
    assert received(first, successor, [2])[-1][0].incarnation == "later"
    assert received(successor, first, [3])[-1][0].instance == 0


# Copies.

PLACES = {"w": [0, 8, 40, 6], "s": [40 * 6 * 8, 4]}
SIZE = 40 * 6 * 8 + 4


class Served:
    """The copies of a host, and a link that serves them."""

    def __init__(self, instance: int, folder: Path, secret: bytes = SECRET) -> None:
        folder.mkdir()
        self.state = folder / "state"
        self.files = CopyFiles(secret, self.state)
        self.link = GroupLink(SECRET, instance, "x", ("127.0.0.1", 0), self.files.serve)

    def write(self, step: int, slot: int, **regions: Any) -> None:
        """Write regions of the tensors as a rank does: every element is its own number, plus the step."""
        header = CopyHeader(PLACES, SIZE, ["described", {}, {"step": step}])
        path = copy_path(self.state, slot)
        copy_files.extend(path, SIZE)
        header_path(path).write_text(json.dumps({"places": PLACES, "size": SIZE, "description": header.description}))
        mapped = MappedCopy(path, header, writable=True)
        for name, parts in regions.items():
            for region in parts:
                mapped.region(name, region)[...] = self.expected(name, region, step)
        self.files.complete(Copied(1, step, slot, 1, regions))

    @staticmethod
    def expected(name: str, region: Any, step: int) -> np.ndarray:
        item, *shape = PLACES[name][1:]
        whole = np.arange(prod(shape), dtype=f"i{item}").reshape(shape) + np.array(step, dtype=f"i{item}")
        part = np.ascontiguousarray(whole[tuple(slice(*bounds) for bounds in region)])
        return part.reshape(-1).view(np.uint8).reshape(*part.shape, item)

    def source(self, **regions: Any) -> CopySource:
        return CopySource("127.0.0.1", self.link.port, regions)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Served]]:
    made = [Served(number, tmp_path / str(number)) for number in range(3)]
    yield made
    for served in made:
        served.link.close()


TOP, BOTTOM = ((0, 20), (0, 6)), ((20, 40), (1, 4))


def test_a_host_fetches_parts_of_a_copy_from_several_others(
    hosts: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_files, "CHUNK_BYTES", 100)
    first, second, third = hosts
    first.write(7, 1, w=[TOP], s=[()])
    second.write(7, 1, w=[BOTTOM])
    order = CopyToLoad(1, 7, 1, {0: first.source(w=[TOP], s=[()]), 1: second.source(w=[BOTTOM])})
    third.files.add(third.files.fetch(order))
    assert [copy.regions for copy in third.files.held()] == [{"s": [()], "w": [TOP, BOTTOM]}]
    mapped = MappedCopy(copy_path(third.state, 1), copy_files.read_header(copy_path(third.state, 1)))
    for name, region in (("w", TOP), ("w", BOTTOM), ("s", ())):
        assert (mapped.region(name, region) == Served.expected(name, region, 7)).all()


def test_a_copy_that_has_been_overwritten_is_not_served(hosts: list[Served]) -> None:
    first, second, _ = hosts
    first.write(7, 1, w=[TOP])
    first.files.invalidate(1)
    order = CopyToLoad(1, 7, 1, {0: first.source(w=[TOP])})
    with pytest.raises(Disconnected, match="there is no copy of step 7 here"):
        second.files.fetch(order)
    assert second.files.held() == []


def test_what_is_being_fetched_is_given_up_when_a_generation_begins(
    hosts: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = hosts
    first.write(7, 1, w=[TOP])
    original = copy_files.PartReader.parts

    def slow(reader: Any, *arguments: Any) -> Iterator[Any]:
        second.files.begin_generation(None)
        yield from original(reader, *arguments)

    monkeypatch.setattr(copy_files.PartReader, "parts", slow)
    with pytest.raises(Disconnected, match="no longer needed"):
        second.files.fetch(CopyToLoad(1, 7, 1, {0: first.source(w=[TOP])}))


def test_a_copy_for_which_there_is_no_memory_is_not_fetched(
    hosts: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = hosts
    first.write(7, 1, w=[TOP])
    monkeypatch.setattr(copy_files, "free_bytes", lambda _: 100)
    with pytest.raises(BadFile, match="cannot hold 960 bytes"):
        second.files.fetch(CopyToLoad(1, 7, 1, {0: first.source(w=[TOP])}))


def test_a_copy_is_complete_when_all_ranks_of_the_host_have_written(hosts: list[Served]) -> None:
    first = hosts[0]
    first.write(3, 0)
    first.files.begin_generation(0)
    assert not first.files.complete(Copied(1, 5, 0, 2, {"w": [TOP]}))
    first.files.forget_unfinished()
    assert not first.files.complete(Copied(2, 5, 0, 2, {"w": [TOP]}))
    assert first.files.complete(Copied(2, 5, 0, 2, {"w": [BOTTOM]}))
    assert first.files.held()[0].regions == {"w": [TOP, BOTTOM]}


@pytest.mark.parametrize("shape", [(1, 1), (5, 10**6), (3, 4, 5 * 10**6), (10**7,)])
def test_parts_are_sent_in_pieces_of_bounded_size(shape: tuple[int, ...]) -> None:
    region = tuple((0, size) for size in shape)
    chunks = list(chunks_of(region, 8))
    assert sum(map(volume, chunks)) == volume(region)
    assert len(set(chunks)) == len(chunks)
    assert max(map(volume, chunks)) * 8 <= CHUNK_BYTES
