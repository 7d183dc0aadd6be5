"""Processes of this machine that apply a function to items, and end with the process that started them.

They are ended when the block that uses them is left: at its end, on an error, on Ctrl-C and on SIGTERM. If their parent
is killed without a chance to do so, they notice it, and end by themselves.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from refold.cli.views import print_line
from refold.errors import RefoldError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from types import FrameType


Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
"""Interval at which the progress of other processes is read."""

TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


Report = Callable[..., None]
"""A function that is called with the amount of work that has been done since the last call."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than that of Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C raises KeyboardInterrupt, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    defaults = [number for number in TERMINATING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def raise_terminated(number: int, _frame: FrameType | None) -> None:
        for other in defaults:
            signal.signal(other, signal.SIG_IGN)  # once is enough: another would interrupt the ending of the workers
        raise Terminated(number)

    for number in defaults:
        signal.signal(number, raise_terminated)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


class WorkerProcesses(Generic[Shared]):
    """Processes that apply a function to items. Each has a copy of a value that all items share, such as a workload."""

    def __init__(self, pool: ProcessPoolExecutor, done: Any) -> None:
        self._pool, self._done = pool, done

    def map(
        self, function: Callable[[Shared, Item, Report], Result], items: Sequence[Item], report: Report = lambda _: None
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number and the result of each item as soon as it is there; the first error is raised."""
        from concurrent.futures import FIRST_COMPLETED, wait

        with _interrupts_blocked():  # the first item starts the processes, which inherit this
            numbers: dict[Future[Result], int] = {
                self._pool.submit(_apply, function, item): number for number, item in enumerate(items)
            }
        pending, reported = set(numbers), self._done.value
        while pending:
            ended, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            report(self._done.value - reported)
            reported = self._done.value
            for future in sorted(ended, key=numbers.__getitem__):
                yield numbers[future], future.result()


@contextmanager
def worker_processes(shared: Shared, processes: int, option: str) -> Iterator[WorkerProcesses[Shared]]:
    """Start worker processes, and end them when the block is left; `option` sets their number."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    # Spawn, do not fork: this process has threads, and a fork would copy their locks.
    context = get_context("spawn")
    done = context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, context, _initialise_process, (shared, done))
    with terminable():
        try:
            yield WorkerProcesses(pool, done)
        except BaseException as error:
            for process in active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RefoldError(
                    f"a worker process was killed, possibly for lack of memory; try fewer {option}"
                ) from None
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in processes that are started here: they are sent it too, and leave it to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_PROCESS_STATE: list[Any] = []
"""State of a worker process: the shared value, sent once, and the counter of the progress of all processes."""


def _initialise_process(shared: Any, done: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _PROCESS_STATE[:] = [shared, done]


def _end_with_parent() -> None:
    """Wait until the parent process has ended, and end this one: the queue of items does not tell."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _apply(function: Callable[[Any, Item, Report], Result], item: Item) -> Result:
    shared, done = _PROCESS_STATE

    def report(amount: float = 1.0) -> None:
        with done.get_lock():
            done.value += int(amount)

    return function(shared, item, report)


# Commands that run for long and keep their results: how they end on Ctrl-C and on SIGTERM.

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
