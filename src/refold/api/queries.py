"""What is asked for beside the path of a call: each struct is a question's parameters, with their limits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.api.wire import LONGEST_NAME, JobState, Text

LARGEST_LOGS = 1024 * 1024
"""Bytes of output in one answer."""

MOST_JOBS = 1000
MOST_NUMBER = 2**53
"""Every whole number up to here is told exactly by any reader of JSON."""

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Number = Annotated[int, Meta(ge=0, le=MOST_NUMBER)]


class JobsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: those that are not over, as the queue has them; or with `ended` the others, the latest first.

    `after` is the `next` of a page before; 0: from the beginning.
    """

    state: Annotated[list[JobState], Meta(max_length=8)] | None = None
    tenant: Name = ""
    user: Name = ""
    name: Name = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_JOBS)] = 100
    after: Number = 0
    ended: bool = False


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which piece of output: of the last `run` if none is named; a negative `offset` is so many bytes from the end."""

    run: Annotated[int, Meta(ge=1, le=MOST_NUMBER)] | None = None
    instance: Annotated[int, Meta(ge=0, le=MOST_NUMBER)] = 0
    offset: Annotated[int, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)] = 0
    limit: Annotated[int, Meta(ge=1, le=LARGEST_LOGS)] = 64 * 1024


class GpuQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU of a node; without, all of it."""

    gpu: Annotated[int, Meta(ge=0, le=2**16)] | None = None


class DrainQuery(GpuQuery, frozen=True, forbid_unknown_fields=True):
    """What is to take no more work, and why; `move`: runs on the node wait again (those on a GPU always do)."""

    why: Text = ""
    move: bool = False


class SnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether jobs come with what is for nobody else: commands, variables, and addresses that are told of them."""

    whole: bool = False


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events after the number `since` (without: from now on), of one job or tenant; `follow`: also those to come."""

    since: Number | None = None
    job: Name = ""
    tenant: Name = ""
    follow: bool = True
