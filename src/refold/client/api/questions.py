"""JSON types of the API: questions about jobs that are not submitted, about policies and plans, and their answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from refold.client.api.submissions import (
    MAX_COMPARED_POLICIES,
    MAX_LORA_RANK,
    MAX_NAME_CHARS,
    MAX_PLANNED_GPUS,
    MAX_VARIANTS,
    Name,
    Submission,
)
from refold.client.api.wire import TimeEstimate
from refold.model import (
    Seconds,
)


class Preview(msgspec.Struct, frozen=True):
    """The expected outcome of a submission, which has not been submitted.

    `preemptible`: whether the job could be stopped or reshaped for other jobs; `consent` says why. `exported`: names of
    the variables that the job would inherit from its submitter.
    """

    fits: bool
    demand: str
    gpus: float
    plan: str
    starts_now: bool
    jobs_ahead: int
    start_estimate: TimeEstimate | None
    notes: list[str]
    exported: list[str] = []
    preemptible: bool = False
    consent: str = ""


class WhatIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Variants of a job that is not submitted, of which the effects are to be estimated. `seed`: of the futures."""

    variants: Annotated[list[Submission], Meta(min_length=1, max_length=MAX_VARIANTS)]
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0


class VariantOutcome(msgspec.Struct, frozen=True):
    """When a variant would start and end; null if that is not known. `fits`: it fits on the empty cluster.

    `mean_delay_of_others`: of the jobs that wait now; `delayed_jobs`: how many of them would start later.
    """

    start: TimeEstimate | None
    end: TimeEstimate | None
    mean_delay_of_others: Seconds
    delayed_jobs: int
    fits: bool
    reason: str = ""


class WhatIfOutcome(msgspec.Struct, frozen=True):
    """The outcome of each variant in a number of simulated futures."""

    now: float
    futures: int
    variants: list[VariantOutcome]


class PolicyQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Policies under which the current jobs are to be simulated, beside that of the daemon. `seed`: of the futures."""

    policies: Annotated[list[Name], Meta(min_length=1, max_length=MAX_COMPARED_POLICIES)]
    futures: Annotated[int, Meta(ge=1, le=40)] = 10
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0


class PolicyForecast(msgspec.Struct, frozen=True):
    """The current jobs under a policy, if no more are submitted: means of the simulated futures.

    `mean_wait`: from now to the starts of the waiting jobs that start under every policy; `mean_completion`: from now
    to the ends of the jobs that end under every policy. `earlier`, `later`: waiting jobs whose starts differ from those
    under the daemon's policy.
    """

    policy: str
    futures: int
    mean_wait: float | None
    mean_completion: float | None
    earlier: int
    later: int


class JobStarts(msgspec.Struct, frozen=True):
    """The mean start of a waiting job under each policy."""

    job: str
    starts: list[float]


class PolicyComparison(msgspec.Struct, frozen=True):
    """The current jobs under several policies, of which the first is the daemon's. `starts`: by the largest shifts.

    `jobs`: that run or wait now; `compared`: of those `waiting`, the ones that start under every policy.
    `knows_run_times`: a job has ended, or all jobs have an estimate or a time limit; otherwise, run times are guessed.
    """

    now: float
    policy: str
    jobs: int
    waiting: int
    compared: int
    forecasts: list[PolicyForecast]
    starts: list[JobStarts]
    knows_run_times: bool = True


class PlanQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training whose best plans are wanted. 0 `nodes`: as few as possible; 0 `batch`, `sequence`, no
    `engine`: those that are usual for the model, the GPUs and what is trained.

    `cp`, `ep`: degrees of context and expert parallelism; 0: the best.
    `lora`: rank of the adapters that are trained, 0 for all weights; `qlora`: frozen weights are stored in 4 bits.
    `precision`: of the matrix products of layers, by default the engine's. `margin`: percentage of GPU memory to leave
    free.
    """

    model: Name
    gpu: Name
    gpus: Annotated[int, Meta(ge=1, le=MAX_PLANNED_GPUS)]
    nodes: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    batch: Annotated[int, Meta(ge=0, le=2**24)] = 0
    sequence: Annotated[int, Meta(ge=0, le=2**24)] = 0
    engine: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""
    offload: bool = True
    cp: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    ep: Annotated[int, Meta(ge=0, le=MAX_PLANNED_GPUS)] = 0
    lora: Annotated[int, Meta(ge=0, le=MAX_LORA_RANK)] = 0
    qlora: bool = False
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] | None = None
    margin: Annotated[float, Meta(ge=0, le=90)] = 6


class PlanRow(msgspec.Struct, frozen=True):
    """A plan with its estimates. `seconds` and `memory` (GiB per GPU): by component."""

    plan: str
    step_seconds: float
    samples_per_second: float
    tokens_per_second: float
    mfu: float
    memory_gib: float
    seconds: dict[str, float]
    memory: dict[str, float]


class PlanRejection(msgspec.Struct, frozen=True):
    """Plans that were rejected for the same reason."""

    name: str
    plans: int
    explanation: str
    example: str


class PlanAnswer(msgspec.Struct, frozen=True):
    """The best plans, and why others were rejected. `advice`: what would help if none fits. `engine`: the
    training framework, with its releases."""

    model: str
    gpu: str
    gpus: int
    nodes: int
    batch: int
    sequence: int
    best: list[PlanRow]
    considered: int
    out_of_memory: int
    rejected: list[PlanRejection]
    advice: list[str]
    engine: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """Names of the models, GPUs and training frameworks of the catalogue, and of the policies to compare with."""

    models: list[str]
    gpus: list[str]
    engines: list[str]
    policies: list[str] = []
