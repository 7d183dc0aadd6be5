"""`refold tenants`: list tenants with quota, usage and demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import make_client
from refold.cli.views import AsJson, Column, Table, draw_bar, print_json, print_line, print_tables

if TYPE_CHECKING:
    from refold.client.api import TenantStatus

BAR_WIDTH = 16


def tenants(as_json: AsJson = False) -> None:
    """List tenants with their quota, limit, current usage and waiting jobs.

    Example: refold tenants
    """
    found = make_client().tenants()
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
        Column("GPUs used", lambda tenant: f"{tenant.gpus:g}", number=True),
        Column("share of quota", lambda tenant: _usage_bar(tenant.gpus, tenant.quota_gpus), whole=True),
        Column("running", lambda tenant: f"{tenant.running:,}", number=True),
        Column("waiting", lambda tenant: f"{tenant.waiting:,}", number=True),
        Column("GPUs requested", lambda tenant: f"{tenant.waiting_gpus:g}", number=True),
    ]
    print_tables(Table("", columns, found))


def _usage_bar(used: float, quota: float) -> str:
    """Return a bar of the used share of the quota, with + if usage exceeds the quota."""
    if not quota:
        return ""
    return draw_bar(used / quota, BAR_WIDTH) + (" +" if used > quota else "")
