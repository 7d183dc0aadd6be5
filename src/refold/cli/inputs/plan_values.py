"""Values of options about plans: GPUs, memory, network rates and parts of plans."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated

from refold.cli import option
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.model import Link, Plan
    from refold.planning.perf import Training, TrainingSetup
    from refold.planning.plans import Pins, PlanSearch


MAX_GPUS = 2**17
"""Largest number of GPUs; more is taken for a typing error."""

MAX_AMOUNT = 2**24
"""Largest number of samples per step, tokens per sample, CPUs, GiB and GB/s."""

_COUNT_TYPE = re.compile(r"(\d+)\s*[x×]\s*(.+)", re.IGNORECASE | re.ASCII)
_TYPE_COUNT = re.compile(r"(.+?)\s*:\s*(\d+)", re.ASCII)
_NODES_COUNT_TYPE = re.compile(r"(\d+)\s*[x×]\s*(\d+)\s*:\s*(.+)", re.IGNORECASE | re.ASCII)


def parse_gpus(text: str) -> tuple[int, str, int]:
    """Parse --gpus into the number of GPUs, their type, and the number of nodes (0: not given)."""
    nodes = 0
    if found := _NODES_COUNT_TYPE.fullmatch(text.strip()):
        nodes, count, name = _parse_count(text, found[1]), _parse_count(text, found[2]), found[3]
        count *= nodes
    elif found := _COUNT_TYPE.fullmatch(text.strip()):
        count, name = _parse_count(text, found[1]), found[2]
    elif found := _TYPE_COUNT.fullmatch(text.strip()):
        count, name = _parse_count(text, found[2]), found[1]
    else:
        raise BadInput(f"--gpus {text}: expected a number and a type, such as 8xA100-80GB or A100-80GB:8")
    if not 1 <= count <= MAX_GPUS:
        raise BadInput(f"--gpus {text}: expected 1 to {MAX_GPUS:,} GPUs")
    return count, name, nodes


def _parse_count(text: str, digits: str) -> int:
    if len(digits) > len(str(MAX_GPUS)):
        raise BadInput(f"--gpus {text}: expected 1 to {MAX_GPUS:,} GPUs")
    return int(digits)


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)", re.ASCII)
_GIB = {"": 1.0, "gib": 1.0, "tib": 1024.0, "gb": 1e9 / 2**30, "tb": 1e12 / 2**30, "g": 1.0, "t": 1024.0}
_GIGABYTES = {"GB/s": 1.0, "GBps": 1.0, "Gb/s": 1 / 8, "Gbps": 1 / 8, "gbps": 1 / 8, "Gbit/s": 1 / 8, "gbit/s": 1 / 8}


def parse_gib(text: str) -> float:
    """Parse '1600GB', '1.5TiB' or '512' (GiB) into GiB."""
    return _parse_amount("--host-memory", text, lambda unit: _GIB.get(unit.lower()), "memory such as 1600GB or 1.5TiB")


def parse_network(text: str) -> Link:
    """Parse '100GB/s' or, in bits, '800Gb/s'. Ambiguous values (no unit, 'gb/s') are rejected."""
    from refold.model import Link

    return Link(
        "network", _parse_amount("--network", text, _GIGABYTES.get, "a rate such as 100GB/s, or 800Gb/s in bits")
    )


def _parse_amount(option: str, text: str, factor_of: Callable[[str], float | None], expected: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    factor = factor_of(found[2]) if found else None
    amount = float(found[1]) * factor if found and factor else 0.0
    if not (isfinite(amount) and 0 < amount <= MAX_AMOUNT):
        raise BadInput(f"{option} {text}: expected {expected}")
    return amount


def parse_pins(text: str) -> Pins:
    """Parse 'tp4 zero1' in the notation of plans: only fields in the text are pinned, even at their default ('tp1')."""
    from refold.model import parse_plan_fields
    from refold.planning.plans import Pins

    return Pins(**parse_plan_fields(text))


def find_plan(text: str, search: PlanSearch) -> Plan:
    from refold.model import parse_plan

    if not text.strip().isdecimal():
        return parse_plan(text)
    count = len(search.best)
    if not (len(text) < 9 and 1 <= int(text) <= count):
        numbers = f"expected 1 to {count}" if count else "no plan fits, so plans have no numbers; expected a plan"
        raise BadInput(f"no plan number {text}: {numbers}, or a plan such as 'dp8 zero1'")
    return search.best[int(text) - 1].plan


# Options that ask what a whole training takes.

TOKEN_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
"""Suffixes of numbers of tokens."""


@dataclass(frozen=True, slots=True)
class TrainingCostOptions:
    """The whole training: what it takes is shown if one of these is given."""

    tokens: Annotated[str | None, option("N", "Tokens of the training, such as 15T or 300B.")] = None
    price: Annotated[float | None, option("DOLLARS", "Price of a GPU hour.", min=0.0)] = None
    mtbf: Annotated[str | None, option("TIME", "Mean time between failures of the job, such as 3h.")] = None

    def parse(self, setup: TrainingSetup) -> tuple[Training | None, list[str]]:
        """Return the training that was asked about, if any, and a note on what was assumed."""
        from refold.cli import parse_optional_duration
        from refold.planning.perf import Training, default_tokens

        if self.tokens is None and self.price is None and self.mtbf is None:
            return None, []
        seconds = parse_optional_duration("--mtbf", self.mtbf) or 0.0
        if self.mtbf is not None and not seconds > 0:
            raise BadInput(f"--mtbf is {self.mtbf!r}, expected a duration > 0 such as 3h")
        tokens = default_tokens(setup) if self.tokens is None else _parse_tokens(self.tokens)
        notes = [] if self.tokens else [f"assuming --tokens {tokens / 1e9:.3g}B"]
        return Training(tokens, self.price or 0.0, seconds), notes


def _parse_tokens(text: str) -> float:
    unit = TOKEN_UNITS.get(text[-1:].casefold())
    try:
        tokens = float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        tokens = 0.0
    if not 1 <= tokens <= MAX_AMOUNT**2:
        raise BadInput(f"--tokens is {text!r}, expected a number ≥ 1 such as 15T, 300B or 1000000")
    return tokens
