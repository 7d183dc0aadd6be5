"""`refold users`: list users with their jobs and the GPU time that they have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli import make_client
from refold.cli.views import AsJson, Column, Table, print_json, print_tables

if TYPE_CHECKING:
    from refold.client.api import UserStatus


def users(as_json: AsJson = False) -> None:
    """List users with their jobs, GPU time used, fair share and weight.

    GPU hours count half after the half-life of the policy, seven days by default. Users with jobs compete: their part
    of the GPU time is compared with their share, and jobs of users below it have more weight.

    Example: refold users
    """
    found = make_client().users()
    if as_json:
        print_json(found)
        return
    columns: list[Column[UserStatus]] = [
        Column("user", lambda user: user.user or "–", whole=True),
        Column("tenant", lambda user: user.tenant, whole=True),
        Column("running", lambda user: f"{user.running:,}", number=True),
        Column("GPUs used", lambda user: f"{user.gpus:g}", number=True),
        Column("waiting", lambda user: f"{user.waiting:,}", number=True),
        Column("GPU hours", lambda user: f"{user.gpu_hours:,.1f}", number=True),
        Column("part", lambda user: _format(user.used, ".0%"), number=True),
        Column("fair share", lambda user: _format(user.share, ".0%"), number=True),
        Column("weight", lambda user: _format(user.weight, ".2f"), number=True),
    ]
    print_tables(Table("", columns, found))


def _format(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)
