"""Leases: one holder at a time, takeover, and no changes without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from fake_api_server import FakeApiServer, Refusal, allow_all

from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.leadership import Holder, Lease, this_process

PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/refold"
WAIT = 10.0


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    found = FakeApiServer()
    yield found
    found.stop()
    while CLIENTS:
        CLIENTS.pop().close()


CLIENTS: list[ApiServer] = []
"""To be closed after each test."""


def make_lease(server: FakeApiServer, place: str, duration: float = 1000.0, process: str = "1") -> Lease:
    CLIENTS.append(ApiServer(Access(server.address, None), retry_for=0.0))
    return Lease(CLIENTS[-1], "default", "refold", Holder(place, process), duration=duration)


def wait_until(lease: Lease, *, held: bool) -> None:
    deadline = time.monotonic() + WAIT
    while lease.is_held != held:
        assert time.monotonic() < deadline


def holder(server: FakeApiServer) -> str:
    return str(server.objects[PATH]["spec"]["holderIdentity"])


def test_a_lease_has_one_holder(server: FakeApiServer) -> None:
    first, second = make_lease(server, "a"), make_lease(server, "b")
    assert (first.is_held, first.other_holder()) == (False, "")
    assert first.try_acquire()
    assert not second.try_acquire()
    assert (first.is_held, second.is_held, second.other_holder(), holder(server)) == (True, False, "a_1", "a_1")


def test_a_lease_counts_how_often_its_holder_has_changed(server: FakeApiServer) -> None:
    """As `kubectl describe lease` shows it: the first holder and renewals are no change."""

    def changes_after(lease: Lease) -> int:
        assert lease.try_acquire()
        return int(server.objects[PATH]["spec"]["leaseTransitions"])

    first, second = make_lease(server, "a"), make_lease(server, "b")
    assert [changes_after(first), changes_after(first)] == [0, 0]
    first.release()
    assert changes_after(second) == 1


def test_of_many_that_take_it_at_the_same_time_one_gets_it(server: FakeApiServer) -> None:
    leases = [make_lease(server, name) for name in "abcdefgh"]
    barrier = threading.Barrier(len(leases))

    def take(lease: Lease) -> None:
        barrier.wait()
        lease.try_acquire()

    threads = [threading.Thread(target=take, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lease.is_held for lease in leases].count(True) == 1


def test_a_lease_that_is_not_renewed_is_taken_over_and_its_holder_changes_nothing_any_more(
    server: FakeApiServer,
) -> None:
    first, second = make_lease(server, "a", duration=1.0), make_lease(server, "b", duration=1.0)
    assert first.try_acquire()
    held_until = time.monotonic() + WAIT
    while not second.try_acquire():
        assert time.monotonic() < held_until
    assert not first.is_held
    guarded = ApiServer(Access(server.address, None), retry_for=0.0, guard=first.check)
    CLIENTS.append(guarded)
    guarded.call("GET", "/version")
    with pytest.raises(ApiError, match="the Lease default/refold is not held") as caught:
        guarded.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}})
    assert caught.value.is_transient
    assert server.pods() == []
    assert server.objects[PATH]["spec"]["leaseTransitions"] == 1


def test_a_lease_that_is_released_is_free_at_once(server: FakeApiServer) -> None:
    first, second = make_lease(server, "a"), make_lease(server, "b")
    assert first.try_acquire()
    first.release()
    assert not first.is_held
    assert second.try_acquire()


def test_a_holder_renews_its_lease_and_learns_that_another_has_it(server: FakeApiServer) -> None:
    lease, lost = make_lease(server, "a", duration=0.3), Queue[str]()
    assert lease.try_acquire()
    lease.hold(lost.put)
    first = server.objects[PATH]["spec"]["renewTime"]
    deadline = time.monotonic() + WAIT
    while server.objects[PATH]["spec"]["renewTime"] == first:
        assert time.monotonic() < deadline
    spec = {"holderIdentity": "b_1", "leaseDurationSeconds": 1000}
    server.api.patch(PATH, {"spec": spec})
    assert lost.get(timeout=WAIT) == "b_1"
    assert not lease.is_held
    lease.release()
    assert holder(server) == "b_1"


@pytest.mark.parametrize(("method", "status"), [("PUT", 409), ("GET", 0)])
def test_a_conflict_or_an_api_server_that_does_not_answer_is_not_the_loss_of_a_lease(
    server: FakeApiServer, method: str, status: int
) -> None:
    lease, lost = make_lease(server, "a", duration=0.3), Queue[str]()
    assert lease.try_acquire()
    server.refuse = lambda asked, _: Refusal(status) if asked == method else None
    lease.hold(lost.put)
    wait_until(lease, held=False)
    server.refuse = allow_all
    wait_until(lease, held=True)
    assert lost.empty()
    lease.release()


def test_no_lease_is_taken_over_because_the_api_server_has_not_answered(server: FakeApiServer) -> None:
    """Its holder could not renew it either; it needs a moment to do so afterwards."""
    first, second = make_lease(server, "a"), make_lease(server, "b")
    assert first.try_acquire()
    server.api.patch(PATH, {"spec": {"leaseDurationSeconds": 1}})
    assert not second.try_acquire()
    server.refuse = lambda *_: Refusal(0)
    time.sleep(1.1)
    with pytest.raises(ApiError):
        second.try_acquire()
    server.refuse = allow_all
    assert not second.try_acquire()
    time.sleep(1.1)
    assert second.try_acquire()


def test_a_lease_that_another_had_meanwhile_is_lost_even_if_it_is_free_again(server: FakeApiServer) -> None:
    lease, lost = make_lease(server, "a", duration=0.3), Queue[str]()
    assert lease.try_acquire()
    server.api.patch(PATH, {"spec": {"holderIdentity": "", "leaseTransitions": 2}})
    lease.hold(lost.put)
    assert lost.get(timeout=WAIT) == ""
    assert not lease.is_held
    lease.release()


def test_the_next_process_of_a_machine_need_not_wait_if_the_one_before_has_ended(server: FakeApiServer) -> None:
    assert make_lease(server, "a", process="1").try_acquire()
    following = make_lease(server, "a", process="2")
    assert not following.try_acquire(lambda: False)
    assert not make_lease(server, "ab", process="2").try_acquire(lambda: True)
    assert following.try_acquire(lambda: True)


def test_holders_are_processes_of_a_state_folder_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "refold-0")
    one, other, elsewhere = this_process(Path("/a")), this_process(Path("/a")), this_process(Path("/b"))
    assert one.place == other.place != elsewhere.place
    assert one.process != other.process
    assert one.place.startswith("refold-0_")
