"""Screens that are refreshed until interrupted."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from refold.cli.views import screen
from refold.cli.views.output import print_line
from refold.errors import NoDaemon


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The durations of the calls of `sleep`; the third call interrupts."""
    durations: list[float] = []

    def sleep(seconds: float) -> None:
        durations.append(seconds)
        if len(durations) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(screen, "sleep", sleep)
    return durations


def refresh_until_interrupted(paint: object, out: StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(KeyboardInterrupt):
        screen.refresh_screen(paint, 0.5)  # type: ignore[arg-type]
    return out.getvalue()


def test_on_a_terminal_lines_are_overwritten_in_place(sleeps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setenv("COLUMNS", "80")

    def paint() -> None:
        print_line(f"screen {len(sleeps) + 1}")
        print_line("stderr", err=True)
        for _ in range(3):
            print_line("more")

    written = refresh_until_interrupted(paint, Terminal(), monkeypatch)
    one = "\x1b[Hscreen {}\x1b[K\nstderr\x1b[K\nmore\x1b[K\n\x1b[J"
    assert written.replace("\x1b[0m", "") == "".join(one.format(number) for number in (1, 2, 3))
    assert sleeps == [0.5, 0.5, 0.5]


def test_without_a_terminal_screens_are_printed_one_after_the_other(
    sleeps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refresh_until_interrupted(lambda: print_line("a screen"), StringIO(), monkeypatch) == "a screen\n" * 3


def test_a_daemon_that_stops_answering_is_retried(sleeps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def paint() -> None:
        if len(sleeps) == 1:
            raise NoDaemon("no daemon answers at http://127.0.0.1:1")
        print_line("there")

    written = refresh_until_interrupted(paint, StringIO(), monkeypatch)
    assert written == "there\nno daemon answers at http://127.0.0.1:1 (retrying)\nthere\n"


def test_a_daemon_that_never_answered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def paint() -> None:
        raise NoDaemon("no daemon")

    with pytest.raises(NoDaemon):
        screen.refresh_screen(paint, 0.5)
