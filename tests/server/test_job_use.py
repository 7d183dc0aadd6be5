"""What jobs have used over time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon
from msgspec.structs import replace

from refold.client.api import UseSample
from refold.core.events import RunFinished, RunProgressed
from refold.errors import Forbidden
from refold.server.backend import MachineUse
from refold.server.monitor import job_use
from refold.server.monitor.job_use import KEEP_SECONDS, SampleSeries


@given(count=st.integers(1, 3000), most=st.integers(2, 60))
def test_samples_are_bounded_evenly_spaced_and_reach_from_the_first_to_the_last(count: int, most: int) -> None:
    series = SampleSeries(most)
    for at in range(count):
        series.add(UseSample(float(at)))
    times = [sample.at for sample in series.samples]
    gaps = {after - before for before, after in pairwise(times)}
    assert len(times) <= most
    assert times[0] == 0
    assert len(gaps) <= 1
    assert count - 1 - times[-1] < max(gaps, default=1)
    assert len(times) >= min(count, most // 2)


def test_running_jobs_are_sampled_and_forgotten_a_while_after_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(job_use, "time", lambda: now[0])

    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a")
            await daemon.report(RunProgressed(job, 1, 10, loss=2.5, samples_per_second=64.0))
            daemon.machine_use = {job: MachineUse(1.5, 800)}
            await daemon.use.poll()
            assert daemon.service.use(OWNER, "a").samples == [UseSample(1000.0, 1.5, 800, None, 64.0, 2.5)]
            stranger = replace(OWNER, name="eve", role="reader", tenant="others", user="eve")
            with pytest.raises(Forbidden):
                daemon.service.use(stranger, "a")
            await daemon.end_run(job, RunFinished)
            now[0] += KEEP_SECONDS
            await daemon.use.poll()
            assert len(daemon.service.use(OWNER, job).samples) == 1
            now[0] += 1
            await daemon.use.poll()
            assert daemon.service.use(OWNER, job).samples == []

    asyncio.run(check())
