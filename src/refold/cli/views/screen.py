"""Refresh a screen periodically until interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from typing import NoReturn

from refold.cli.views.output import print_line
from refold.errors import NoDaemon

CURSOR_HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class _TerminalBuffer(StringIO):
    """A buffer that counts as a terminal, so that output has colours and the width of the terminal."""

    def isatty(self) -> bool:
        return True


def refresh_screen(paint: Callable[[], None], every: float) -> NoReturn:
    """Call `paint`, which prints, every `every` seconds. On a terminal lines are overwritten in place, without flicker.

    If the daemon stops answering after the first time, retry.
    """
    print_screen = paint
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_render(print_screen))
        else:
            print_screen()
        sys.stdout.flush()
        sleep(every)
        print_screen = partial(_paint_or_retry, paint)


def _paint_or_retry(paint: Callable[[], None]) -> None:
    try:
        paint()
    except NoDaemon as error:
        print_line(f"{error} (retrying)")


def _render(paint: Callable[[], None]) -> str:
    """Return the escape sequences that draw one screen; lines that do not fit are cut off, so that nothing scrolls."""
    from shutil import get_terminal_size

    with redirect_stdout(_TerminalBuffer()) as printed, redirect_stderr(printed):
        paint()
    lines = printed.getvalue().rstrip("\n").split("\n")[: get_terminal_size().lines - 1]
    return CURSOR_HOME + "".join(f"{line}{ERASE_LINE}\n" for line in lines) + ERASE_BELOW


def sleep(seconds: float) -> None:
    """Sleep; tests replace this function."""
    from time import sleep

    sleep(seconds)
