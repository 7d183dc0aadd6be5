"""`refold tenants`: what each may count on, what it uses, what it waits for."""

from __future__ import annotations

from refold.cli import daemon
from refold.cli.views import AsJson, Column, Table, bar, print_json, print_tables

WIDTH = 16


def tenants(as_json: AsJson = False) -> None:
    """List the tenants: their quota and limit, what they use now, and what they wait for.

    Example: refold tenants
    """
    found = daemon().tenants()
    if as_json:
        print_json(found)
        return
    columns = {
        "name": Column("tenant", whole=True),
        "quota": Column("quota", number=True),
        "limit": Column("limit", number=True),
        "gpus": Column("uses GPUs", number=True),
        "bar": Column("of its quota", whole=True),
        "running": Column("jobs run", number=True),
        "waiting": Column("wait", number=True),
        "waiting_gpus": Column("for GPUs", number=True),
    }
    rows = [
        {
            "name": tenant.name,
            "quota": f"{tenant.quota_gpus:g}" if tenant.quota_gpus else "–",
            "limit": f"{tenant.limit_gpus:g}" if tenant.limit_gpus else "–",
            "gpus": f"{tenant.gpus:g}",
            "bar": _bar_text(tenant.gpus, tenant.quota_gpus),
            "running": f"{tenant.running:,}",
            "waiting": f"{tenant.waiting:,}",
            "waiting_gpus": f"{tenant.waiting_gpus:g}",
        }
        for tenant in found
    ]
    print_tables(Table("", columns, rows))


def _bar_text(used: float, quota: float) -> str:
    """A bar, and + where more is borrowed."""
    if not quota:
        return ""
    return bar(used / quota, WIDTH) + (" +" if used > quota else "")
