"""Slurm's own order as it is read: configuration, priorities, shares, limits; and what is simulated with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slurm_output import NOW, FakePrograms, job_json, node_line
from typer.testing import CliRunner, Result

from refold.cli.lazy_group import app
from refold.core import JobHeld, JobSubmitted
from refold.engines.slurm import observation, observe_slurm
from refold.engines.slurm.history import COLUMNS
from refold.engines.slurm.observation import SlurmSnapshot
from refold.engines.slurm.scheduling import Scheduling, dependencies
from refold.model import NodeSet, Reason
from refold.policies.slurm import SiteFacts, SlurmJobFacts
from refold.server import encode_snapshot

CONFIG = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "associations,limits,qos",
    "PreemptType": "preempt/none",
    "PriorityType": "priority/multifactor",
    "PriorityCalcPeriod": "00:05:00",
    "PriorityDecayHalfLife": "7-00:00:00",
    "PriorityMaxAge": "1-00:00:00",
    "PriorityWeightAge": "240",
    "PriorityWeightFairShare": "1000",
    "SchedulerParameters": "bf_interval=60,bf_window=2880,bf_continue,bf_max_job_test=50",
    "SchedulerType": "sched/backfill",
}
SSHARE = """\
Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare
root|||0.000000|1000||
 lab||1|0.500000|900||
  lab|ada|1|0.500000|900||0.500000
 bio||1|0.500000|100||
  bio|eve|1|1.000000|100||1.000000
