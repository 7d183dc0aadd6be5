"""Expensive results, computed in two processes and cached under build/.

The cache key of a result is a hash of the case and of the source files on which it depends: the model and packing
folders, the module that computes it, and further files that the caller names. A second run takes no time; after a
change, all results are computed again.
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

CACHE = REPOSITORY / "build" / "placement"
PROCESSES = 2
SOURCES = ("src/refold/model/*.py", "src/refold/placement/*.py", "benchmarks/placement/workloads.py")

Case = TypeVar("Case", bound=msgspec.Struct)
Result = TypeVar("Result", bound=msgspec.Struct)


def cached_results(
    compute: Callable[[Case], Result], cases: Iterable[Case], kind: type[Result], sources: Sequence[str] = ()
) -> dict[Case, Result]:
    """Return the result of `compute` for each case, from the cache if possible; print progress on stderr."""
    unique = list(dict.fromkeys(cases))
    source_hash = _source_hash((*SOURCES, *sources, _source_of(compute)))
    paths = {case: _path(case, source_hash) for case in unique}
    found = {case: msgspec.json.decode(path.read_bytes(), type=kind) for case, path in paths.items() if path.exists()}
    missing = [case for case in unique if case not in found]
    for done, (case, result) in enumerate(_compute_all(compute, missing), start=1):
        found[case] = result
        CACHE.mkdir(parents=True, exist_ok=True)
        paths[case].write_bytes(msgspec.json.encode(result))
        print_progress(f"{done}/{len(missing)}  {case}")
    return {case: found[case] for case in unique}


def _compute_all(compute: Callable[[Case], Result], cases: Sequence[Case]) -> Iterable[tuple[Case, Result]]:
    if len(cases) <= 1:
        yield from ((case, compute(case)) for case in cases)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        futures = {pool.submit(compute, case): case for case in cases}
        for future in as_completed(futures):
            yield futures[future], future.result()


def print_progress(text: str) -> None:
    """Print progress on stderr, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def _source_of(compute: Callable[..., Any]) -> str:
    """Return the file that defines a function, even if its module runs as `__main__`."""
    return str(Path(inspect.getfile(compute)).resolve().relative_to(REPOSITORY))


def _path(case: msgspec.Struct, source_hash: str) -> Path:
    name = type(case).__name__.lower()
    key = hashlib.sha256(msgspec.json.encode(case) + source_hash.encode()).hexdigest()
    return CACHE / f"{name}-{key[:20]}.json"


@cache
def _source_hash(patterns: tuple[str, ...]) -> str:
    files = sorted({path for pattern in patterns for path in REPOSITORY.glob(pattern)})
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
