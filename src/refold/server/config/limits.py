"""Limits that the owner sets: of the jobs of tenants (`limits` in `refold.yaml`), and of the HTTP server (`http`)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.client.api import MAX_BODY_BYTES, MAX_REQUEST_BYTES
from refold.errors import BadValue
from refold.model import HOUR, Seconds
from refold.model.documents import Duration, PositiveDuration
from refold.server.config.values import Name, Size

DEFAULT_MAX_GRACE: Seconds = HOUR
"""Maximum grace period of a job, if the owner sets none: time to save the largest checkpoint, and no more."""

Priority = Annotated[int, Meta(ge=-(2**31), le=2**31, description="a priority such as 0")]
JobCount = Annotated[int, Meta(ge=1, le=10**9, description="a number of jobs ≥ 1")]


class TenantLimits(msgspec.Struct, frozen=True):
    """Limits of a tenant; None: the general one applies, or there is none.

    `grace`, `priority`, `time`: of each job. `array`: tasks of an array. `jobs`: jobs that have not ended. `output`:
    bytes of stored output of each process.
    """

    grace: Duration | None = None
    priority: Priority | None = None
    time: PositiveDuration | None = None
    array: JobCount | None = None
    jobs: JobCount | None = None
    output: Size | None = None

    def over(self, general: TenantLimits) -> TenantLimits:
        """Return these limits, and the general ones where this tenant has none of its own."""
        values = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(general), strict=True)
        return TenantLimits(*(other if own is None else own for own, other in values))


class LimitsConfig(TenantLimits, frozen=True):
    """Limits of every tenant, and those of single tenants, which override them."""

    tenants: dict[Name, TenantLimits] = {}

    def of(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant. The grace period always has one."""
        general = TenantLimits(self.grace, self.priority, self.time, self.array, self.jobs, self.output)
        limits = self.tenants.get(tenant, TenantLimits()).over(general)
        return limits if limits.grace is not None else msgspec.structs.replace(limits, grace=DEFAULT_MAX_GRACE)


# Limits of the HTTP server (`http` in `refold.yaml`).

MIN_CONNECTIONS = 16
"""Fewer are never enforced: a web UI and some commands need them."""

Connections = Annotated[int, Meta(ge=MIN_CONNECTIONS, le=65_536, description="a number from 16 to 65536")]


class HttpConfig(msgspec.Struct, frozen=True):
    """What clients may do. `connections`: None: 1024, or fewer if the process has few file descriptors."""

    connections: Connections | None = None
    body_size: Size = MAX_BODY_BYTES

    def __post_init__(self) -> None:
        if self.body_size > MAX_REQUEST_BYTES:
            raise BadValue("body_size is too large, expected 4KiB to 8MiB")