"""
QOS = """\
Name|Priority|Preempt|GrpTRES|GrpJobs|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxJobsPA
normal|0||||gres/gpu=8|||
small|0||gres/gpu=4,cpu=64|2||||
urgent|9|small,normal||||||
"""
ASSOCIATIONS = """\
Cluster|Account|User|GrpTRES|GrpJobs
c|lab||gres/gpu=6|
c|lab|ada||5
"""
TABLES = {"sshare": SSHARE, "qos": QOS, "assoc": ASSOCIATIONS}
SITE: dict[str, Any] = {"config": CONFIG, "tables": TABLES}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "time", lambda: float(NOW))


def look(*jobs: dict[str, Any], nodes: int = 2, **site: Any) -> SlurmSnapshot:
    lines = [node_line(f"n{number}") for number in range(nodes)]
    return observe_slurm(FakePrograms([*jobs], lines, sacct="", **site).run, 3600.0)


def facts_of(found: SlurmSnapshot) -> SiteFacts:
    return SiteFacts.from_settings(found.header.settings["site"])


def test_the_policy_of_a_snapshot_is_slurm_as_the_site_has_configured_it() -> None:
    found = look(job_json(1, priority=500 + 10 + 7), **SITE)
    settings = dict(found.header.settings)
    site = settings.pop("site")
    assert found.header.policy == "slurm"
    assert settings == {"bf_interval": 60.0, "bf_window": 172_800.0, "bf_max_job_test": 50}
    weights = {key: value for key, value in site.items() if key not in ("jobs", "limits")}
    assert weights == {
        "age_weight": 240.0,
        "max_age": 86_400.0,
        "fair_share_weight": 1000.0,
        "half_life": 604_800.0,
        "calc_period": 300.0,
        "shares": {"root": 0.0, "root/lab": 1.0, "root/lab/@ada": 1.0, "root/bio": 1.0, "root/bio/@eve": 1.0},
        "usage": {"root/lab/@ada": 900.0, "root/bio/@eve": 100.0},
    }
    # An hour of 24 is worth 10, and of two users, ada has used more of her share: half of 1000.
    assert facts_of(found).jobs["1"].priority == pytest.approx(7.0)
    assert found.notes == ["no past jobs, so run times are predicted from time limits: Slurm's accounting has no jobs in this time"]  # fmt: skip  # noqa: E501


def test_limits_of_qos_accounts_users_arrays_and_licences_are_those_of_the_jobs_that_share_them() -> None:
    running = job_json(1, 2, state="RUNNING", qos="small", licenses="solver:1")
    waiting = job_json(2, 4, qos="small", licenses="solver:2", state_reason="QOSGrpGRES")
    array = job_json(7, 1, array_job_id=7, array_task_string="0-3%2", state_reason="JobArrayTaskLimit")
    licences = "LicenseName=solver Total=5 Used=3 Free=2 Reserved=0 Remote=no\n"
    found = look(running, waiting, array, **SITE, licences=licences)
    site = facts_of(found)
    assert site.limits == {
        "array 7": 2,
        "licence solver": 3,  # two are held by jobs without GPUs or that may not be seen
        "qos small GrpTRES gres/gpu": 4,
        "qos small GrpTRES cpu": 64,
        "qos small GrpJobs jobs": 2,
        "qos normal MaxTRESPU gres/gpu of ada": 8,
        "account lab GrpTRES gres/gpu": 6,
        "account lab user ada GrpJobs jobs": 5,
    }
    assert site.jobs["2"].uses == {
        "qos small GrpTRES gres/gpu": 4,
        "qos small GrpTRES cpu": 1,
        "qos small GrpJobs jobs": 1,
        "account lab GrpTRES gres/gpu": 4,
        "account lab user ada GrpJobs jobs": 1,
        "licence solver": 2,
    }
    assert site.jobs["7_3"].uses["array 7"] == 1
    assert [type(event) for event in found.entry.events if isinstance(event, JobHeld)] == []
    reasons = {wait.job: wait.reason for wait in found.entry.waits}
    assert (reasons["2"], reasons["7_0"]) == (Reason.LIMIT, Reason.ARRAY_LIMIT)


def test_a_limit_that_is_not_known_holds_a_job() -> None:
    found = look(job_json(1, state_reason="AssocMaxJobsLimit"), config=CONFIG)
    assert [event for event in found.entry.events if isinstance(event, JobHeld)] == [JobHeld("1", Reason.LIMIT)]
    denied = "sacctmgr: Access/permission denied"
    assert f"limits of QOS of Slurm are not known, and left out when its order is simulated: {denied}" in found.notes


def test_exclusive_and_named_nodes_dependencies_and_begin_times_are_those_of_the_job() -> None:
    found = look(
        job_json(1, 1, shared=0),
        job_json(2, required_nodes="n1"),
        job_json(3, excluded_nodes="n1"),
        job_json(4, dependency="afterok:2_*(unfulfilled),afterany:3(unfulfilled)", eligible_time=0),
        job_json(5, state_reason="BeginTime", eligible_time=NOW + 60),
        job_json(6, dependency="after:2(unfulfilled)?afterok:3(unfulfilled)", eligible_time=0),
    )
    jobs = {event.job.id: event.job for event in found.entry.events if isinstance(event, JobSubmitted)}
    assert (jobs["1"].demand.gpus, jobs["1"].demand.cpu_milli) == (8, 64_000)
    assert [jobs[name].demand.allowed_nodes for name in ("1", "2", "3")] == [None, NodeSet.of([1]), NodeSet.of([0])]
    assert jobs["4"].launch.after == ("2_*", "afterany:3")
    assert (jobs["5"].launch.begin, jobs["6"].launch.after) == (NOW + 60.0, ())
    assert facts_of(found).jobs["2"].names_nodes


def test_a_site_without_backfill_and_priorities_is_simulated_so() -> None:
    found = look(job_json(1), config={"SchedulerType": "sched/builtin", "PriorityType": "priority/basic"})
    assert (found.header.settings["backfill"], facts_of(found).age_weight) == (False, 0.0)
    assert facts_of(found).jobs["1"] == SlurmJobFacts(1.0, NOW - 3600.0)


@pytest.mark.parametrize("text", ["", "after:3", "expand:7", "afterok:1?afterok:2", "afterburstbuffer:8"])
def test_dependencies_of_other_kinds_are_ignored(text: str) -> None:
    assert dependencies(text) == ()


def test_jobs_of_a_qos_are_preempted_only_if_the_configuration_says_so() -> None:
    def preempted(kind: str) -> frozenset[str]:
        programs = FakePrograms([], [], config={**CONFIG, "PreemptType": kind}, tables=TABLES)
        return Scheduling(programs.run).preempted_qos

    assert preempted("preempt/none") == frozenset()
    assert preempted("preempt/qos") == {"small", "normal"}


def test_start_estimates_of_a_snapshot_follow_slurm_s_order_and_have_wider_ranges(tmp_path: Path) -> None:
    running = job_json(1, 8, state="RUNNING", time_limit=60, start_time=NOW - 600, nodes="n0")
    found = look(
        running,
        job_json(2, 8, priority=10, time_limit=60),
        job_json(3, 8, priority=900, time_limit=60, start_time=NOW + 3000),
        nodes=1,
        config=CONFIG,
    )
    path = tmp_path / "now.jsonl"
    path.write_bytes(encode_snapshot(found.header, found.entry, False))
    result = CliRunner().invoke(app, ["queue", str(path), "--start", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["job"]: row for row in json.loads(result.stdout)["waiting"]}
    assert rows["2"]["expected"] > rows["3"]["expected"] > NOW
    assert rows["3"]["scheduler_estimate"] == NOW + 3000
    assert rows["2"]["latest"] - NOW >= 1.9 * (rows["2"]["expected"] - NOW)


# `refold compare --from slurm`.


def row(number: int, eligible: int, start: int, seconds: int, priority: int) -> str:
    cells = {
        "JobID": str(number),
        "Partition": "gpu",
        "User": "ada",
        "Account": "lab",
        "State": "COMPLETED",
        "Eligible": str(eligible),
        "Start": str(start),
        "End": str(start + seconds),
        "ElapsedRaw": str(seconds),
        "Timelimit": "01:00:00",
        "NNodes": "1",
        "ReqTRES": "gres/gpu=8",
        "AllocTRES": "gres/gpu=8",
        "NodeList": "n0",
        "QOS": "normal",
        "Priority": str(priority),
        "JobName": "train",
    }
    return "|".join(cells.get(column, "") for column in COLUMNS)


def compare(monkeypatch: pytest.MonkeyPatch, out: Path, *rows: str, json_output: bool = True, **config: str) -> Result:
    text = "\n".join(["|".join(COLUMNS), *rows]) + "\n"
    site: dict[str, Any] = {"config": {**CONFIG, **config}, "tables": TABLES}
    monkeypatch.setattr(
        "refold.engines.slurm.Programs", lambda: FakePrograms([], [node_line("n0")], sacct=text, **site)
    )
    words = ["compare", "--from", "slurm", "--policies", "fifo,slurm", "--out", str(out)]
    return CliRunner().invoke(app, [*words, *(["--json"] if json_output else [])])


URGENT_LAST = (row(1, 1000, 1000, 1000, 5), row(2, 1100, 3000, 500, 5), row(3, 1200, 2000, 1000, 900))


def test_slurm_s_own_order_is_simulated_beside_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare(monkeypatch, tmp_path / "out", *URGENT_LAST)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [run["name"] for run in document["runs"]] == ["Slurm's backfill, simulated", "fifo"]
    assert document["reproduction"] == {"jobs": 3, "recorded": 900.0, "simulated": 900.0, "error": 0.0}
    assert document["recorded"]["waiting"]["mean"] == 900.0
    assert "0 of 3 jobs preemptible" in document["conditions"]
    note = "Slurm's backfill, simulated: mean waiting time 15 min, recorded 15 min; starts of 3 jobs differ by"
    assert f"{note} 0 s on average" in document["notes"]


def test_policies_are_compared_with_slurm_as_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = compare(monkeypatch, tmp_path / "out", *URGENT_LAST, json_output=False).output
    assert "Slurm (recorded)" in text
    assert "mean waiting time: fifo 12 min 13 s, 1.2 × shorter than Slurm's backfill, simulated" in text


def test_a_simulation_that_does_not_reproduce_the_record_is_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = [row(number, 1000 * number, 1000 * number + 500, 100, 5) for number in range(1, 5)]
    document = json.loads(compare(monkeypatch, tmp_path / "out", *delayed).stdout)
    assert document["reproduction"] == {"jobs": 4, "recorded": 500.0, "simulated": 0.0, "error": 500.0}
    assert "does not reproduce what Slurm did" in " ".join(document["notes"])


def test_jobs_that_slurm_may_preempt_are_preemptible_in_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare(monkeypatch, tmp_path / "out", *URGENT_LAST, PreemptType="preempt/qos")
    assert "3 of 3 jobs preemptible" in json.loads(result.stdout)["conditions"]
