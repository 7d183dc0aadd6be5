"""The stream of events: in order, resumable, and no more than a ring however slow its listeners are."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from fake_service import OTHER, OWNER, READER, FakeService, make_app, serve
from hypothesis import given, strategies as st

from refold.api.event_stream import MOST_LISTENERS, EventFilter, EventStream, alive, told
from refold.api.roles import Caller
from refold.api.wire import Event, Submission

EVERYTHING = EventFilter(Caller("owner", "owner", "default", "ada"))


def events(first: int, last: int, **fields: Any) -> list[Event]:
    return [Event(number, float(number), "started", **fields) for number in range(first, last + 1)]


def numbers(pieces: list[bytes]) -> list[int]:
    """Of the events among them, in their order."""
    return [int(line[4:]) for piece in pieces for part in piece.split(b"\n\n") if b"data:" in part
            for line in part.split(b"\n") if line.startswith(b"id: ")]  # fmt: skip


def data(pieces: list[bytes]) -> list[Event]:
    """The events, as they came."""
    lines = [line for piece in pieces for line in piece.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line[6:], type=Event) for line in lines]


async def all_there_is(feed: EventStream, since: int | None = 0, interest: EventFilter = EVERYTHING) -> list[bytes]:
    return [piece async for piece in feed.subscribe(since, interest, follow=False)]


def test_an_event_is_written_as_server_sent_events_are() -> None:
    assert told(Event(7, 1.5, "started", "a-1", 2, "on\nhere", "vision")) == (
        b"id: 7\nevent: started\n"
        b'data: {"number":7,"at":1.5,"kind":"started","job":"a-1","run":2,"text":"on\\nhere","tenant":"vision"}\n\n'
    )


def test_a_stream_begins_with_where_it_begins() -> None:
    feed = EventStream()
    feed.publish(events(1, 3))
    assert asyncio.run(all_there_is(feed, None)) == [alive(3)]
    assert asyncio.run(all_there_is(feed, 2)) == [alive(2), told(events(3, 3)[0])]


def test_who_comes_back_gets_what_it_missed() -> None:
    feed = EventStream()
    feed.publish(events(1, 600))
    assert numbers(asyncio.run(all_there_is(feed, 250))) == list(range(251, 601))


def test_a_feed_goes_on_where_the_one_before_a_restart_ended() -> None:
    feed = EventStream(last=500)
    feed.publish(events(501, 502))
    assert numbers(asyncio.run(all_there_is(feed, 500))) == [501, 502]


def test_what_fell_out_of_the_ring_is_told_as_lost_with_its_count() -> None:
    feed = EventStream(most=10)
    feed.publish(events(1, 25))
    came = data(asyncio.run(all_there_is(feed, 3)))
    assert [(event.number, event.kind, event.text) for event in came[:2]] == [
        (15, "lost", "12 events were dropped"),
        (16, "started", ""),
    ]
    assert [event.number for event in came[1:]] == list(range(16, 26))


def test_a_number_that_never_was_is_taken_for_the_last() -> None:
    feed = EventStream()
    feed.publish(events(1, 3))
    assert asyncio.run(all_there_is(feed, 900)) == [alive(3)]


@given(
    published=st.lists(st.integers(0, 40), max_size=12),
    taken=st.lists(st.integers(0, 4), max_size=12),
    most=st.integers(1, 30),
)
def test_what_comes_and_what_is_lost_are_all_that_was(published: list[int], taken: list[int], most: int) -> None:
    async def listen() -> tuple[list[bytes], int]:
        feed, pieces = EventStream(most=most, heartbeat=0.0), []
        stream = feed.subscribe(0, EVERYTHING)
        for more, takes in zip(published, taken, strict=False):
            feed.publish(events(feed.last + 1, feed.last + more))
            pieces += [await anext(stream) for _ in range(takes)]
        feed.end()
        return [*pieces, *[piece async for piece in stream]], feed.last

    pieces, last = asyncio.run(listen())
    came = data(pieces)
    lost = sum(int(event.text.split()[0]) for event in came if event.kind == "lost")
    assert [event.number for event in came] == sorted(event.number for event in came)
    assert lost + sum(event.kind != "lost" for event in came) == last


def test_a_listener_is_told_of_what_happens_while_it_waits_and_that_the_daemon_lives() -> None:
    async def listen() -> list[bytes]:
        feed = EventStream(heartbeat=0.02)
        stream = feed.subscribe(None, EVERYTHING)
        pieces = [await anext(stream), await anext(stream)]
        waiting = asyncio.ensure_future(anext(stream))
        feed.publish(events(1, 2))
        pieces.append(await waiting)
        feed.end()
        ended = [piece async for piece in stream]
        assert set(ended) <= {alive(2)}
        return pieces

    assert asyncio.run(listen()) == [alive(0), alive(0), b"".join(map(told, events(1, 2)))]


def test_a_listener_hears_that_the_daemon_lives_also_while_others_are_told_much() -> None:
    async def listen() -> bytes:
        feed = EventStream(heartbeat=0.02)
        stream = feed.subscribe(None, msgspec.structs.replace(EVERYTHING, job="a-1"))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        while not waiting.done():
            feed.publish(events(feed.last + 1, feed.last + 1, job="b-2"))
            await asyncio.sleep(0.001)
        await stream.aclose()
        return waiting.result()

    assert asyncio.run(asyncio.wait_for(listen(), 10)).endswith(b"\n: here\n\n")


def test_events_of_other_tenants_come_without_their_text() -> None:
    feed = EventStream()
    happened = [
        Event(1, 1.0, "failed", "a-1", 1, "exit status 1", "vision"),
        Event(2, 2.0, "failed", "b-2", 1, "exit status 2", "speech"),
        Event(3, 3.0, "drained", text="node here"),
    ]
    feed.publish(happened)
    reader = EventFilter(Caller("reader", "reader", "vision", "ada"))
    assert data(asyncio.run(all_there_is(feed, 0, reader))) == [
        happened[0],
        Event(2, 2.0, "failed", "b-2", 1, "", "speech"),
        happened[2],
    ]
    assert data(asyncio.run(all_there_is(feed, 0))) == happened


@pytest.mark.parametrize(
    ("interest", "expected"),
    [
        (msgspec.structs.replace(EVERYTHING, job="a-1"), [1, 3]),
        (msgspec.structs.replace(EVERYTHING, tenant="speech"), [2]),
        (msgspec.structs.replace(EVERYTHING, job="a-1", tenant="speech"), []),
    ],
)
def test_a_listener_gets_what_it_asked_for(interest: EventFilter, expected: list[int]) -> None:
    feed = EventStream()
    feed.publish(
        [
            Event(1, 1.0, "started", "a-1", tenant="vision"),
            Event(2, 2.0, "started", "b-2", tenant="speech"),
            Event(3, 3.0, "finished", "a-1", tenant="vision"),
        ]
    )
    assert numbers(asyncio.run(all_there_is(feed, 0, interest))) == expected


def test_listeners_that_take_nothing_do_not_make_the_feed_grow() -> None:
    async def flood() -> tuple[int, list[Event]]:
        feed = EventStream(most=100)
        streams = [feed.subscribe(None, EVERYTHING) for _ in range(20)]
        for stream in streams:
            await anext(stream)

        def publish(batches: int) -> int:
            for _ in range(batches):
                feed.publish(events(feed.last + 1, feed.last + 50))
            return tracemalloc.get_traced_memory()[0]

        grown = -publish(20) + publish(400)
        first = [data([await anext(stream)])[0] for stream in streams]
        for stream in streams:
            await stream.aclose()
        assert feed.listeners == 0
        return grown, first

    tracemalloc.start()
    try:
        grown, first = asyncio.run(flood())
    finally:
        tracemalloc.stop()
    assert grown < 100_000  # 20,000 events have come and gone; each is some 100 bytes, for each of 20 listeners
    assert {(event.number, event.kind, event.text) for event in first} == {
        (20_900, "lost", "20900 events were dropped")
    }


# Over HTTP

Message = dict[str, Any]


def scope_of(path: str, token: str, query: bytes = b"", **headers: str) -> Message:
    lines = {"host": "localhost", "authorization": f"Bearer {token}", **headers}
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query,
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in lines.items()],
    }


async def get(service: FakeService, path: str, token: str, query: bytes = b"", **headers: str) -> tuple[int, bytes]:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await make_app(service)(scope_of(path, token, query, **headers), receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


def desk_of_two_tenants() -> FakeService:
    service = FakeService()
    service.add(Submission("a", ["x"]), "vision")
    service.add(Submission("b", ["x"]), "speech")
    service.start("a-1")
    return service


def test_a_stream_over_http_is_of_the_job_that_was_named_in_any_way() -> None:
    for name in ("a-1", "a", "1"):
        status, body = asyncio.run(
            get(desk_of_two_tenants(), "/api/v1/events", READER, b"since=0&follow=false&job=" + name.encode())
        )
        assert (status, numbers([body])) == (200, [1, 3])


def test_a_job_that_is_not_there_has_no_stream() -> None:
    status, _ = asyncio.run(get(desk_of_two_tenants(), "/api/v1/events", READER, b"job=zzz"))
    assert status == 404


def test_last_event_id_resumes() -> None:
    service = desk_of_two_tenants()
    status, body = asyncio.run(get(service, "/api/v1/events", OTHER, b"since=0&follow=false", last_event_id="1"))
    assert status == 200
    assert [(event.number, event.text) for event in data([body])] == [(2, "b-2 submitted"), (3, "")]
    assert asyncio.run(get(service, "/api/v1/events", OTHER, last_event_id="x"))[0] == 422


def test_a_token_that_is_revoked_ends_the_stream_that_it_opened() -> None:
    async def listen() -> list[bytes]:
        service = FakeService(feed=EventStream(heartbeat=3600.0))
        sent: list[Message] = []

        async def receive() -> Message:
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        serving = asyncio.ensure_future(make_app(service)(scope_of("/api/v1/events", READER), receive, send))
        while not service.feed.listeners:
            await asyncio.sleep(0)
        service.feed.publish(events(1, 1))
        while len(sent) < 3:
            await asyncio.sleep(0)
        await service.revoke_token(EVERYTHING.caller, "reader")
        service.feed.publish(events(2, 2))
        await serving
        return [message["body"] for message in sent[1:]]

    assert numbers(asyncio.run(asyncio.wait_for(listen(), 10))) == [1]


def test_who_may_not_listen_any_more_is_not_kept_until_something_happens() -> None:
    async def listen() -> list[bytes]:
        feed, known = EventStream(heartbeat=3600.0), ["token"]
        stream = feed.subscribe(None, EVERYTHING, may_listen=lambda: bool(known))
        pieces = [await anext(stream)]
        waiting = asyncio.ensure_future(anext(stream, b"over"))
        await asyncio.sleep(0)
        known.clear()
        feed.wake()
        return [*pieces, await waiting]

    assert asyncio.run(asyncio.wait_for(listen(), 10)) == [alive(0), b"over"]


def test_there_are_only_so_many_listeners() -> None:
    service = desk_of_two_tenants()
    service.feed.listeners = MOST_LISTENERS
    assert asyncio.run(get(service, "/api/v1/events", READER, b"follow=false"))[0] == 429


def test_a_listener_that_vanishes_is_forgotten() -> None:
    async def vanish() -> tuple[int, int]:
        service, gone = FakeService(), asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        serving = asyncio.ensure_future(make_app(service)(scope_of("/api/v1/events", READER), receive, send))
        while not service.feed.listeners:
            await asyncio.sleep(0)
        listened = service.feed.listeners
        gone.set()
        await serving
        return listened, service.feed.listeners

    assert asyncio.run(vanish()) == (1, 0)


def test_a_listener_that_takes_nothing_for_long_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.api.asgi.SLOWEST_LISTENER", 0.01)

    async def stall() -> int:
        service = FakeService()

        async def receive() -> Message:
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(3600)

        await make_app(service)(scope_of("/api/v1/events", READER), receive, send)
        return service.feed.listeners

    assert asyncio.run(stall()) == 0


def test_a_server_outlives_listeners_that_stall_and_vanish() -> None:
    request = (
        b"GET /api/v1/events?since=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % OWNER.encode()
    )
    with serve() as served:
        port = int(served.address.rpartition(":")[2])
        listeners = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        for listener in listeners:
            listener.sendall(request)
            assert listener.recv(12) == b"HTTP/1.1 200"
        for _ in range(40):  # far more than the ring and every buffer hold
            served.do(
                lambda: served.service.feed.publish(
                    events(served.service.feed.last + 1, served.service.feed.last + 500)
                )
            )
        for listener in listeners:
            listener.close()
        until = time.monotonic() + 10
        while served.service.feed.listeners and time.monotonic() < until:
            time.sleep(0.01)
        assert served.service.feed.listeners == 0
