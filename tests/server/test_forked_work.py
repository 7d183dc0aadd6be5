"""Work in a copy of the process: its result comes back, it changes nothing here, and its failure is not ours."""

import asyncio
import os
from pathlib import Path

import pytest

from refold.server.forked_work import LIMIT_SECONDS, ForkedWork, WorkHere


@pytest.mark.parametrize("runner", [ForkedWork(), WorkHere()])
def test_the_result_comes_back(runner: ForkedWork | WorkHere) -> None:
    outcome = asyncio.run(runner.run(lambda: list(range(100_000))))
    assert outcome.result == list(range(100_000))
    assert 0 <= outcome.seconds < LIMIT_SECONDS


def test_the_copy_changes_nothing_and_holds_no_files(tmp_path: Path) -> None:
    counted: list[int] = []
    with (tmp_path / "open").open("w") as file:

        def work() -> bool:
            counted.append(1)
            try:
                os.fstat(file.fileno())
            except OSError:
                return True
            return False

        assert asyncio.run(ForkedWork().run(work)).result
        assert counted == []
        assert not file.closed
        file.write("still open")


def test_a_failure_gives_no_result() -> None:
    outcome = asyncio.run(ForkedWork().run(lambda: 1 // 0))
    assert (outcome.result, outcome.seconds) == (None, LIMIT_SECONDS)


def test_a_copy_whose_result_nobody_waits_for_is_ended() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ForkedWork().run(lambda: [None for _ in iter(int, 1)])

    asyncio.run(main())
