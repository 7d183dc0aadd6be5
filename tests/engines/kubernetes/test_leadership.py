"""A daemon that waits to take over waits through failures of the API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_api_server import FakeApiServer, Refusal, allow_all

from refold.engines.kubernetes import leadership
from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.leadership import Leadership
from refold.errors import BadInput

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
TIMEOUT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "ATTEMPT_PAUSE", 0.01)
    monkeypatch.setattr(leadership, "RETRY_FOR", 0.0)


def create_lease(server: FakeApiServer, holder: str) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 1000}
    server.api.create(LEASES, {"kind": "Lease", "metadata": {"name": "refold"}, "spec": spec})


def test_an_api_server_that_fails_does_not_end_a_daemon_that_waits(fake_server: FakeApiServer, tmp_path: Path) -> None:
    create_lease(fake_server, "other_1")
    refused = 0

    def refuse(_: str, path: str) -> Refusal | None:
        nonlocal refused
        refused += path.startswith(LEASES)
        return Refusal(503) if path.startswith(LEASES) else None

    async def wait() -> str:
        waiting = asyncio.Event()
        daemon = Leadership(Access(fake_server.address, None), "default", tmp_path, asyncio.Event())
        task = asyncio.create_task(daemon.acquire(True, lambda _: waiting.set()))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await waiting.wait()
            fake_server.refuse = refuse
            while refused < 3:
                assert not task.done()
                await asyncio.sleep(0.01)
            fake_server.refuse = allow_all
            fake_server.api.patch(f"{LEASES}/refold", {"spec": {"holderIdentity": ""}})
            found = await task
            await daemon.release()
        return found

    assert asyncio.run(wait())


def test_a_daemon_that_cannot_read_the_lease_at_its_start_says_so(fake_server: FakeApiServer, tmp_path: Path) -> None:
    fake_server.refuse = lambda *_: Refusal(503)

    async def start() -> None:
        daemon = Leadership(Access(fake_server.address, None), "default", tmp_path, asyncio.Event())
        try:
            await daemon.acquire(True, lambda _: None)
        finally:
            await daemon.release()

    with pytest.raises(BadInput, match="cannot be acquired"):
        asyncio.run(start())
    fake_server.refuse = allow_all
