"""Which connections may stay."""

from __future__ import annotations

from refold.server.config import HttpConfig
from refold.server.network import (
    ConnectionLimits,
    ConnectionTable,
    describe_fewer_connections,
    limits_for,
    make_http_server,
)


class FakeConnection:
    """A connection that records whether it was dropped."""

    def __init__(self, address: str = "a") -> None:
        self.address = address
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def table(total: int = 4, per_address: int = 2) -> ConnectionTable:
    return ConnectionTable(ConnectionLimits(total, per_address))


def admit(connections: ConnectionTable, *addresses: str) -> list[FakeConnection]:
    found = [FakeConnection(address) for address in addresses]
    for connection in found:
        assert connections.admit(connection)
    return found


def test_an_address_at_its_limit_replaces_the_connection_that_has_idled_longest() -> None:
    connections = table()
    first, second, other = admit(connections, "a", "a", "b")
    connections.mark_busy(first)
    connections.mark_idle(first)  # idles since later than the second
    admit(connections, "a")
    assert [each.is_dropped for each in (first, second, other)] == [False, True, False]
    assert (len(connections), connections.dropped, connections.refused) == (3, 1, 0)


def test_an_address_whose_connections_are_all_busy_gets_no_more_and_others_do() -> None:
    connections = table()
    for connection in admit(connections, "a", "a"):
        connections.mark_busy(connection)
    assert not connections.admit(FakeConnection("a"))
    admit(connections, "b")
    assert (len(connections), connections.dropped, connections.refused) == (3, 0, 1)


def test_the_total_is_limited() -> None:
    connections = table()
    found = admit(connections, "a", "a", "b", "b")
    for connection in found[:3]:
        connections.mark_busy(connection)
    (new,) = admit(connections, "c")
    assert [each.is_dropped for each in found] == [False, False, False, True]
    connections.mark_busy(new)
    assert not connections.admit(FakeConnection("d"))
    assert len(connections) == 4


def test_connections_of_a_unix_socket_have_no_address_and_are_limited_in_total_only() -> None:
    connections = table()
    admit(connections, "", "", "", "")
    assert connections.dropped == 0


def test_a_connection_that_was_closed_makes_room_once() -> None:
    connections = table(total=1, per_address=1)
    (first,) = admit(connections, "a")
    connections.mark_busy(first)
    refused = FakeConnection("a")
    assert not connections.admit(refused)
    connections.remove(refused)
    assert len(connections) == 1
    connections.remove(first)
    connections.remove(first)
    assert len(connections) == 0
    connections.mark_idle(first)  # its answer ends after it was closed
    admit(connections, "a")
    assert not first.is_dropped


def test_connections_leave_descriptors_for_runs() -> None:
    found = [limits_for(descriptors, HttpConfig()) for descriptors in (64, 256, 1_024, 1_048_576)]
    assert [(limits.total, limits.per_address, limits.backlog) for limits in found] == [
        (16, 16, 16),
        (64, 32, 64),
        (640, 320, 256),
        (1_024, 512, 512),
    ]


def test_limits_are_as_configured() -> None:
    assert limits_for(65_536, HttpConfig(connections=100)) == ConnectionLimits(total=100, per_address=50)
    assert limits_for(65_536, HttpConfig()) == ConnectionLimits()


def test_the_time_between_requests_may_be_a_fraction_of_a_second() -> None:
    limits = ConnectionLimits(idle_seconds=0.4)
    assert make_http_server(None, limits, ConnectionTable(limits)).config.timeout_keep_alive == 0.4


def test_more_connections_than_descriptors_allow_are_not_possible() -> None:
    config = HttpConfig(connections=2_000)
    limits = limits_for(1_024, config)
    assert (limits.total, limits.per_address) == (640, 320)
    assert describe_fewer_connections(limits, config) == (
        "http.connections is 2,000, but only 640 are possible with the limit of file descriptors (ulimit -n)"
    )
    assert describe_fewer_connections(limits_for(65_536, config), config) == ""
    assert describe_fewer_connections(limits_for(64, HttpConfig()), HttpConfig()) == ""
