"""The event stream: ordered, resumable, and bounded in memory however slow its listeners are."""

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

from refold.client.api.queries import Caller
from refold.client.api.submissions import Submission
from refold.client.api.wire import Event
from refold.server.http.event_stream import (
    MAX_LISTENERS,
    MAX_LISTENERS_PER_TOKEN,
    EventFilter,
    EventStream,
    format_event,
    format_heartbeat,
)

ALL_EVENTS = EventFilter(Caller("owner", "owner", "default", "ada"))


def events(first: int, last: int, **fields: Any) -> list[Event]:
    return [Event(number, float(number), "started", **fields) for number in range(first, last + 1)]


def numbers(chunks: list[bytes]) -> list[int]:
    """Return the numbers of the events in the chunks, in order."""
    return [int(line[4:]) for chunk in chunks for part in chunk.split(b"\n\n") if b"data:" in part
            for line in part.split(b"\n") if line.startswith(b"id: ")]  # fmt: skip


def data(chunks: list[bytes]) -> list[Event]:
    """Decode the events in the chunks."""
    lines = [line for chunk in chunks for line in chunk.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line[6:], type=Event) for line in lines]


async def read_buffered(
    ring: EventStream, since: int | None = 0, event_filter: EventFilter = ALL_EVENTS
) -> list[bytes]:
    return [chunk async for chunk in ring.subscribe(since, event_filter, follow=False)]


def test_an_event_is_formatted_as_a_server_sent_event() -> None:
    assert format_event(Event(7, 1.5, "started", "a-1", 2, "on\nhere", "vision")) == (
        b"id: 7\nevent: started\n"
        b'data: {"number":7,"at":1.5,"kind":"started","job":"a-1","run":2,"text":"on\\nhere","tenant":"vision"}\n\n'
    )


def test_a_stream_starts_with_its_position() -> None:
    ring = EventStream()
    ring.publish(events(1, 3))
    assert asyncio.run(read_buffered(ring, None)) == [format_heartbeat(3)]
    assert asyncio.run(read_buffered(ring, 2)) == [format_heartbeat(2), format_event(events(3, 3)[0])]


def test_a_listener_that_reconnects_receives_the_events_it_missed() -> None:
    ring = EventStream()
    ring.publish(events(1, 600))
    assert numbers(asyncio.run(read_buffered(ring, 250))) == list(range(251, 601))


def test_event_numbers_continue_after_a_restart() -> None:
    ring = EventStream(last=500)
    ring.publish(events(501, 502))
    assert numbers(asyncio.run(read_buffered(ring, 500))) == [501, 502]


def test_dropped_events_are_reported_as_lost_with_their_count() -> None:
    ring = EventStream(capacity=10)
    ring.publish(events(1, 25))
    received = data(asyncio.run(read_buffered(ring, 3)))
    assert [(event.number, event.kind, event.text) for event in received[:2]] == [
        (15, "lost", "12 events were dropped"),
        (16, "started", ""),
    ]
    assert [event.number for event in received[1:]] == list(range(16, 26))


def test_a_position_beyond_the_last_event_means_from_now_on() -> None:
    ring = EventStream()
    ring.publish(events(1, 3))
    assert asyncio.run(read_buffered(ring, 900)) == [format_heartbeat(3)]


@given(
    published=st.lists(st.integers(0, 40), max_size=12),
    read_counts=st.lists(st.integers(0, 4), max_size=12),
    capacity=st.integers(1, 30),
)
def test_received_and_lost_events_add_up_to_the_published_ones(
    published: list[int], read_counts: list[int], capacity: int
) -> None:
    async def listen() -> tuple[list[bytes], int]:
        ring, chunks = EventStream(capacity=capacity, heartbeat=0.0), []
        stream = ring.subscribe(0, ALL_EVENTS)
        for more, reads in zip(published, read_counts, strict=False):
            ring.publish(events(ring.last + 1, ring.last + more))
            chunks += [await anext(stream) for _ in range(reads)]
        ring.close()
        return [*chunks, *[chunk async for chunk in stream]], ring.last

    chunks, last = asyncio.run(listen())
    received = data(chunks)
    lost = sum(int(event.text.split()[0]) for event in received if event.kind == "lost")
    assert [event.number for event in received] == sorted(event.number for event in received)
    assert lost + sum(event.kind != "lost" for event in received) == last


def test_a_waiting_listener_receives_heartbeats_and_new_events() -> None:
    async def listen() -> list[bytes]:
        ring = EventStream(heartbeat=0.02)
        stream = ring.subscribe(None, ALL_EVENTS)
        chunks = [await anext(stream), await anext(stream)]
        waiting = asyncio.ensure_future(anext(stream))
        ring.publish(events(1, 2))
        chunks.append(await waiting)
        ring.close()
        ended = [chunk async for chunk in stream]
        assert set(ended) <= {format_heartbeat(2)}
        return chunks

    assert asyncio.run(listen()) == [
        format_heartbeat(0),
        format_heartbeat(0),
        b"".join(map(format_event, events(1, 2))),
    ]


