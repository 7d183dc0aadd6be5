"""The plan space: all valid plans of a training setup that a training framework can run, constructed from divisors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd, isqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadValue
from refold.model import MAX_DEGREE, RECOMPUTE, LaunchEngine, Plan, Recompute
from refold.planning.perf import FULL, SELECTIVE, Engine, PlanColumns, PlanFeature, TrainingSetup, plans_to_columns
from refold.planning.plans.launch_targets import cannot_launch

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Table = dict[str, Ints]

END_CHUNKS = 2
"""Chunks of interleaved stages that may have no layer, as they have the embedding or the output layer."""

MIN_HYBRID_ZERO = 2
"""The lowest ZeRO stage with hybrid sharding: with stage 1, copies would save no communication."""

CHOICE_FIELDS = ("zero", "offload", "recompute", "sequence_parallel")
"""Fields of a plan for which limits list the allowed choices."""

BOUNDED_FIELDS = ("tensor", "interleave", "context", "expert", "replicate")
"""Fields of a plan for which limits have a maximum degree."""

LONG_SEQUENCE = 16_384

USES: dict[PlanFeature, Callable[[PlanColumns], Any]] = {
    "tensor": lambda plans: plans.tensor > 1,
    "sequence": lambda plans: plans.sequence_parallel > 0,
    "pipeline": lambda plans: plans.pipeline > 1,
    "interleave": lambda plans: plans.interleave > 1,
    "context": lambda plans: plans.context > 1,
    "expert": lambda plans: plans.expert > 1,
    "zero-1": lambda plans: plans.zero == 1,
    "zero-2": lambda plans: plans.zero == 2,
    "zero-3": lambda plans: plans.zero == 3,
    "replicate": lambda plans: plans.replicate > 1,
    "offload": lambda plans: plans.offload > 0,
    "selective": lambda plans: plans.recompute == SELECTIVE,
    "full": lambda plans: plans.recompute == FULL,
}
"""Whether plans use a feature."""

NAMES: dict[PlanFeature, str] = {
    "tensor": "tensor parallelism",
    "sequence": "sequence parallelism",
    "pipeline": "pipeline stages",
    "interleave": "interleaved stages",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "zero-1": "ZeRO-1",
    "zero-2": "ZeRO-2",
    "zero-3": "ZeRO-3",
    "replicate": "hybrid sharding",
    "offload": "offload",
    "selective": "selective recomputation",
    "full": "full recomputation",
}
"""Names of features in messages."""


class Pins(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of a plan that the user has pinned; None is left to the search."""

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    zero: int | None = None
    offload: bool | None = None
    recompute: Recompute | None = None
    accumulation: int | None = None
    interleave: int | None = None
    sequence_parallel: bool | None = None
    context: int | None = None
    expert: int | None = None
    replicate: int | None = None

    def __post_init__(self) -> None:
        Plan(**self.to_dict())  # raises BadValue for invalid values

    def to_dict(self) -> dict[str, Any]:
        """Return the pinned fields by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class PlanLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of the plan search. A pin replaces the choices of its field; validity rules still apply.

    `tensor_across_nodes`: tensor-parallel groups may span several nodes. `uneven`: pipeline stages and their chunks may
    differ by one layer. `engine`: only plans that this framework can run.
    """

    max_tensor: int = MAX_DEGREE
    max_interleave: int = 8
    max_context: int = 1
    max_expert: int = 1
    max_replicate: int = 1
    tensor_across_nodes: bool = False
    zero: tuple[int, ...] = (0, 1, 2, 3)
    offload: bool = True
    recompute: tuple[Recompute, ...] = RECOMPUTE
    sequence_parallel: tuple[bool, ...] = (False, True)
    uneven: bool = False
    engine: LaunchEngine | None = None
    pinned: Pins = Pins()

    def __post_init__(self) -> None:
        for name in BOUNDED_FIELDS:
            if (maximum := getattr(self, f"max_{name}")) < 1:
                raise BadValue(f"max_{name} is {maximum}, expected at least 1, which disables it")
        if not (self.zero and self.recompute and self.sequence_parallel):
            raise BadValue("zero, recompute and sequence_parallel must each allow at least one choice")
        if not set(self.zero) <= {0, 1, 2, 3}:
            raise BadValue(f"zero is {self.zero}, expected stages from 0 to 3")

    def choices(self, name: str) -> tuple[int, ...]:
        """Return the allowed values of one of `CHOICE_FIELDS`, encoded and sorted."""
        pinned = getattr(self.pinned, name)
        if pinned is not None:
            return (encode_value(pinned),)
        match name:
            case "zero":
                return tuple(sorted(set(self.zero)))
            case "offload":
                return (0, 1) if self.offload else (0,)
            case "recompute":
                return tuple(sorted({encode_value(mode) for mode in self.recompute}))
            case _:
                return tuple(sorted({encode_value(choice) for choice in self.sequence_parallel}))

    def maximum(self, name: str) -> int:
        """Return the maximum degree of one of `BOUNDED_FIELDS`."""
        pinned: int | None = getattr(self.pinned, name)
        maximum: int = getattr(self, f"max_{name}")
        return maximum if pinned is None else pinned

    def simplest(self) -> Plan:
        """Return the plan with the pinned fields, and the simplest allowed choice of all others."""
        chosen = {name: decode_value(name, self.choices(name)[0]) for name in CHOICE_FIELDS}
        return Plan(**{**chosen, **self.pinned.to_dict()})


