"""The same screenful again and again, painted over the last one, until interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from typing import NoReturn

from refold.cli.views.output import say

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class _Screenful(StringIO):
    """What is printed meanwhile, with colours and as wide as the terminal that it is for."""

    def isatty(self) -> bool:
        return True


def paint_again(paint: Callable[[], None], every: float) -> NoReturn:
    """Print what `paint` prints, every so many seconds. On a terminal nothing flickers: lines are replaced in place.

    A daemon that was there and does not answer now is expected back.
    """
    look = paint
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_screenful(look))
        else:
            look()
        sys.stdout.flush()
        sleep(every)
        look = partial(_patiently, paint)


def _patiently(paint: Callable[[], None]) -> None:
    from refold.errors import NoDaemon

    try:
        paint()
    except NoDaemon as gone:
        say(f"{gone} (looking again)")


def _screenful(paint: Callable[[], None]) -> str:
    """One screenful: what is below the last line of the screen is left out, or it would scroll."""
    from shutil import get_terminal_size

    with redirect_stdout(_Screenful()) as printed, redirect_stderr(printed):
        paint()
    lines = printed.getvalue().rstrip("\n").split("\n")[: get_terminal_size().lines - 1]
    return HOME + "".join(f"{line}{REST_OF_LINE}\n" for line in lines) + REST_OF_SCREEN


def sleep(seconds: float) -> None:
    """Wait, in a place where a test need not."""
    from time import sleep

    sleep(seconds)
