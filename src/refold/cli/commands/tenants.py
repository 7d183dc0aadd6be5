"""`refold tenants`: list tenants with quota, usage and demand."""

from __future__ import annotations

from refold.cli import make_client
from refold.cli.views import AsJson, Column, Table, draw_bar, print_json, print_tables

BAR_WIDTH = 16


def tenants(as_json: AsJson = False) -> None:
    """List tenants with their quota, limit, current usage and waiting jobs.

    Example: refold tenants
    """
    found = make_client().tenants()
    if as_json:
        print_json(found)
        return
    columns = {
        "name": Column("tenant", whole=True),
        "quota": Column("quota", number=True),
        "limit": Column("limit", number=True),
        "gpus": Column("GPUs used", number=True),
        "bar": Column("share of quota", whole=True),
        "running": Column("running", number=True),
        "waiting": Column("waiting", number=True),
        "waiting_gpus": Column("GPUs requested", number=True),
    }
    rows = [
        {
            "name": tenant.name,
            "quota": f"{tenant.quota_gpus:g}" if tenant.quota_gpus else "–",
            "limit": f"{tenant.limit_gpus:g}" if tenant.limit_gpus else "–",
            "gpus": f"{tenant.gpus:g}",
            "bar": _usage_bar(tenant.gpus, tenant.quota_gpus),
            "running": f"{tenant.running:,}",
            "waiting": f"{tenant.waiting:,}",
            "waiting_gpus": f"{tenant.waiting_gpus:g}",
        }
        for tenant in found
    ]
    print_tables(Table("", columns, rows))


def _usage_bar(used: float, quota: float) -> str:
    """Return a bar of the used share of the quota, with + if usage exceeds the quota."""
    if not quota:
        return ""
    return draw_bar(used / quota, BAR_WIDTH) + (" +" if used > quota else "")
