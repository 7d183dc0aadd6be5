"""NVIDIA driver errors (XIDs): whether the GPU is defective, should be inspected, or an application is at fault.

The descriptions are ours. The classification follows NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors) and its
health checks, which drain a node for errors that require a reset or a repair.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["bad", "inspect", "application"]
"""The GPU is defective; it should be inspected; or an application is at fault."""


class Xid(NamedTuple):
    """The meaning of an XID."""

    verdict: Verdict
    text: str


def describe_xid(number: int) -> Xid:
    """Return the meaning of an XID; unlisted ones should be inspected."""
    return XIDS.get(number) or Xid("inspect", "not in the table of known errors")


def _bad(text: str) -> Xid:
    return Xid("bad", text)


def _inspect(text: str) -> Xid:
    return Xid("inspect", text)


def _application(text: str) -> Xid:
    return Xid("application", text)


XIDS: dict[int, Xid] = {
    8: _application("a command of an application timed out"),
    13: _application("a kernel of an application accessed memory out of bounds or executed an illegal instruction"),
    31: _application("an application accessed unmapped memory"),
    32: _inspect("corrupt command stream, caused by the application, the driver or the PCIe bus"),
    38: _inspect("driver firmware error"),
    43: _application("the channel of an application was stopped after a fault of the application"),
    45: _application("an application was terminated together with its channels"),
    46: _bad("the GPU stopped processing"),
    48: _bad("double-bit ECC error in GPU memory, which cannot be corrected"),
    61: _inspect("the microcontroller of the GPU reported a breakpoint or a warning"),
    62: _bad("the microcontroller of the GPU halted"),
    63: _inspect("a row of GPU memory will be remapped at the next reset"),
    64: _bad("a row of GPU memory could not be remapped"),
    66: _application("an application made an illegal driver call"),
    68: _application("video engine fault"),
    69: _inspect("graphics engine error, caused by the hardware or the driver"),
    74: _bad("NVLink error"),
    79: _bad("the GPU has fallen off the bus"),
    92: _inspect("high rate of single-bit ECC errors, all corrected"),
    94: _inspect("contained GPU memory error: the affected applications were terminated"),
    95: _bad("uncontained GPU memory error: results of anything that ran on the GPU may be corrupt"),
    109: _application("a context switch timed out"),
    110: _bad("security engine fault"),
    119: _bad("the GPU system processor (GSP) timed out"),
    120: _bad("the GPU system processor (GSP) failed"),
    121: _inspect("corrected error of the chip-to-chip link (C2C)"),
    136: _bad("NVLink training failed"),
    140: _bad("unrecovered ECC error in GPU memory"),
    143: _bad("the GPU could not be initialised"),
    154: _inspect("the driver changed its recommended recovery action: see nvidia-smi -q"),
}
"""The known XIDs with their descriptions."""
