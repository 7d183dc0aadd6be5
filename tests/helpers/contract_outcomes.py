"""Runs a contract suite in this process and returns the outcome of each of its cases."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Outcomes(NamedTuple):
    """The cases of a suite by outcome: names of those that passed, messages of those that failed or were skipped."""

    passed: list[str]
    failed: dict[str, str]
    skipped: dict[str, str]


def run_contract(suite: object, folder: Path, *, only: str = "") -> Outcomes:
    """Call every case of a contract suite, each with an own folder; `only`: cases whose names contain this text."""
    outcomes = Outcomes([], {}, {})
    for name, case in inspect.getmembers(suite, inspect.ismethod):
        if not name.startswith("test_") or only not in name:
            continue
        fixtures: dict[str, Any] = {}
        if "tmp_path" in inspect.signature(case).parameters:
            fixtures["tmp_path"] = folder / name
            fixtures["tmp_path"].mkdir()
        try:
            case(**fixtures)
        except pytest.skip.Exception as skipped:
            outcomes.skipped[name] = str(skipped)
        except Exception as error:  # a broken implementation may raise anything
            outcomes.failed[name] = f"{type(error).__name__}: {error}"
        else:
            outcomes.passed.append(name)
    return outcomes
