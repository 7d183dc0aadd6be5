"""Rubick's traces: reshapable jobs with measured speeds. Draws from FIRST_TUNING_DRAW on are for tuning."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from benchmarks.scheduling import runs, testbed, variants
from benchmarks.scheduling.unified.targets import Target
from benchmarks.scheduling.unified.workload import RESTART, Setup, Workload, measured_speeds
from refold.simulator import Costs

FIRST_TUNING_DRAW = 100
NOT_KNOWING_DURATIONS = ("rubick", "sia", "pollux", "gavel", "tiresias", "antman", "las", "fifo-skip", "easy")


def rubick_setup(
    draw: int, *, trace: str = "random-plan", large: float | None = None, rigid: float = 0.0, first: int = 0
) -> Setup:
    """Return a trace with 78 s restarts; `large`: share of large models, `rigid`: share of jobs not reshapable."""
    cluster, seed = runs.cluster_for(trace), first + draw
    if large is None:
        jobs = variants.permuted(testbed.jobs(trace), seed)
    else:
        jobs = variants.with_large_share(testbed.jobs(trace), large, measured_speeds(cluster), seed)
    is_rigid = (np.random.default_rng(seed).random(len(jobs)) < rigid).tolist()
    jobs = tuple(
        msgspec.structs.replace(job, reshapable=job.reshapable and not fixed)
        for job, fixed in zip(jobs, is_rigid, strict=True)
    )
    costs = Costs(restart=RESTART, report_every=runs.REPORT_SECONDS)
    return Setup(cluster, jobs, costs, measured_speeds(cluster))


def reshapable_workloads(tuning: bool) -> list[Workload]:
    """Return the workloads from Rubick's traces."""
    setup = partial(rubick_setup, first=FIRST_TUNING_DRAW if tuning else 0)
    baselines = ("refold", "rubick", "srtf", "las")
    absolute = (
        Target("mean", at_most=0.13),
        Target("median", at_most=15),
        Target("p99", at_most=2.2),
        Target("makespan", no_worse_than=("rubick",)),
    )
    to_rubick = (Target("mean", no_worse_than=("rubick",), factor=0.95),)
    to_srtf = (Target("mean", no_worse_than=("srtf",), factor=1.1),)
    best = (Target("mean", no_worse_than=NOT_KNOWING_DURATIONS),)
    return [
        Workload("rubick", setup, 10, baselines, absolute, quick=True),
        Workload("rubick-large-0", partial(setup, large=0.0), 4, baselines, to_rubick, quick=True),
        Workload("rubick-large-10", partial(setup, large=0.1), 4, baselines, to_rubick, quick=True),
        Workload(
            "rubick-rigid",
            partial(setup, rigid=1.0),
            5,
            ("refold", "srtf", "las", "fifo-skip"),
            to_srtf,
            settings={"refold": {"trust_steps": False}},
            quick=True,
        ),
        Workload("mixed-half-rigid", partial(setup, rigid=0.5), 3, ("refold", *NOT_KNOWING_DURATIONS), best),
        Workload(
            "guarantees",
            partial(setup, trace="multi-tenant"),
            6,
            ("refold", "rubick", "antman"),
            (Target("violations", at_most=0, worst_draw=True), Target("quota_waits", at_most=0, worst_draw=True)),
            quick=True,
        ),
    ]
