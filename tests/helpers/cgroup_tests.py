"""Tests in real cgroups: which this machine has, what is left behind, and a summary if all of these are skipped.

A pytest plug-in. Tests that need cgroups have the marker `cgroups`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from refold.engines.local.cgroup_mounts import Hierarchy, find_hierarchies
from refold.engines.local.cgroups import Cgroups, open_cgroups

KINDS = ("v2", "v1", "all")
"""Which hierarchies of this machine a test uses: that of version 2, those of version 1, or all of them."""

STARTING_SECONDS = 60.0

PROBE = "0" * 16 + "-"


def hierarchies(kind: str) -> list[Hierarchy]:
    """Return the hierarchies of this machine of one kind."""
    return [found for found in find_hierarchies() if kind == "all" or found.unified == (kind == "v2")]


@cache
def usable(kind: str) -> bool:
    """Return whether this process may create cgroups of a kind."""
    cgroups = open_cgroups(PROBE, hierarchies(kind))
    if cgroups is not None:
        cgroups.close()
    return cgroups is not None


@cache
def enforced(kind: str) -> frozenset[str]:
    """Return what these cgroups enforce."""
    cgroups = open_cgroups(PROBE, hierarchies(kind)) if usable(kind) else None
    if cgroups is None:
        return frozenset()
    cgroups.close()
    return cgroups.enforced


def require(kind: str, *resources: str) -> None:
    """Skip a test if this machine has no cgroups of a kind, or they do not limit these resources."""
    if not usable(kind):
        pytest.skip(f"needs cgroups ({kind}) that this user may create")
    if missing := [resource for resource in resources if resource not in enforced(kind)]:
        pytest.skip(f"needs cgroups ({kind}) that limit {' and '.join(missing)}")


def open_for(prefix: str, kind: str) -> Cgroups:
    """Return the cgroups of a state folder, in hierarchies of one kind."""
    cgroups = open_cgroups(prefix, hierarchies(kind))
    assert cgroups is not None
    return cgroups


def folders_of(name: str, found: Sequence[Hierarchy]) -> list[Path]:
    """Return the folders of this name in the cgroups of this process."""
    return [hierarchy.own / name for hierarchy in found if (hierarchy.own / name).is_dir()]


def pytest_sessionfinish() -> None:
    """Remove the empty cgroups of daemons that tests have killed; not of runs that may just be starting."""
    for hierarchy in find_hierarchies():
        for folder in hierarchy.own.glob("refold-*"):
            for run in folder.glob("*/"):
                with suppress(OSError):
                    if time.time() - run.stat().st_mtime > STARTING_SECONDS:
                        run.rmdir()
            with suppress(OSError):
                folder.rmdir()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in the last lines if no test in cgroups has run."""
    reports = {
        outcome: [report for report in found if "cgroups" in getattr(report, "keywords", ())]
        for outcome, found in terminalreporter.stats.items()
    }
    skipped = len(reports.get("skipped", []))
    if skipped and not any(reports.get(outcome) for outcome in ("passed", "failed", "error")):
        terminalreporter.write_line(
            f"cgroups: all {skipped} tests in real cgroups were SKIPPED: limits and kills were not tested", yellow=True
        )
