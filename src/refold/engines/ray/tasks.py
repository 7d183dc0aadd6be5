"""Do the same work for many items on a Ray cluster. Items whose worker or node is lost are repeated."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from refold.errors import MissingExtra, RefoldError
from refold.model import Seconds

MAX_RETRIES = 5
"""How often an item is repeated after the loss of its worker."""

POLL_SECONDS: Seconds = 0.2
"""Interval at which progress is read, and at which workers report it at most."""

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Work(Protocol[S_contra, T_contra, R_co]):
    """What is done for an item: a function of a module, since workers import it by name."""

    def __call__(self, shared: S_contra, item: T_contra, advance: Callable[..., None], /) -> R_co:
        """Return the result. `advance(amount=1.0)` is called with the progress since the last call."""


class WorkersLost(RefoldError):
    """The workers of an item were lost again and again."""


def load_ray(feature: str) -> Any:
    """Import Ray. Raises MissingExtra if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report usage of clusters that it starts
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a call without a connection would start a cluster
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtra(feature, "ray") from None


@contextmanager
def connected(ray: Any, address: str | None = None, python_path: Path | None = None) -> Iterator[None]:
    """Connect to a cluster: at this address, that of `RAY_ADDRESS`, or this machine's, started if there is none.

    `python_path`: a folder from which workers import modules, besides their own.
    """
    connect_ray(ray, address, python_path)
    try:
        yield
    finally:
        ray.shutdown()


def connect_ray(ray: Any, address: str | None, python_path: Path | None = None) -> None:
    """Connect to a cluster. Raises RefoldError."""
    variables = {} if python_path is None else {"env_vars": {"PYTHONPATH": str(python_path)}}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            namespace="refold",
            runtime_env=variables or None,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RefoldError(f"cannot connect to Ray: {error}") from None


class RayTasks:
    """Does work for many items on a cluster that Ray is connected to, each on one CPU."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def map(
        self, work: Work[S, T, R], shared: S, items: Sequence[T], advance: Callable[[float], None] = lambda _: None
    ) -> list[R]:
        """Return the results in the order of the items. `advance` is called with the progress of all of them.

        After an error the other items go on until the connection ends. They are not cancelled: Ray 2.60 aborts a
        process that cancels a task at the moment of its end ("Tried to complete task that was not pending").
        """
        ray = self._ray
        counter = ray.remote(num_cpus=0, max_restarts=-1)(_Counter).remote()
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES, retry_exceptions=False)(_work_for)
        data = ray.put(pickle.dumps(shared))
        found = [
            task.remote(version("refold"), work, data, pickle.dumps(item), counter, number)
            for number, item in enumerate(items)
        ]
        reported = self._wait(found, counter, advance)
        results = [self._get(ref) for ref in found]
        advance(sum(done for _, done in results) - reported)
        return [pickle.loads(result) for result, _ in results]

    def _wait(self, found: Sequence[Any], counter: Any, advance: Callable[[float], None]) -> float:
        """Wait until all work is done or some of it has failed; return the progress that was shown.

        That of repeated items is not shown twice.
        """
        ray, reported, pending = self._ray, 0.0, list(found)
        while pending:
            ended, pending = ray.wait(pending, num_returns=1, timeout=POLL_SECONDS)
            for ref in ended:
                self._get(ref)
            try:
                done = ray.get(counter.total.remote(), timeout=POLL_SECONDS)
            except ray.exceptions.RayError:  # it starts again on another node
                continue
            if done > reported:
                advance(done - reported)
                reported = done
        return reported

    def _get(self, ref: Any) -> tuple[bytes, float]:
        """Return a result, and its progress. It is bytes, since arrays would remain in Ray's memory."""
        errors = self._ray.exceptions
        try:
            result: tuple[bytes, float] = self._ray.get(ref)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, RefoldError) else error.as_instanceof_cause() from None
        except errors.RayError as error:
            raise WorkersLost(
                f"a worker of Ray was lost {MAX_RETRIES + 1} times, possibly for lack of memory: {error}"
            ) from None
        return result


class _Counter:
    """The progress of each item, in a process of the cluster."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}

    def set(self, number: int, done: float) -> None:
        self._done[number] = done

    def total(self) -> float:
        return sum(self._done.values())


def _work_for(
    driver_version: str, work: Work[Any, Any, Any], shared: bytes, item: bytes, counter: Any, number: int
) -> tuple[bytes, float]:
    """Do the work for one item, in a worker; return the result and its progress."""
    if (found := version("refold")) != driver_version:
        raise RefoldError(f"node {os.uname().nodename} has refold {found}; all nodes need {driver_version}")
    done, told_at = 0.0, 0.0

    def advance(amount: float = 1.0) -> None:
        nonlocal done, told_at
        done += amount
        if time.monotonic() >= told_at + POLL_SECONDS:
            told_at = time.monotonic()
            counter.set.remote(number, done)

    result = pickle.dumps(work(pickle.loads(shared), pickle.loads(item), advance))
    return result, done
