"""Nobody may ask so many costly questions that the others get no answers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from fake_service import OWNER as FAKE_OWNER, FakeService, make_app
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import PlanQuestion, PolicyQuestion, Submission, WhatIf, WhatIfOutcome
from refold.client.api.queries import Caller
from refold.errors import TooManyRequests
from refold.server import planner
from refold.server.planner import CostlyQuestions
from refold.server.start_forecasts import StartForecasts

ANN, BEN = (Caller(name, "reader", "default", name) for name in ("ann", "ben"))


def test_a_user_may_ask_a_few_at_a_time_and_others_as_well() -> None:
    questions = CostlyQuestions()
    with ExitStack() as asked:
        for _ in range(planner.MAX_OF_USER):
            asked.enter_context(questions.admit(ANN))
        with pytest.raises(TooManyRequests, match="4 costly questions of 'ann' are being answered"):
            asked.enter_context(questions.admit(ANN))
        asked.enter_context(questions.admit(BEN))
    with questions.admit(ANN):
        pass


def test_all_users_together_may_ask_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_OF_ALL", 1)
    questions = CostlyQuestions()
    with questions.admit(ANN), pytest.raises(TooManyRequests), questions.admit(BEN):
        pass


def test_a_preview_does_not_wait_for_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def compare(*_: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(StartForecasts, "compare", compare)
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            service, job = daemon.service, Submission("job", command=["true"])
            comparison = asyncio.ensure_future(service.whatif(ANN, WhatIf([job])))
            await asked.wait()
            assert (await asyncio.wait_for(service.preview(BEN, job), 10)).fits
            comparison.cancel()

    asyncio.run(main())


def test_each_costly_call_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_OF_USER", 0)

    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            service, job = daemon.service, Submission("job", command=["true"])
            for call in (
                service.preview(OWNER, job),
                service.whatif(OWNER, WhatIf([job])),
                service.compare_policies(OWNER, PolicyQuestion(["easy"])),
                service.preemption_outlook(OWNER),
                service.plan(OWNER, PlanQuestion("llama-2-7b", "H100", 8)),
            ):
                with pytest.raises(TooManyRequests):
                    await call

    asyncio.run(main())


def test_a_question_of_a_client_that_has_left_is_given_up() -> None:
    """Otherwise it would count among those of its user until it has been answered."""
    events: list[str] = []

    class Slow(FakeService):
        async def whatif(self, caller: Caller, question: WhatIf) -> WhatIfOutcome:
            events.append("asked")
            try:
                await asyncio.sleep(1000)
            finally:
                events.append("given up")
            raise AssertionError

    async def ask() -> None:
        body = msgspec.json.encode(WhatIf([Submission("train", ["true"])]))
        messages: list[dict[str, object]] = [{"type": "http.disconnect"}, {"type": "http.request", "body": body}]

        async def receive() -> dict[str, object]:
            await asyncio.sleep(0)
            return messages.pop()

        async def send(message: object) -> None:
            events.append(f"sent {message}")

        headers = {
            "host": "127.0.0.1:7170",
            "authorization": f"Bearer {FAKE_OWNER}",
            "content-type": "application/json",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/whatif",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await asyncio.wait_for(make_app(Slow())(scope, receive, send), 30)

    asyncio.run(ask())
    assert events == ["asked", "given up"]
