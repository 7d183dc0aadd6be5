"""The calls of one user do not take the event loop's time from those of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from api_requests import request
from fake_service import MEMBER, OTHER, OWNER, FakeService, make_app

from refold.client.api.queries import Caller
from refold.errors import TooManyRequests
from refold.server.http import loop_shares
from refold.server.http.loop_shares import BURST, MAX_WAIT, MAX_WAITING, REFUSAL_SECONDS, SHARE, LoopShares, Metered

ANN, BEN = Caller("a", "reader", "vision", "ann"), Caller("b", "member", "vision", "ben")
OWNER_CALLER = Caller("o", "owner", "vision", "ann")


class ManualTime:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def manual(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    found = ManualTime()
    monkeypatch.setattr(asyncio, "sleep", found.sleep)
    return found


def wait_of(manual: ManualTime, shares: LoopShares, caller: Caller) -> float:
    """Return how long a call has to wait."""
    before = manual.now
    asyncio.run(shares.wait_for_turn(caller))
    return manual.now - before


def test_a_user_that_has_used_more_than_its_share_waits_and_others_do_not(manual: ManualTime) -> None:
    shares = LoopShares(lambda: manual.now)
    shares.charge(ANN, 0.4)
    assert wait_of(manual, shares, ANN) == 0
    shares.charge(ANN, 2.0)
    assert [wait_of(manual, shares, caller) for caller in (BEN, OWNER_CALLER)] == [0, 0]
    assert wait_of(manual, shares, ANN) == pytest.approx(2.4 / SHARE - BURST)
    manual.now += 100.0
    shares.charge(ANN, 0.4)
    assert wait_of(manual, shares, ANN) == 0


def test_a_call_that_would_wait_for_long_is_refused_after_a_pause(manual: ManualTime) -> None:
    shares = LoopShares(lambda: manual.now)
    shares.charge(ANN, SHARE * (MAX_WAIT + BURST + 5.0))
    before = manual.now
    with pytest.raises(TooManyRequests, match="calls of user 'ann' take more than 50% of the daemon's time"):
        asyncio.run(shares.wait_for_turn(ANN))
    assert manual.now - before == REFUSAL_SECONDS
    shares.charge(OWNER_CALLER, 1000.0)
    assert wait_of(manual, shares, OWNER_CALLER) == 0


def test_only_so_many_calls_of_a_user_wait() -> None:
    shares = LoopShares()
    shares.charge(ANN, SHARE * 10.0)

    async def call_often() -> list[bool]:
        calls = [asyncio.create_task(shares.wait_for_turn(ANN)) for _ in range(MAX_WAITING + 3)]
        ended, waiting = await asyncio.wait(calls, timeout=5.0, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.sleep(0)
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await shares.wait_for_turn(BEN)
        return [isinstance(call.exception(), TooManyRequests) for call in ended]

    assert set(asyncio.run(call_often())) == {True}


def test_the_time_of_a_call_is_that_in_which_nothing_else_happens() -> None:
    async def work() -> str:
        busy()
        await asyncio.sleep(0.2)
        busy()
        return "done"

    def busy() -> None:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass

    async def measure(do: Callable[[], Awaitable[str]]) -> tuple[str, float]:
        metered = Metered(do())
        return await metered, metered.seconds

    result, seconds = asyncio.run(measure(work))
    assert result == "done"
    assert seconds >= 0.04


def test_a_call_can_be_cancelled_and_may_handle_that() -> None:
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def cancel() -> None:
        async def metered() -> None:
            await Metered(work())

        task = asyncio.create_task(metered())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert cleaned == [True]


def test_calls_of_a_user_beyond_its_share_are_refused_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_WAIT", "REFUSAL_SECONDS", "BURST"):
        monkeypatch.setattr(loop_shares, name, 0.0)
    monkeypatch.setattr(loop_shares, "SHARE", 1e-9)
    app = make_app()
    assert [request(app, "GET", "/api/v1/info", token=MEMBER).status for _ in range(2)] == [200, 429]
    assert request(app, "GET", "/api/v1/info", token=OTHER).status == 200
    assert [request(app, "GET", "/api/v1/info", token=OWNER).status for _ in range(2)] == [200, 200]


def test_a_token_that_is_revoked_while_a_call_waits_is_not_valid_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()

    async def revoke(*_: object) -> None:
        service.stored_tokens.clear()

    monkeypatch.setattr(LoopShares, "wait_for_turn", revoke)
    answer = request(make_app(service), "GET", "/api/v1/info", token=MEMBER)
    assert (answer.status, answer.problem.error.partition(",")[0]) == (401, "the token was revoked")
