"""Answers that take long: computed in two processes, and kept under build/ until something they depend on changes.

An answer is known by a hash of what was asked and of the sources it depends on: the nouns, the packing, whatever
else the asker names, and its own module. So a second run takes no time, and after a change all of them run again.
"""

from __future__ import annotations

import hashlib
import inspect
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.measure import REPOSITORY

KEPT = REPOSITORY / "build" / "placement"
PROCESSES = 2
SOURCES = ("src/refold/model/*.py", "src/refold/packing/*.py", "benchmarks/placement/world.py")

Asked = TypeVar("Asked", bound=msgspec.Struct)
Answer = TypeVar("Answer", bound=msgspec.Struct)


def answers(
    work: Callable[[Asked], Answer], questions: Iterable[Asked], kind: type[Answer], sources: Sequence[str] = ()
) -> dict[Asked, Answer]:
    """What `work` says to each question; progress is told on stderr."""
    wanted = list(dict.fromkeys(questions))
    stamp = _stamp((*SOURCES, *sources, _source_of(work)))
    paths = {question: _path(question, stamp) for question in wanted}
    found = {
        question: msgspec.json.decode(path.read_bytes(), type=kind) for question, path in paths.items() if path.exists()
    }
    missing = [question for question in wanted if question not in found]
    for done, (question, answer) in enumerate(_computed(work, missing), start=1):
        found[question] = answer
        KEPT.mkdir(parents=True, exist_ok=True)
        paths[question].write_bytes(msgspec.json.encode(answer))
        say(f"{done}/{len(missing)}  {question}")
    return {question: found[question] for question in wanted}


def _computed(work: Callable[[Asked], Answer], questions: Sequence[Asked]) -> Iterable[tuple[Asked, Answer]]:
    if len(questions) <= 1:
        yield from ((question, work(question)) for question in questions)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        begun = {pool.submit(work, question): question for question in questions}
        for answer in as_completed(begun):
            yield begun[answer], answer.result()


def say(text: str) -> None:
    """Progress, where it does not disturb what is printed."""
    print(text, file=sys.stderr, flush=True)


def _source_of(work: Callable[..., Any]) -> str:
    """The file that holds it, also where it is run as a program and its module is called otherwise."""
    return str(Path(inspect.getfile(work)).resolve().relative_to(REPOSITORY))


def _path(question: msgspec.Struct, stamp: str) -> Path:
    name = type(question).__name__.lower()
    known = hashlib.sha256(msgspec.json.encode(question) + stamp.encode()).hexdigest()
    return KEPT / f"{name}-{known[:20]}.json"


@cache
def _stamp(patterns: tuple[str, ...]) -> str:
    files = sorted({path for pattern in patterns for path in REPOSITORY.glob(pattern)})
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
