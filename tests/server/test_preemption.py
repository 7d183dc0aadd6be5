"""Preemption by consent: what the daemon admits, and what it says about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api.submissions import Submission
from refold.model import Preemption


def long_job(**fields: Any) -> Submission:
    return Submission("long", ["true"], gpus=2, estimate=1000.0, **fields)


CASES: list[tuple[Preemption, dict[str, Any], tuple[bool, str]]] = [
    ("consent", {}, (False, "not requested")),
    ("consent", {"preemptible": True}, (True, "as requested")),
    ("consent", {"job_class": "best-effort"}, (True, "it is best-effort")),
    ("consent", {"gpu_range": (1, 2)}, (True, "it is reshapable")),
    ("always", {}, (True, "the daemon's configuration has preemption: always")),
    ("always", {"preemptible": False}, (False, "as requested")),
    ("never", {"preemptible": True}, (False, "the daemon's configuration has preemption: never")),
    ("never", {"job_class": "best-effort"}, (False, "the daemon's configuration has preemption: never")),
]


@pytest.mark.parametrize(("preemption", "fields", "expected"), CASES)
def test_a_run_is_preempted_for_a_shorter_job_only_with_consent(
    preemption: Preemption, fields: dict[str, Any], expected: tuple[bool, str], tmp_path: Path
) -> None:
    """The policy is srtf, which preempts whenever it may."""

    async def submit_both() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), policy="srtf", preemption=preemption) as daemon:
            preview = await daemon.service.preview(OWNER, long_job(**fields))
            assert (preview.preemptible, preview.consent) == expected
            await daemon.service.submit(OWNER, long_job(**fields))
            await daemon.settle()
            short = await daemon.service.submit(OWNER, Submission("short", ["true"], gpus=2, estimate=1.0))
            await daemon.settle()
            status = await daemon.service.job(OWNER, "long-1")
            assert status.preemptible is expected[0]
            assert status.state == ("stopping" if expected[0] else "running")
            assert (await daemon.service.job(OWNER, short.id)).reason == ("Releasing" if expected[0] else "Resources")

    asyncio.run(submit_both())


def test_the_status_of_a_job_says_why_it_is_preemptible(tmp_path: Path) -> None:
    async def submit() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            statuses = [
                await daemon.service.submit(OWNER, long_job(**fields))
                for fields in ({}, {"job_class": "best-effort"}, {"preemptible": True}, {"gpu_range": (1, 2)})
            ]
            assert [(status.preemptible, status.consent) for status in statuses] == [
                (False, "not requested"),
                (True, "it is best-effort"),
                (True, "as requested or configured"),
                (True, "it is reshapable"),
            ]
            await daemon.service.cancel(OWNER, statuses[0].id)
            await daemon.settle()
            ended = await daemon.service.job(OWNER, statuses[1].id)
            assert (ended.preemptible, ended.consent) == (True, "it is best-effort")

    asyncio.run(submit())