DEFAULT_LIMITS = PlanLimits()
"""The default limits."""


def wide_limits(sequence: int) -> PlanLimits:
    """Return the limits of a search on request, which tries more than a scheduler does for every job.

    Pipeline stages may be uneven. Context parallelism is tried from `LONG_SEQUENCE` tokens on; for shorter sequences,
    it can be pinned.
    """
    return PlanLimits(
        max_interleave=16,
        max_context=256 if sequence >= LONG_SEQUENCE else 1,
        max_expert=MAX_DEGREE,
        max_replicate=MAX_DEGREE,
        uneven=True,
    )


def encode_value(value: int | bool | Recompute) -> int:
    """Return the number that stands for a plan's value in columns."""
    return RECOMPUTE.index(value) if isinstance(value, str) else int(value)


def decode_value(name: str, number: int) -> int | bool | Recompute:
    """Return the value that a number stands for in the column of a field."""
    if name == "recompute":
        return RECOMPUTE[number]
    return bool(number) if name in ("offload", "sequence_parallel") else number


def all_plans(setup: TrainingSetup, limits: PlanLimits = DEFAULT_LIMITS) -> PlanColumns:
    """Return every valid plan once.

    Equivalent plans are left out: on one replica with offload all ZeRO stages are the same, so only the lowest is
    included.
    """
    return plans_on([setup], limits)[0]


def plans_on(setups: Iterable[TrainingSetup], limits: PlanLimits) -> tuple[PlanColumns, Ints]:
    """Return the plans of several setups that differ only in their machines, and the index of the setup of each."""
    setups = tuple(setups)
    rows = [(index, *degrees) for index, setup in enumerate(setups) for degrees in valid_degrees(setup, limits)]
    columns = np.array(rows, np.int64).reshape(len(rows), 5).T
    table = dict(zip(("setup_index", "data", "tensor", "pipeline", "context"), columns, strict=True))
    table = _sharding(table, limits)
    for choose in (_expert, _replicate, _sequence_parallel, _recompute, _accumulation, _interleave):
        table = choose(table, setups[0], limits)
    setup_index = table.pop("setup_index")
    table["zero"], table["offload"] = np.divmod(table.pop("sharding"), 2)
    plans = PlanColumns(**{name: column.astype(np.float64) for name, column in table.items()})
    engine = setups[0].engine
    if limits.engine is None and not engine.runs:
        return plans, setup_index
    can_run = ~cannot_run(engine, plans)
    if limits.engine is not None:
        can_run &= ~cannot_launch(limits.engine, plans)
    return plans.rows(can_run), setup_index[can_run]


