"""The same screenful again and again."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from refold.cli.views import screen
from refold.cli.views.output import say
from refold.errors import NoDaemon


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited after each look; after the third somebody interrupts."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(screen, "sleep", sleep)
    return waited


def painted(paint: object, out: StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(KeyboardInterrupt):
        screen.paint_again(paint, 0.5)  # type: ignore[arg-type]
    return out.getvalue()


def test_on_a_terminal_lines_are_replaced_in_place(looks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setenv("COLUMNS", "80")

    def paint() -> None:
        say(f"look {len(looks) + 1}")
        say("beside", err=True)
        for _ in range(3):
            say("more")

    written = painted(paint, Terminal(), monkeypatch)
    one = "\x1b[Hlook {}\x1b[K\nbeside\x1b[K\nmore\x1b[K\n\x1b[J"
    assert written.replace("\x1b[0m", "") == "".join(one.format(number) for number in (1, 2, 3))
    assert looks == [0.5, 0.5, 0.5]


def test_elsewhere_one_is_printed_after_the_other(looks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert painted(lambda: say("a look"), StringIO(), monkeypatch) == "a look\n" * 3


def test_a_daemon_that_goes_away_is_expected_back(looks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def paint() -> None:
        if len(looks) == 1:
            raise NoDaemon("no daemon answers at http://127.0.0.1:1")
        say("there")

    written = painted(paint, StringIO(), monkeypatch)
    assert written == "there\nno daemon answers at http://127.0.0.1:1 (looking again)\nthere\n"


def test_a_daemon_that_was_never_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def paint() -> None:
        raise NoDaemon("nobody")

    with pytest.raises(NoDaemon):
        screen.paint_again(paint, 0.5)
