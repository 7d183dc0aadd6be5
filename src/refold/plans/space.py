"""Every plan that a setting allows, built from divisors: what would break a rule is never made."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, isqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadValue
from refold.model import LARGEST_DEGREE, RECOMPUTE, Plan, Recompute
from refold.perf import SELECTIVE, PlanColumns, Setting

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Table = dict[str, Ints]

CHOSEN = ("zero", "offload", "recompute", "sequence_parallel")
"""What limits list choices for."""

BOUNDED = ("tensor", "interleave")
"""What limits have a largest degree for."""


class Pins(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The part of a plan that its user has fixed; what is None is left to the search."""

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    zero: int | None = None
    offload: bool | None = None
    recompute: Recompute | None = None
    accumulation: int | None = None
    interleave: int | None = None
    sequence_parallel: bool | None = None

    def __post_init__(self) -> None:
        Plan(**self.given())  # what is no plan cannot be part of one

    def given(self) -> dict[str, Any]:
        """What is fixed, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class PlanLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which plans may be chosen. A pin replaces the choices for what it fixes; the rules hold for it all the same.

    `tensor_across_nodes`: a tensor-parallel group may lie on several nodes. `uneven`: pipeline stages may differ by
    a layer.
    """

    max_tensor: int = LARGEST_DEGREE
    max_interleave: int = 8
    tensor_across_nodes: bool = False
    zero: tuple[int, ...] = (0, 1, 2, 3)
    offload: bool = True
    recompute: tuple[Recompute, ...] = RECOMPUTE
    sequence_parallel: tuple[bool, ...] = (False, True)
    uneven: bool = False
    pinned: Pins = Pins()

    def __post_init__(self) -> None:
        if min(self.max_tensor, self.max_interleave) < 1:
            raise BadValue(
                f"max_tensor and max_interleave are at least 1 (to do without), not {self.max_tensor} and "
                f"{self.max_interleave}"
            )
        if not (self.zero and self.recompute and self.sequence_parallel):
            raise BadValue("zero, recompute and sequence_parallel need at least one choice each")
        if not set(self.zero) <= {0, 1, 2, 3}:
            raise BadValue(f"ZeRO has stages 0 to 3, not {self.zero}")

    def choices(self, name: str) -> tuple[int, ...]:
        """What may be chosen for one of CHOSEN, as numbers in columns, in order."""
        fixed = getattr(self.pinned, name)
        if fixed is not None:
            return (code(fixed),)
        match name:
            case "zero":
                return tuple(sorted(set(self.zero)))
            case "offload":
                return (0, 1) if self.offload else (0,)
            case "recompute":
                return tuple(sorted({code(mode) for mode in self.recompute}))
            case _:
                return tuple(sorted({code(choice) for choice in self.sequence_parallel}))

    def largest(self, name: str) -> int:
        """The largest degree that may be chosen for one of BOUNDED."""
        fixed: int | None = getattr(self.pinned, name)
        most: int = getattr(self, f"max_{name}")
        return most if fixed is None else fixed

    def simplest(self) -> Plan:
        """What is pinned, and of everything else the simplest that may be chosen."""
        chosen = {name: value_of(name, self.choices(name)[0]) for name in CHOSEN}
        return Plan(**{**chosen, **self.pinned.given()})


USUAL = PlanLimits()
"""What is tried where nothing was said."""


def code(value: int | bool | Recompute) -> int:
    """A value of a plan as the number that stands for it in columns."""
    return RECOMPUTE.index(value) if isinstance(value, str) else int(value)


def value_of(name: str, number: int) -> int | bool | Recompute:
    """The value that a number stands for in a column of that name."""
    if name == "recompute":
        return RECOMPUTE[number]
    return bool(number) if name in ("offload", "sequence_parallel") else number


def all_plans(setting: Setting, limits: PlanLimits = USUAL) -> PlanColumns:
    """Every plan that breaks no rule, each once.

    Left out is what would say the same twice: on one replica with offloading every stage of ZeRO is the same, so
    only the lowest is there.
    """
    return plans_on([setting], limits)[0]


def plans_on(settings: Iterable[Setting], limits: PlanLimits) -> tuple[PlanColumns, Ints]:
    """Every plan of several settings that differ in their machines only, and the index of the setting of each."""
    settings = tuple(settings)
    degrees = [(index, *found) for index, setting in enumerate(settings) for found in degrees_of(setting, limits)]
    which, data, tensor, pipeline = np.array(degrees, np.int64).reshape(len(degrees), 4).T
    table = {"which": which, "data": data, "tensor": tensor, "pipeline": pipeline}
    table = _sharding(table, limits)
    for choose in (_sequence_parallel, _recompute, _accumulation, _interleave):
        table = choose(table, settings[0], limits)
    which = table.pop("which")
    table["zero"], table["offload"] = np.divmod(table.pop("sharding"), 2)
    return PlanColumns(**{name: column.astype(np.float64) for name, column in table.items()}), which


