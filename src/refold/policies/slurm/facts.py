"""What Slurm knows about a site and its jobs, as far as it decides who starts: a setting of the policy `slurm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from refold.errors import BadValue
from refold.model import DAY, MINUTE, Seconds


class SlurmJobFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about a job.

    `priority`: without its age and its fair share, which change. `eligible`: since when its age counts; None: since it
    was submitted. `user`: its place among `SiteFacts.shares`. `billing`: how fast it uses the share of its user.
    `uses`: the amounts that it takes of `SiteFacts.limits` while it runs. `names_nodes`: it needs certain nodes.
    """

    priority: float = 0.0
    eligible: Seconds | None = None
    user: str = ""
    billing: float = 1.0
    uses: dict[str, int] = {}
    names_nodes: bool = False


class SiteFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Priorities and limits of a site.

    `age_weight`: the priority of a job that has waited for `max_age`. `fair_share_weight`: the priority of jobs of the
    user with the lowest usage in relation to its share; usage decays with `half_life`. `calc_period`: time between two
    calculations of both. `shares`: of accounts and users, whose paths have a slash per level, such as 'root/lab/ada'.
    `usage`: of all users. `limits`: licences, and what jobs of a QOS, an account or an array may use at once.
    """

    age_weight: float = 1.0
    max_age: Seconds = 7 * DAY
    fair_share_weight: float = 0.0
    half_life: Seconds = 7 * DAY
    calc_period: Seconds = 5 * MINUTE
    shares: dict[str, float] = {}
    usage: dict[str, float] = {}
    limits: dict[str, int] = {}
    jobs: dict[str, SlurmJobFacts] = {}

    @staticmethod
    def from_settings(given: SiteFacts | Mapping[str, Any]) -> SiteFacts:
        """Return facts that may be a document: policies are made from the header of a journal."""
        if isinstance(given, SiteFacts):
            return given
        try:
            return msgspec.convert(given, SiteFacts)
        except msgspec.ValidationError as error:
            raise BadValue(f"the facts of a Slurm site are wrong: {error}") from None
