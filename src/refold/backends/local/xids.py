"""What the driver's numbered errors (XIDs) say of a GPU: it is bad, somebody should look, or an application did it.

The sentences are ours; which is which follows NVIDIA's catalogue of XIDs (docs.nvidia.com/deploy/xid-errors) and its
checks of health, which drain a machine for those that need a reset or a repair.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["bad", "look", "application"]


class Xid(NamedTuple):
    """What one number means."""

    verdict: Verdict
    says: str


def meaning(number: int) -> Xid:
    """What a number means; of one that nobody listed, that somebody should look."""
    return XIDS.get(number) or Xid("look", "not in the table of known errors")


def _bad(says: str) -> Xid:
    return Xid("bad", says)


def _look(says: str) -> Xid:
    return Xid("look", says)


def _application(says: str) -> Xid:
    return Xid("application", says)


XIDS: dict[int, Xid] = {
    8: _application("a command of an application did not end in time"),
    13: _application("a kernel of an application went out of bounds or ran a wrong instruction"),
    31: _application("an application read or wrote memory that it does not have"),
    32: _look("a corrupt stream of commands: the application, the driver or the bus"),
    38: _look("the firmware of the driver failed"),
    43: _application("an application's channel was stopped after a fault of its own"),
    45: _application("an application was ended and its channels with it"),
    46: _bad("the GPU stopped processing"),
    48: _bad("an error of two bits in its memory, which cannot be corrected"),
    61: _look("its microcontroller reported a breakpoint or a warning"),
    62: _bad("its microcontroller halted"),
    63: _look("a row of its memory will be replaced at the next reset"),
    64: _bad("a row of its memory could not be replaced"),
    66: _application("a driver call that is not allowed"),
    68: _application("its video engine had a fault"),
    69: _look("its graphics engine had an error: the hardware or the driver"),
    74: _bad("an error of its NVLink"),
    79: _bad("it has fallen off the bus"),
    92: _look("its memory has many errors of single bits, all corrected"),
    94: _look("an error of its memory, contained: the applications that used it have ended"),
    95: _bad("an error of its memory that was not contained: nothing that ran on it can be trusted"),
    109: _application("a context switch did not end in time"),
    110: _bad("a fault of its security engine"),
    119: _bad("its system processor did not answer in time"),
    120: _bad("its system processor failed"),
    121: _look("an error of its link between chips, corrected"),
    136: _bad("its NVLink could not be trained"),
    140: _bad("an error of its memory that could not be recovered from"),
    143: _bad("it could not be initialised"),
    154: _look("the driver has changed what it recommends to do about it: see nvidia-smi -q"),
}
"""Every number that is known here, with a sentence."""