def valid_degrees(setup: TrainingSetup, limits: PlanLimits) -> list[tuple[int, int, int, int]]:
    """Return every (data, tensor, pipeline, context) that uses all GPUs and divides what it splits."""
    gpus, pins = setup.machines.gpus, limits.pinned
    all_divisors = divisors(gpus)
    pipelines = [
        divisor
        for divisor in all_divisors
        if pins.pipeline in (None, divisor) and can_split_layers(setup, limits, divisor)
    ]
    contexts = [
        divisor
        for divisor in all_divisors
        if pins.context in (None, divisor) and can_split_sequences(setup, limits, divisor)
    ]
    return [
        (data, tensor, pipeline, context)
        for tensor in all_divisors
        if pins.tensor in (None, tensor) and can_split_tensors(setup, limits, tensor)
        for pipeline in pipelines
        for context in contexts
        if gpus % (tensor * pipeline * context) == 0
        and setup.batch % (data := gpus // (tensor * pipeline * context)) == 0
        and pins.data in (None, data)
    ]


def can_split_tensors(setup: TrainingSetup, limits: PlanLimits, tensor: int) -> bool:
    """Whether tensor parallelism of this degree is possible: heads, widths, nodes and limits."""
    model = setup.model
    if tensor == 1 or model.opaque:
        return tensor == 1
    kv_heads = model.kv_heads or model.heads
    return (
        tensor <= limits.maximum("tensor")
        and (limits.tensor_across_nodes or gcd(*setup.machines.domains) % tensor == 0)
        and model.heads % tensor == 0
        and (kv_heads % tensor == 0 or tensor % kv_heads == 0)
        and model.hidden % tensor == 0
        and model.ffn_width % tensor == 0
        and (model.linear is None or model.linear.key_heads % tensor == 0)
    )


def can_split_layers(setup: TrainingSetup, limits: PlanLimits, pipeline: int) -> bool:
    blocks = setup.model.blocks
    if pipeline == 1 or setup.model.opaque:
        return pipeline == 1
    return pipeline <= blocks if limits.uneven else blocks % pipeline == 0


def can_split_sequences(setup: TrainingSetup, limits: PlanLimits, context: int) -> bool:
    """Whether sequences can be divided among so many GPUs: each has two parts, so that all have as much attention."""
    if context == 1 or setup.model.opaque:
        return context == 1
    return context <= limits.maximum("context") and setup.sequence % (2 * context) == 0


def divisors(number: int) -> list[int]:
    """Return the divisors of a number up to `MAX_DEGREE`, in order."""
    small = np.arange(1, min(isqrt(number), MAX_DEGREE) + 1)
    small = small[number % small == 0]
    large = number // small[::-1]
    ascending: list[int] = np.unique(np.concatenate((small, large[large <= MAX_DEGREE]))).tolist()
    return ascending


def _cross(table: Table, name: str, choices: Ints, allowed: Mask) -> Table:
    """Return the table with each row repeated for every allowed choice; `allowed` is a mask of rows × choices."""
    rows, chosen = np.nonzero(np.broadcast_to(allowed, (len(table["data"]), len(choices))))
    return {**{field: column[rows] for field, column in table.items()}, name: choices[chosen]}


def _sharding(table: Table, limits: PlanLimits) -> Table:
    """Add the column 'sharding': ZeRO and offload, encoded as 2 × stage + offload."""
    stages = limits.choices("zero")
    pairs = np.array([2 * stage + offload for offload in limits.choices("offload") for stage in stages], np.int64)
    stage, offload = np.divmod(pairs, 2)
    data, tensor, pipeline, context = (table[name][:, None] for name in ("data", "tensor", "pipeline", "context"))
    on_gpu = (stage == 0) | ((data * context > 1) & ((stage == 1) | (pipeline == 1)))
    on_host = (tensor * pipeline * context == 1) & np.where(data > 1, stage >= 1, stage == stages[0])
    return _cross(table, "sharding", pairs, np.where(offload > 0, on_host, on_gpu))


def _expert(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:
    experts, maximum = setup.model.experts, limits.maximum("expert")
    pinned = limits.pinned.expert
    choices = np.array([one for one in divisors(experts) if one <= maximum] if pinned is None else [pinned], np.int64)
    replicas = (table["data"] * table["context"])[:, None]
    on_host = (table["sharding"] % 2 == 1)[:, None]
    divided = (experts % choices == 0) & (replicas % choices == 0) & ~on_host
    return _cross(table, "expert", choices, (choices == 1) | divided)


def _replicate(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:  # noqa: ARG001
    maximum, pinned = limits.maximum("replicate"), limits.pinned.replicate
    replicas = table["data"] * table["context"]
    groups = [
        one
        for one in divisors(int(np.lcm.reduce(replicas, initial=1)))
        if one <= min(maximum, max(replicas, default=1))
    ]
    choices = np.array(groups if pinned is None else [pinned], np.int64)
    stage, on_host = (part[:, None] for part in np.divmod(table["sharding"], 2))
    several = (stage >= MIN_HYBRID_ZERO) & (on_host == 0) & (table["expert"][:, None] == 1)
    divided = (replicas[:, None] % choices == 0) & (replicas[:, None] > choices)
    return _cross(table, "replicate", choices, (choices == 1) | (several & divided))


def _sequence_parallel(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:
    choices = np.array(limits.choices("sequence_parallel"), np.int64)
    tensor, context = table["tensor"][:, None], table["context"][:, None]
    split = (tensor > 1) & (setup.sequence % (tensor * context) == 0)
    return _cross(table, "sequence_parallel", choices, (choices == 0) | split)


def _recompute(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:
    choices = np.array(limits.choices("recompute"), np.int64)
    useful = (choices != SELECTIVE) | setup.engine.selects_activations
    return _cross(table, "recompute", choices, (choices == 0) | (useful & (not setup.model.opaque)))


def _accumulation(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:
    pinned = limits.pinned.accumulation
    choices = np.array(divisors(setup.batch) if pinned is None else [pinned], np.int64)
    return _cross(table, "accumulation", choices, setup.batch % (table["data"][:, None] * choices) == 0)


def _interleave(table: Table, setup: TrainingSetup, limits: PlanLimits) -> Table:
    pinned, maximum, blocks = limits.pinned.interleave, limits.max_interleave, setup.model.blocks
    candidates = range(1, blocks + END_CHUNKS + 1) if limits.uneven else divisors(blocks)
    choices = np.array([one for one in candidates if one <= maximum] if pinned is None else [pinned], np.int64)
    pipeline, accumulation = table["pipeline"][:, None], table["accumulation"][:, None]
    chunks = pipeline * choices
    divided = chunks <= blocks + END_CHUNKS if limits.uneven else blocks % chunks == 0
    return _cross(
        table, "interleave", choices, (choices == 1) | ((pipeline > 1) & divided & (accumulation % pipeline == 0))
    )


def lacking_features(engine: Engine) -> list[PlanFeature]:
    """Return the features that a framework does not have."""
    return [feature for feature in USES if engine.runs and feature not in engine.runs]


def cannot_run(engine: Engine, plans: PlanColumns) -> NDArray[np.bool_]:
    used = [USES[feature](plans) for feature in lacking_features(engine)]
    return np.asarray(np.logical_or.reduce([np.zeros(len(plans), bool), *used]))


def cannot_run_reason(engine: Engine, plan: Plan) -> str:
    plans = plans_to_columns([plan])
    missing = [NAMES[feature] for feature in lacking_features(engine) if USES[feature](plans)[0]]
    return f"{engine.name} has no {', '.join(missing)}"