def test_heartbeats_are_sent_while_all_new_events_are_filtered_out() -> None:
    async def listen() -> bytes:
        ring = EventStream(heartbeat=0.02)
        stream = ring.subscribe(None, msgspec.structs.replace(ALL_EVENTS, job="a-1"))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        while not waiting.done():
            ring.publish(events(ring.last + 1, ring.last + 1, job="b-2"))
            await asyncio.sleep(0.001)
        await stream.aclose()
        return waiting.result()

    assert asyncio.run(asyncio.wait_for(listen(), 10)).endswith(b"\n: here\n\n")


def test_events_of_other_tenants_are_sent_without_their_text() -> None:
    ring = EventStream()
    happened = [
        Event(1, 1.0, "failed", "a-1", 1, "exit status 1", "vision"),
        Event(2, 2.0, "failed", "b-2", 1, "exit status 2", "speech"),
        Event(3, 3.0, "drained", text="node here"),
    ]
    ring.publish(happened)
    reader = EventFilter(Caller("reader", "reader", "vision", "ada"))
    assert data(asyncio.run(read_buffered(ring, 0, reader))) == [
        happened[0],
        Event(2, 2.0, "failed", "b-2", 1, "", "speech"),
        happened[2],
    ]
    assert data(asyncio.run(read_buffered(ring, 0))) == happened


@pytest.mark.parametrize(
    ("event_filter", "expected"),
    [
        (msgspec.structs.replace(ALL_EVENTS, job="a-1"), [1, 3]),
        (msgspec.structs.replace(ALL_EVENTS, tenant="speech"), [2]),
        (msgspec.structs.replace(ALL_EVENTS, job="a-1", tenant="speech"), []),
    ],
)
def test_events_are_filtered_by_job_and_tenant(event_filter: EventFilter, expected: list[int]) -> None:
    ring = EventStream()
    ring.publish(
        [
            Event(1, 1.0, "started", "a-1", tenant="vision"),
            Event(2, 2.0, "started", "b-2", tenant="speech"),
            Event(3, 3.0, "finished", "a-1", tenant="vision"),
        ]
    )
    assert numbers(asyncio.run(read_buffered(ring, 0, event_filter))) == expected


def test_listeners_that_do_not_read_do_not_increase_memory_use() -> None:
    async def flood() -> tuple[int, list[Event]]:
        ring = EventStream(capacity=100)
        streams = [ring.subscribe(None, ALL_EVENTS) for _ in range(20)]
        for stream in streams:
            await anext(stream)

        def publish(batches: int) -> int:
            for _ in range(batches):
                ring.publish(events(ring.last + 1, ring.last + 50))
            return tracemalloc.get_traced_memory()[0]

        grown = -publish(20) + publish(400)
        first = [data([await anext(stream)])[0] for stream in streams]
        for stream in streams:
            await stream.aclose()
        assert ring.listeners == 0
        return grown, first

    tracemalloc.start()
    try:
        grown, first = asyncio.run(flood())
    finally:
        tracemalloc.stop()
    assert grown < 100_000  # 20,000 events of about 100 bytes passed through, for each of 20 listeners
    assert {(event.number, event.kind, event.text) for event in first} == {
        (20_900, "lost", "20900 events were dropped")
    }


def test_one_token_cannot_take_all_streams_unless_it_is_the_owners() -> None:
    async def subscribe(ring: EventStream, caller: Caller, count: int) -> int:
        """Return how many of these streams are open."""
        streams = [ring.subscribe(None, EventFilter(caller)) for _ in range(count)]
        opened = [await anext(stream, None) is not None for stream in streams]
        assert ring.is_full(caller) == (sum(opened) < count)
        return sum(opened)

    async def main() -> list[int]:
        ring = EventStream()
        callers = [Caller("ann", "member", "vision", "ann"), Caller("bob", "reader", "vision", "bob")]
        found = [await subscribe(ring, caller, MAX_LISTENERS_PER_TOKEN + 1) for caller in callers]
        return [*found, await subscribe(ring, ALL_EVENTS.caller, MAX_LISTENERS)]

    assert asyncio.run(main()) == [
        MAX_LISTENERS_PER_TOKEN,
        MAX_LISTENERS_PER_TOKEN,
        MAX_LISTENERS - 2 * MAX_LISTENERS_PER_TOKEN,
    ]


# Over HTTP

Message = dict[str, Any]


def make_scope(path: str, token: str, query: bytes = b"", **headers: str) -> Message:
    lines = {"host": "localhost", "authorization": f"Bearer {token}", **headers}
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query,
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in lines.items()],
    }


async def call_app(service: FakeService, scope: Any, sent: list[Message]) -> None:
    """Call the application with a request without a body; append the messages that it sends."""

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await make_app(service)(scope, receive, send)


async def get(service: FakeService, path: str, token: str, query: bytes = b"", **headers: str) -> tuple[int, bytes]:
    sent: list[Message] = []
    await call_app(service, make_scope(path, token, query, **headers), sent)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


def service_with_two_tenants() -> FakeService:
    service = FakeService()
    service.add(Submission("a", ["x"]), "vision")
    service.add(Submission("b", ["x"]), "speech")
    service.start("a-1")
    return service