def degrees_of(setting: Setting, limits: PlanLimits) -> list[tuple[int, int, int]]:
    """Every (data, tensor, pipeline) that uses all GPUs and cuts heads, widths, layers and batch evenly."""
    gpus, pins = setting.machines.gpus, limits.pinned
    ways = divisors(gpus)
    pipelines = [way for way in ways if pins.pipeline in (None, way) and cuts_layers(setting, limits, way)]
    return [
        (data, tensor, pipeline)
        for tensor in ways
        if pins.tensor in (None, tensor) and splits_tensors(setting, limits, tensor)
        for pipeline in pipelines
        if gpus % (tensor * pipeline) == 0
        and setting.batch % (data := gpus // (tensor * pipeline)) == 0
        and pins.data in (None, data)
    ]


def splits_tensors(setting: Setting, limits: PlanLimits, tensor: int) -> bool:
    """Whether heads and widths can be split so many ways, within the nodes there are and the limits."""
    model = setting.model
    if tensor == 1 or model.opaque:
        return tensor == 1
    kv_heads = model.kv_heads or model.heads
    return (
        tensor <= limits.largest("tensor")
        and (limits.tensor_across_nodes or gcd(*setting.machines.gpus_on_node) % tensor == 0)
        and model.heads % tensor == 0
        and (kv_heads % tensor == 0 or tensor % kv_heads == 0)
        and model.hidden % tensor == 0
        and model.ffn_width % tensor == 0
    )


def cuts_layers(setting: Setting, limits: PlanLimits, pipeline: int) -> bool:
    """Whether layers can be cut into so many stages."""
    blocks = setting.model.blocks
    if pipeline == 1 or setting.model.opaque:
        return pipeline == 1
    return pipeline <= blocks if limits.uneven else blocks % pipeline == 0


def divisors(number: int) -> list[int]:
    """What divides a number, in order, as far as a degree can go."""
    small = np.arange(1, min(isqrt(number), LARGEST_DEGREE) + 1)
    small = small[number % small == 0]
    large = number // small[::-1]
    ways: list[int] = np.unique(np.concatenate((small, large[large <= LARGEST_DEGREE]))).tolist()
    return ways


def _crossed(table: Table, name: str, choices: Ints, allowed: Mask) -> Table:
    """Each row once for every choice that it allows: `allowed` has a row for each row and a column for each choice."""
    rows, chosen = np.nonzero(np.broadcast_to(allowed, (len(table["data"]), len(choices))))
    return {**{known: column[rows] for known, column in table.items()}, name: choices[chosen]}


def _sharding(table: Table, limits: PlanLimits) -> Table:
    """ZeRO and offloading, as 2 × stage + offload."""
    stages = limits.choices("zero")
    pairs = np.array([2 * stage + offload for offload in limits.choices("offload") for stage in stages], np.int64)
    stage, offload = np.divmod(pairs, 2)
    data, tensor, pipeline = (table[name][:, None] for name in ("data", "tensor", "pipeline"))
    on_gpu = (stage == 0) | ((data > 1) & ((stage == 1) | (pipeline == 1)))
    on_host = (tensor * pipeline == 1) & np.where(data > 1, stage >= 1, stage == stages[0])
    return _crossed(table, "sharding", pairs, np.where(offload > 0, on_host, on_gpu))


def _sequence_parallel(table: Table, setting: Setting, limits: PlanLimits) -> Table:
    choices = np.array(limits.choices("sequence_parallel"), np.int64)
    tensor = table["tensor"][:, None]
    split = (tensor > 1) & (setting.sequence % tensor == 0)
    return _crossed(table, "sequence_parallel", choices, (choices == 0) | split)


def _recompute(table: Table, setting: Setting, limits: PlanLimits) -> Table:
    choices = np.array(limits.choices("recompute"), np.int64)
    useful = (choices != SELECTIVE) | setting.engine.selects_activations
    return _crossed(table, "recompute", choices, (choices == 0) | (useful & (not setting.model.opaque)))


def _accumulation(table: Table, setting: Setting, limits: PlanLimits) -> Table:
    fixed = limits.pinned.accumulation
    choices = np.array(divisors(setting.batch) if fixed is None else [fixed], np.int64)
    return _crossed(table, "accumulation", choices, setting.batch % (table["data"][:, None] * choices) == 0)


def _interleave(table: Table, setting: Setting, limits: PlanLimits) -> Table:
    fixed, most = limits.pinned.interleave, limits.max_interleave
    ways = [way for way in divisors(setting.model.blocks) if way <= most] if fixed is None else [fixed]
    choices = np.array(ways, np.int64)
    pipeline, accumulation = table["pipeline"][:, None], table["accumulation"][:, None]
    in_turns = (setting.model.blocks % (pipeline * choices) == 0) & (accumulation % pipeline == 0)
    return _crossed(table, "interleave", choices, (choices == 1) | ((pipeline > 1) & in_turns))
