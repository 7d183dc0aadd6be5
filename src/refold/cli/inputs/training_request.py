"""Options that ask what a whole training takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.inputs.plan_values import MAX_AMOUNT
from refold.errors import BadInput
from refold.model import parse_duration

if TYPE_CHECKING:
    from refold.planning.perf import Training, TrainingSetup

TOKEN_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
"""Suffixes of numbers of tokens."""


@dataclass(frozen=True, slots=True)
class TrainingCostOptions:
    """The whole training: what it takes is shown if one of these is given."""

    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="Tokens of the training, such as 15T or 300B.")
    ] = None
    price: Annotated[float | None, typer.Option("--price", metavar="DOLLARS", min=0.0, help="Price of a GPU hour.")] = (
        None
    )
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", metavar="TIME", help="Mean time between failures of the job, such as 3h.")
    ] = None

    def parse(self, setup: TrainingSetup) -> tuple[Training | None, list[str]]:
        """Return the training that was asked about, if any, and a note on what was assumed."""
        from refold.planning.perf import Training, default_tokens

        if self.tokens is None and self.price is None and self.mtbf is None:
            return None, []
        seconds = 0.0 if self.mtbf is None else parse_duration(self.mtbf)
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