def test_the_job_of_a_stream_may_be_named_by_id_name_or_number() -> None:
    for name in ("a-1", "a", "1"):
        status, body = asyncio.run(
            get(service_with_two_tenants(), "/api/v1/events", READER, b"since=0&follow=false&job=" + name.encode())
        )
        assert (status, numbers([body])) == (200, [1, 3])


def test_a_stream_of_an_unknown_job_is_not_found() -> None:
    status, _ = asyncio.run(get(service_with_two_tenants(), "/api/v1/events", READER, b"job=zzz"))
    assert status == 404


def test_the_last_event_id_header_resumes_a_stream() -> None:
    service = service_with_two_tenants()
    status, body = asyncio.run(get(service, "/api/v1/events", OTHER, b"since=0&follow=false", last_event_id="1"))
    assert status == 200
    assert [(event.number, event.text) for event in data([body])] == [(2, "b-2 submitted"), (3, "")]
    assert asyncio.run(get(service, "/api/v1/events", OTHER, last_event_id="x"))[0] == 422


def test_revoking_a_token_ends_its_streams() -> None:
    async def listen() -> list[bytes]:
        service = FakeService(event_stream=EventStream(heartbeat=3600.0))
        sent: list[Message] = []
        serving = asyncio.ensure_future(call_app(service, make_scope("/api/v1/events", READER), sent))
        while not service.event_stream.listeners:
            await asyncio.sleep(0)
        service.event_stream.publish(events(1, 1))
        while len(sent) < 3:
            await asyncio.sleep(0)
        await service.revoke_token(ALL_EVENTS.caller, "reader")
        service.event_stream.publish(events(2, 2))
        await serving
        return [message["body"] for message in sent[1:]]

    assert numbers(asyncio.run(asyncio.wait_for(listen(), 10))) == [1]


def test_waking_a_listener_that_may_no_longer_listen_ends_its_stream() -> None:
    async def listen() -> list[bytes]:
        ring, known = EventStream(heartbeat=3600.0), ["token"]
        stream = ring.subscribe(None, ALL_EVENTS, may_listen=lambda: bool(known))
        chunks = [await anext(stream)]
        waiting = asyncio.ensure_future(anext(stream, b"end"))
        await asyncio.sleep(0)
        known.clear()
        ring.wake()
        return [*chunks, await waiting]

    assert asyncio.run(asyncio.wait_for(listen(), 10)) == [format_heartbeat(0), b"end"]


def test_the_number_of_listeners_is_limited() -> None:
    service = service_with_two_tenants()
    service.event_stream._listeners["other"] = MAX_LISTENERS
    assert asyncio.run(get(service, "/api/v1/events", READER, b"follow=false"))[0] == 429


def test_a_listener_that_disconnects_is_removed() -> None:
    async def vanish() -> tuple[int, int]:
        service, gone = FakeService(), asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        serving = asyncio.ensure_future(make_app(service)(make_scope("/api/v1/events", READER), receive, send))
        while not service.event_stream.listeners:
            await asyncio.sleep(0)
        listened = service.event_stream.listeners
        gone.set()
        await serving
        return listened, service.event_stream.listeners

    assert asyncio.run(vanish()) == (1, 0)


def test_a_listener_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.server.http.asgi.LISTENER_TIMEOUT", 0.01)

    async def stall() -> int:
        service = FakeService()

        async def receive() -> Message:
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(3600)

        await make_app(service)(make_scope("/api/v1/events", READER), receive, send)
        return service.event_stream.listeners

    assert asyncio.run(stall()) == 0


def test_the_server_survives_listeners_that_stall_and_disconnect() -> None:
    request = (
        b"GET /api/v1/events?since=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % OWNER.encode()
    )
    with serve() as served:
        port = int(served.address.rpartition(":")[2])
        listeners = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        for listener in listeners:
            listener.sendall(request)
            assert listener.recv(12) == b"HTTP/1.1 200"
        for _ in range(40):  # far more than the ring and the socket buffers hold
            served.call(
                lambda: served.service.event_stream.publish(
                    events(served.service.event_stream.last + 1, served.service.event_stream.last + 500)
                )
            )
        for listener in listeners:
            listener.close()
        deadline = time.monotonic() + 10
        while served.service.event_stream.listeners and time.monotonic() < deadline:
            time.sleep(0.01)
        assert served.service.event_stream.listeners == 0


def test_a_listener_that_leaves_makes_room_for_one() -> None:
    ring, reader = EventStream(), EventFilter(Caller("reader", "reader", "default", "eve"))

    async def test() -> None:
        streams = [ring.subscribe(None, reader) for _ in range(MAX_LISTENERS_PER_TOKEN)]
        for stream in streams:
            await anext(stream)
        await streams.pop().aclose()
        assert ring.listeners == MAX_LISTENERS_PER_TOKEN - 1
        assert not ring.is_full(reader.caller)
        streams.append(ring.subscribe(None, reader))
        await anext(streams[-1])
        assert ring.is_full(reader.caller)
        for stream in streams:
            await stream.aclose()
        assert ring.listeners == 0

    asyncio.run(test())
