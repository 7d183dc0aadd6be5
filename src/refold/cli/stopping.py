"""Commands that run for long and keep their results: how they end on Ctrl-C and on SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from refold.cli.views import print_line
from refold.cli.worker_processes import Terminated, terminable

INTERRUPTED = 130


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """On Ctrl-C, SIGTERM and SIGHUP, end what is inside, print one line, and exit with the conventional status."""
    import typer

    with terminable():
        try:
            yield
        except KeyboardInterrupt as interrupt:
            print_line(f"stopped; {message}", err=True)
            raise typer.Exit(interrupt.status if isinstance(interrupt, Terminated) else INTERRUPTED) from None
