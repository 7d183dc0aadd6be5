"""What a whole training takes with a plan: time, money, energy, and the best checkpoint interval under failures."""

from __future__ import annotations

from math import isfinite

import msgspec

from refold.errors import BadValue
from refold.planning.perf.estimation import Estimate
from refold.planning.perf.explained_communication import Lines, Section
from refold.planning.perf.training_setup import TrainingSetup

TOKENS_PER_WEIGHT = 20.0
"""Tokens of a training unless given, for each active weight (Hoffmann et al. 2022)."""

FINE_TUNING_TOKENS = 1e8
"""Tokens of fine-tuning with adapters unless given."""

CHECKPOINT_BYTES = 14.0
"""Bytes per trained weight in a checkpoint: half precision, master weights and moments."""

CHECKPOINT_BYTES_PER_SECOND = 2e9
"""Rate at which a node writes its part of a checkpoint; assumed."""

RESTART_SECONDS = 300.0
"""Time from a failure until training goes on from a checkpoint; assumed."""


class Training(msgspec.Struct, frozen=True):
    """A whole training: its tokens, price of a GPU hour, mean time between failures of the job (0: none)."""

    tokens: float
    price: float = 0.0
    mtbf_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.tokens) and self.tokens > 0):
            raise BadValue(f"tokens is {self.tokens}, expected a number > 0")
        if not all(isfinite(value) and value >= 0 for value in (self.price, self.mtbf_seconds)):
            raise BadValue(f"price is {self.price} and mtbf is {self.mtbf_seconds} s, expected numbers ≥ 0")


class TrainingCost(msgspec.Struct, frozen=True):
    """Time, money and energy of a training. `goodput`: share of the time that is not lost to failures and checkpoints.

    `interval_seconds`: the checkpoint interval that loses the least; 0 without failures.
    """

    tokens: float
    seconds: float
    dollars: float
    kilowatt_hours: float
    goodput: float
    interval_seconds: float


def default_tokens(setup: TrainingSetup) -> float:
    """Return the tokens of a training if they are not given."""
    model = setup.model
    if setup.tuning.lora_rank:
        return FINE_TUNING_TOKENS
    return TOKENS_PER_WEIGHT * (model.active_parameters + model.embedding_parameters + model.head_parameters)


def compute_training_cost(setup: TrainingSetup, found: Estimate, training: Training) -> TrainingCost:
    """Return what a training takes with a plan."""
    values = _lines(setup, found, training).values
    return TrainingCost(
        training.tokens,
        values["time"],
        values["dollars"],
        values["kilowatt_hours"],
        values["goodput"],
        values["interval"],
    )


def explain_cost(setup: TrainingSetup, found: Estimate, training: Training) -> Section:
    ((title, lines),) = _lines(setup, found, training).sections
    return Section(title, tuple(lines))


def _lines(setup: TrainingSetup, found: Estimate, training: Training) -> Lines:
    machines, lines = setup.machines, Lines()
    lines.section("The whole training")
    lines.given("tokens to train on", "tokens", tokens=training.tokens)
    lines.given("tokens per step", "tokens", step_tokens=setup.tokens)
    lines.given("duration of a step", "s", step=found.step_seconds)
    lines.given("GPUs, and their maximum power", "", gpus=machines.gpus, watts=machines.gpu.watts)
    lines.given("price of a GPU hour", "$", price=training.price)
    lines.formula("steps", "ceil(tokens / step_tokens)", "", "steps")
    lines.formula("training", "steps * step", "s", "time of all steps")
    _add_failures(lines, setup, training)
    lines.formula("time", "training / goodput", "s", "time to train")
    lines.formula("gpu_hours", "time * gpus / 3600", "h", "GPU hours")
    lines.formula("dollars", "gpu_hours * price", "$", "price of the GPUs")
    lines.formula("kilowatt_hours", "gpu_hours * watts / 1000", "kWh", "energy of the GPUs at most, without hosts")
    return lines


def _add_failures(lines: Lines, setup: TrainingSetup, training: Training) -> None:
    """Add what failures cost: the interval is that of Young (1974), which loses the least to first order."""
    if not training.mtbf_seconds:
        lines.formula("interval", "0", "s", "no failures")
        lines.formula("goodput", "1", "", "no failures")
        return
    trained = setup.tuning.trained_parameters(setup.model)
    lines.given("mean time between failures of the job", "s", mtbf=training.mtbf_seconds)
    lines.given("bytes of a checkpoint", "B", checkpoint_bytes=CHECKPOINT_BYTES * trained)
    lines.given(
        "rate at which all nodes write it", "B/s", write_rate=CHECKPOINT_BYTES_PER_SECOND * setup.machines.nodes
    )
    lines.given("restart after a failure", "s", restart=RESTART_SECONDS)
    lines.formula("checkpoint", "checkpoint_bytes / write_rate", "s", "time to write a checkpoint")
    lines.formula("interval", "(2 * checkpoint * mtbf) ** 0.5", "s", "best interval between checkpoints")
    lines.formula(
        "lost",
        "checkpoint / (interval + checkpoint) + ((interval + checkpoint) / 2 + restart) / mtbf",
        "",
        "share of the time for checkpoints, repeated steps and restarts",
    )
    lines.formula("goodput", "max(0, 1 - lost)", "", "share of the time that trains")
    if not lines.values["goodput"]:
        raise BadValue(
            f"with a failure every {training.mtbf_seconds:g} s the training never ends: a checkpoint takes "
            f"{lines.values['checkpoint']:.0f} s and a restart {RESTART_SECONDS:g} s"
        )
