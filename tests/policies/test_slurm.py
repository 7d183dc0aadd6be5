"""Slurm's own order: start times worked out by hand from Slurm's rules, and what its limits and dependencies do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from refold.core import Entry, Journals, ListJournal, StartRun
from refold.errors import BadValue
from refold.model import DAY, Job, Launch, NodeSet
from refold.policies.slurm import SiteFacts, Slurm, SlurmJobFacts, fair_tree
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job


def starts(jobs: Sequence[Job], *nodes: int, **settings: Any) -> dict[str, float]:
    """Return when each job starts. Backfill runs every ten seconds, with a resolution of one."""
    cluster = make_cluster(*nodes)
    audit, journal = Audit(cluster), ListJournal()
    policy = make_policy("slurm", {"bf_interval": 10.0, "bf_resolution": 1.0, **settings})
    simulate(jobs, cluster, policy, journal=Journals(audit, journal))
    return _starts(journal.entries)


def _starts(entries: Sequence[Entry]) -> dict[str, float]:
    return {order.job: entry.now for entry in entries for order in entry.orders if isinstance(order, StartRun)}


def site(**jobs: SlurmJobFacts) -> SiteFacts:
    return SiteFacts(age_weight=0.0, jobs=jobs)


def test_a_job_that_does_not_fit_blocks_the_others_until_backfill_runs() -> None:
    jobs = [
        make_job("long", gpus=6, work=100.0, time_limit=100.0),
        make_job("wide", at=1.0, gpus=8, work=10.0, time_limit=50.0),
        make_job("short", at=2.0, gpus=2, work=10.0, time_limit=60.0),
        make_job("late", at=3.0, gpus=2, work=10.0, time_limit=98.0),
    ]
    assert starts(jobs, 8) == {"long": 0.0, "short": 10.0, "wide": 100.0, "late": 110.0}
    assert starts(jobs, 8, backfill=False) == {"long": 0.0, "wide": 100.0, "short": 110.0, "late": 110.0}


@pytest.mark.parametrize(("limit", "start"), [(80.0, 10.0), (200.0, 100.0)])
def test_backfill_keeps_whole_nodes_free_although_a_job_needs_a_part_of_them(limit: float, start: float) -> None:
    jobs = [
        make_job("running", gpus=6, work=100.0, time_limit=100.0),
        make_job("first", at=1.0, gpus=3, work=10.0, time_limit=50.0),
        make_job("beside", at=2.0, gpus=2, work=10.0, time_limit=limit),  # 5 of 8 GPUs with the first
    ]
    assert starts(jobs, 8) == {"running": 0.0, "first": 100.0, "beside": start}


def test_time_limits_and_not_run_times_decide_what_delays_another_job() -> None:
    jobs = [
        make_job("long", gpus=6, work=20.0, time_limit=100.0),
        make_job("wide", at=1.0, gpus=8, work=10.0, time_limit=50.0),
        make_job("unlimited", at=2.0, gpus=2, work=1.0),
    ]
    assert starts(jobs, 8) == {"long": 0.0, "wide": 20.0, "unlimited": 30.0}


def test_a_job_that_cannot_start_within_the_window_has_no_nodes_kept() -> None:
    jobs = [
        make_job("long", gpus=6, work=100.0, time_limit=2 * DAY),
        make_job("wide", at=1.0, gpus=8, work=10.0, time_limit=50.0),
        make_job("unlimited", at=2.0, gpus=2, work=500.0),
    ]
    assert starts(jobs, 8) == {"long": 0.0, "unlimited": 10.0, "wide": 510.0}


def test_a_job_that_names_its_nodes_blocks_only_these() -> None:
    named = make_job("named", at=1.0, gpus=8, work=10.0, time_limit=50.0)
    demand = replace(named.demand, allowed_nodes=NodeSet.of([0]))
    jobs = [
        make_job("long", gpus=5, work=100.0, time_limit=100.0),
        replace(named, demand=demand),
        make_job("next", at=2.0, gpus=6, work=10.0, time_limit=500.0),
    ]
    assert starts(jobs, 8, 8, site=site(named=SlurmJobFacts(5.0, names_nodes=True)))["next"] == 2.0


def test_jobs_start_in_the_order_of_priorities_which_grow_with_age() -> None:
    jobs = [make_job(name, at=at, gpus=8, work=100.0) for name, at in (("a", 0.0), ("old", 1.0), ("new", 60.0))]
    facts = {"old": SlurmJobFacts(10.0), "new": SlurmJobFacts(50.0)}
    growing = SiteFacts(age_weight=100.0, max_age=100.0, calc_period=1.0, jobs=facts)
    assert starts(jobs, 8, site=growing) == {"a": 0.0, "old": 100.0, "new": 200.0}
    constant = SiteFacts(age_weight=0.0, jobs=facts)
    assert starts(jobs, 8, site=constant) == {"a": 0.0, "new": 100.0, "old": 200.0}


def test_users_who_have_used_less_of_their_share_come_first_and_usage_of_runs_counts() -> None:
    shares = {"root": 1.0, "root/a": 1.0, "root/a/@x": 1.0, "root/b": 1.0, "root/b/@y": 1.0}
    facts = {f"{user}{number}": SlurmJobFacts(user=path) for user, path in (("a", "root/a/@x"), ("b", "root/b/@y"))
             for number in range(3)}  # fmt: skip
    weights = SiteFacts(
        age_weight=0.0,
        fair_share_weight=100.0,
        calc_period=1.0,
        shares=shares,
        usage={"root/a/@x": 150.0, "root/b/@y": 0.0},
        jobs=facts,
    )
    jobs = [make_job(name, gpus=8, work=100.0) for name in ("a0", "a1", "b0", "b1", "b2")]
    found = starts(jobs, 8, site=weights)
    assert sorted(found, key=found.__getitem__) == ["b0", "b1", "a0", "b2", "a1"]


def test_fair_tree_ranks_accounts_before_users_and_equal_ranks_share_a_factor() -> None:
    shares = {"r": 1.0, "r/a": 1.0, "r/a/@x": 1.0, "r/a/@y": 1.0, "r/b": 3.0, "r/b/@z": 1.0, "r/@root": 1.0}
    usage = {"r/a/@x": 10.0, "r/a/@y": 30.0, "r/b/@z": 60.0, "r/@root": 0.0}
    # r/b has used 0.6 of everything with 3 of 5 shares: level 1. r/a has used 0.4 with 1 of 5: level 0.5.
    assert fair_tree(shares, usage) == {"r/@root": 1.0, "r/b/@z": 0.75, "r/a/@x": 0.5, "r/a/@y": 0.25}
    assert fair_tree(shares, dict.fromkeys(usage, 0.0)) == dict.fromkeys(usage, 1.0)


def test_limits_are_shared_by_the_jobs_that_use_them_and_do_not_block_others() -> None:
    facts = {name: SlurmJobFacts(uses={"licence solver": 1}) for name in ("a", "b", "c")}
    limited = SiteFacts(limits={"licence solver": 2}, jobs={**facts, "d": SlurmJobFacts()})
    jobs = [make_job(name, work=100.0, time_limit=100.0) for name in ("a", "b", "c", "d")]
    assert starts(jobs, 8, site=limited) == {"a": 0.0, "b": 0.0, "d": 0.0, "c": 100.0}


@pytest.mark.parametrize(
    ("after", "start"), [(("afterany:a",), 100.0), (("afterok:a", "afterok:b"), 300.0), (("singleton",), 300.0)]
)
def test_dependent_jobs_start_when_the_others_have_ended(after: tuple[str, ...], start: float) -> None:
    jobs = [
        make_job("a", work=100.0, group="x"),
        make_job("b", work=300.0, group="x"),
        make_job("c", work=1.0, group="x", launch=Launch(after=after)),
    ]
    assert starts(jobs, 8) == {"a": 0.0, "b": 0.0, "c": start}


def test_a_job_waits_for_all_tasks_of_an_array_and_for_its_begin_time() -> None:
    jobs = [
        make_job("7_0", work=100.0),
        make_job("7_1", work=200.0),
        make_job("next", work=1.0, launch=Launch(after=("afterany:7_*",))),
        make_job("later", work=1.0, launch=Launch(begin=50.0)),
    ]
    assert starts(jobs, 8) == {"7_0": 0.0, "7_1": 0.0, "later": 50.0, "next": 200.0}


def test_settings_that_are_none_are_errors() -> None:
    with pytest.raises(BadValue, match="bf_interval"):
        Slurm(bf_interval=0.0)
    with pytest.raises(BadValue, match="the facts of a Slurm site are wrong"):
        Slurm(site={"limits": 3})
    assert Slurm(site={"limits": {"x": 3}}).name == "slurm"
