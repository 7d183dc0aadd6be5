"""The settings of a run, which the back end passes in environment variables. No PyTorch."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from refold.errors import BadInput
from refold.model import Plan, Seconds
from refold.train.shape import AgentRanks

CHANGE_VARIABLE = "REFOLD_CHANGE"
LOOPBACK_ADDRESS = "127.0.0.1"

DEFAULT_GRACE: Seconds = 30.0


class RunSettings(msgspec.Struct, frozen=True):
    """What an agent reads from its environment."""

    plan: Plan
    gang: AgentRanks
    address: str
    port: int | None
    grace: Seconds
    stop_signal: int
    devices: str | None
    progress: Path | None
    change: Path | None


def read_settings(environment: Mapping[str, str], plan: Plan | None = None) -> RunSettings:
    """Read the settings of a run from its environment; `plan` overrides the one found there."""
    slots = [slot for slot in environment.get("REFOLD_SLOTS", "").split(",") if slot]
    instances = _integer(environment, "REFOLD_INSTANCES", at_least=1, default="1")
    plan = plan or read_plan(environment) or Plan(data=max(1, len(slots)) * instances)
    local, rest = divmod(plan.gpus, instances)
    if rest or (instances > 1 and slots and len(slots) != local):
        raise BadInput(
            f"plan {plan} needs {plan.gpus} ranks on {instances} instances, of which this one has {len(slots)} GPUs; "
            "every instance must have the same number"
        )
    is_gang = instances > 1
    progress, change = environment.get("REFOLD_PROGRESS"), environment.get(CHANGE_VARIABLE)
    return RunSettings(
        plan=plan,
        gang=AgentRanks(_integer(environment, "REFOLD_INSTANCE", default="0") * local, instances),
        address=environment.get("MASTER_ADDR", LOOPBACK_ADDRESS) if is_gang else LOOPBACK_ADDRESS,
        port=_integer(environment, "MASTER_PORT", at_least=1) if is_gang else None,
        grace=_read_grace(environment),
        stop_signal=_read_signal(environment),
        devices=environment.get("CUDA_VISIBLE_DEVICES"),
        progress=Path(progress) if progress else None,
        change=Path(change) if change else None,
    )


def read_plan(environment: Mapping[str, str]) -> Plan | None:
    """Read the plan of a run from its environment."""
    text = environment.get("REFOLD_PLAN")
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.DecodeError as error:
        raise BadInput(f"REFOLD_PLAN is {text!r}, expected a plan as JSON: {error}") from None


def _integer(environment: Mapping[str, str], name: str, *, at_least: int = 0, default: str = "") -> int:
    text = environment.get(name, default)
    if not text.isdecimal() or int(text) < at_least:
        raise BadInput(f"{name} is {text!r}, expected a whole number ≥ {at_least}")
    return int(text)


def _read_grace(environment: Mapping[str, str]) -> Seconds:
    text = environment.get("REFOLD_GRACE", str(DEFAULT_GRACE))
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"REFOLD_GRACE is {text!r}, expected a number of seconds") from None


def _read_signal(environment: Mapping[str, str]) -> signal.Signals:
    name = environment.get("REFOLD_STOP_SIGNAL", "TERM")
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise BadInput(f"REFOLD_STOP_SIGNAL is {name!r}, expected the name of a signal, such as TERM") from None
