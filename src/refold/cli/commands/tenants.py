"""`refold tenants` and `users`: their jobs, and what they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import connect
from refold.cli.views import AsJson, Column, Table, draw_bar, print_json, print_line, print_tables, resource_text

if TYPE_CHECKING:
    from refold.client.api import TenantStatus, UserStatus


BAR_WIDTH = 16


def tenants(as_json: AsJson = False) -> None:
    """List tenants with their quota, limit, current usage and waiting jobs.

    Example: refold tenants
    """
    found = connect().tenants()
    if as_json:
        print_json(found)
        return
    if not found:
        print_line("no tenants: none is configured, and no job is running or waiting")
        return
    columns: list[Column[TenantStatus]] = [
        Column("tenant", lambda tenant: tenant.name, whole=True),
        Column("quota", lambda tenant: f"{tenant.quota_gpus:g}" if tenant.quota_gpus else "–", number=True),
        Column("limit", lambda tenant: f"{tenant.limit_gpus:g}" if tenant.limit_gpus else "–", number=True),
        Column(resource_text("GPUs used"), lambda tenant: f"{tenant.gpus:g}", number=True),
        Column("share of quota", lambda tenant: _usage_bar(tenant.gpus, tenant.quota_gpus), whole=True),
        Column("running", lambda tenant: f"{tenant.running:,}", number=True),
        Column("waiting", lambda tenant: f"{tenant.waiting:,}", number=True),
        Column(resource_text("GPUs requested"), lambda tenant: f"{tenant.waiting_gpus:g}", number=True),
    ]
    print_tables(Table("", columns, found))


def _usage_bar(used: float, quota: float) -> str:
    """Return a bar of the used share of the quota, with + if usage exceeds the quota."""
    if not quota:
        return ""
    return draw_bar(used / quota, BAR_WIDTH) + (" +" if used > quota else "")


def users(as_json: AsJson = False) -> None:
    """List users with their jobs, GPU time used, fair share and weight.

    GPU hours count half after the half-life of the policy, seven days by default. Users with jobs compete: their part
    of the GPU time is compared with their share, and jobs of users below it have more weight.

    Example: refold users
    """
    found = connect().users()
    if as_json:
        print_json(found)
        return
    columns: list[Column[UserStatus]] = [
        Column("user", lambda user: user.user or "–", whole=True),
        Column("tenant", lambda user: user.tenant, whole=True),
        Column("running", lambda user: f"{user.running:,}", number=True),
        Column(resource_text("GPUs used"), lambda user: f"{user.gpus:g}", number=True),
        Column("waiting", lambda user: f"{user.waiting:,}", number=True),
        Column(resource_text("GPU hours"), lambda user: f"{user.gpu_hours:,.1f}", number=True),
        Column("part", lambda user: _format(user.used, ".0%"), number=True),
        Column("fair share", lambda user: _format(user.share, ".0%"), number=True),
        Column("weight", lambda user: _format(user.weight, ".2f"), number=True),
    ]
    print_tables(Table("", columns, found))


def _format(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)
