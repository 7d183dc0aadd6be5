"""Snapshots of Slurm's queue: what they contain, what they are for, and that nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_accounting import SlurmWithAccounting
from slurm_output import NOW, FakePrograms, job_json, node_line
from slurm_servers import SlurmServers
from typer.testing import CliRunner

from refold.cli.lazy_group import app
from refold.cli.views import read_timeline
from refold.core import Event, JobHeld, JobSubmitted, NodeDrained, NodeLost, NodeUsed, PastJob, RunAdopted
from refold.engines.slurm import observation
from refold.engines.slurm.observation import SlurmSnapshot, observe_slurm
from refold.engines.slurm.programs import Programs
from refold.errors import BadInput
from refold.model import Allocation, Reason, Share, StartEstimate

HOUR = 3600.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not {"slurm", "slurm_with_accounting"} & set(request.fixturenames):
        monkeypatch.setattr(observation, "time", lambda: float(NOW))


def look(jobs: list[dict[str, Any]], nodes: list[str] | None = None, **options: Any) -> SlurmSnapshot:
    sacct = options.pop("sacct", None)
    return observe_slurm(FakePrograms(jobs, nodes or [node_line("n0")], sacct=sacct).run, 24 * HOUR, **options)


def of(found: SlurmSnapshot, kind: type[Event]) -> list[Any]:
    return [event for event in found.entry.events if type(event) is kind]


def test_jobs_with_gpus_are_jobs_and_others_are_use_by_others() -> None:
    running = job_json(1, 16, state="RUNNING", node_count=2, nodes="n[0-1]", cpus=8)
    found = look(
        [running, job_json(2, 8, time_limit=60), job_json(3, 0, state="RUNNING")],
        [
            node_line("n0", GresUsed="gpu:a100:8(IDX:0-7)", CPUAlloc="5", AllocMem="200"),
            node_line("n1", GresUsed="gpu:a100:8(IDX:0-7)", CPUAlloc="4", AllocMem="100"),
        ],
    )
    jobs = {event.job.id: event.job for event in of(found, JobSubmitted)}
    assert {name: (str(job.demand), job.tenant, job.user, job.group) for name, job in jobs.items()} == {
        "1": ("2 × 8 GPUs", "lab", "ada", "train"),
        "2": ("8 GPUs", "lab", "ada", "train"),
    }
    assert jobs["2"].time_limit == HOUR
    eight = tuple(range(8))
    placement = (Share(0, eight, cpu_milli=4000, memory_mib=100), Share(1, eight, cpu_milli=4000, memory_mib=100))
    assert of(found, RunAdopted) == [RunAdopted("1", 1, Allocation(placement), NOW - 1800.0)]
    assert of(found, NodeUsed) == [NodeUsed(0, cpu_milli=1000, memory_mib=100)]


def test_gpus_of_jobs_that_may_not_be_seen_are_used_by_others() -> None:
    found = look([], [node_line("n0", GresUsed="gpu:a100:3(IDX:0-2)")])
    assert of(found, NodeUsed) == [NodeUsed(0, (5, 6, 7))]


def test_why_shows_when_a_job_was_submitted_and_whose_estimate_it_has() -> None:
    jobs = [job_json(1, 8, state="RUNNING"), job_json(2, 8, start_time=NOW + 60, state_reason="Resources")]
    found = look(jobs, [node_line("n0", GresUsed="gpu:a100:8(IDX:0-7)")])
    timeline = read_timeline(found.header, [found.entry], "2", "refold why now.jsonl")
    events = {entry.event: (entry.at, entry.text) for entry in timeline.entries}
    assert events["submitted"][0] == NOW - HOUR
    assert events["start estimate"][1].endswith(" (estimate of Slurm)")
    assert next(text for _, text in events.values() if text.startswith("1 h"))
    running = read_timeline(found.header, [found.entry], "1", "refold why now.jsonl")
    assert [entry.event for entry in running.entries][:2] == ["submitted", "started"]


def test_uneven_gangs_are_placed_as_they_are() -> None:
    details = ["gpu:a100:8(IDX:0-7)", "gpu:a100:4(IDX:2-5)"]
    found = look(
        [job_json(1, 12, state="RUNNING", node_count=2, nodes="n[0-1]", gres_detail=details)],
        [node_line("n0"), node_line("n1")],
    )
    (adopted,) = of(found, RunAdopted)
    assert [len(share.gpus) for share in adopted.allocation.placement] == [8, 4]


def test_waiting_jobs_have_the_order_the_reasons_and_the_estimates_of_slurm() -> None:
    jobs = [
        job_json(10, 8, priority=50, start_time=NOW + 60, state_reason="Resources"),
        job_json(9, priority=900),
        job_json(8, priority=50, submit_time=NOW - 9000, start_time=NOW - 5),
    ]
    found = look([*jobs, job_json(1, 8, state="RUNNING")])
    assert [event.job.id for event in of(found, JobSubmitted)] == ["1", "9", "8", "10"]
    assert [event.job.priority for event in of(found, JobSubmitted)] == [0, 1, 0, 0]
    assert found.entry.start_estimates == (StartEstimate("10", NOW + 60.0),)
    assert {wait.job: wait.reason for wait in found.entry.waits} == {
        "9": Reason.PRIORITY,
        "8": Reason.PRIORITY,
        "10": Reason.RESOURCES,
    }
    texts = [wait.text() for wait in found.entry.waits]
    assert texts[-1] == "0 of 1 nodes fit: 1 has too few free GPUs"
    by_time = look(jobs, priorities=False)
    assert [(event.job.id, event.job.priority) for event in of(by_time, JobSubmitted)] == [
        ("8", 0),
        ("9", 0),
        ("10", 0),
    ]


@pytest.mark.parametrize(
    ("reason", "held"),
    [
        ("JobHeldUser", Reason.HELD),
        ("DependencyNeverSatisfied", Reason.DEPENDENCY),
        ("QOSMaxGRESPerUser", Reason.LIMIT),
        ("AssocGrpGRES", Reason.LIMIT),
        ("PartitionTimeLimit", Reason.LIMIT),
    ],
)
def test_jobs_that_cannot_start_before_something_else_happens_are_held(reason: str, held: Reason) -> None:
    found = look([job_json(1, state_reason=reason)])
    assert of(found, JobHeld) == [JobHeld("1", held)]
    assert found.entry.waits == ()


def test_a_job_that_can_never_run_has_no_reason_of_its_own() -> None:
    found = look([job_json(1, 64, start_time=NOW + 60), job_json(2)])
    assert [event.job.id for event in of(found, JobSubmitted)] == ["1", "2"]
    assert [wait.job for wait in found.entry.waits] == ["2"]
    assert found.entry.start_estimates == ()


def test_every_task_of_an_array_is_a_job() -> None:
    found = look([job_json(17, array_job_id=17, array_task_string="0-2,9%2")])
    assert [event.job.id for event in of(found, JobSubmitted)] == ["17_0", "17_1", "17_2", "17_9"]


def test_a_job_of_more_gpus_than_a_node_has_gets_several_nodes() -> None:
    found = look([job_json(1, 12, tres_per_node="", tres_per_job="gres:gpu:12")], [node_line("n0"), node_line("n1")])
    assert [str(event.job.demand) for event in of(found, JobSubmitted)] == ["2 × 6 GPUs"]


def test_jobs_are_placed_in_their_partition() -> None:
    nodes = [node_line("n0"), node_line("n1", Partitions="debug")]
    found = look(
        [job_json(1, partition="debug"), job_json(2, partition="gpu,debug"), job_json(3, partition="gone")], nodes
    )
    assert {event.job.id: event.job.demand.gpu_types for event in of(found, JobSubmitted)} == {
        "1": ("a100/debug",),
        "2": (),
    }
    assert found.notes[-1] == "job 3 is left out: no node of partition gone has the GPUs that it requests"


def test_nodes_that_are_down_or_drained() -> None:
    found = look([], [node_line("n0", State="DOWN*", Reason="power [root@1]"), node_line("n1", State="IDLE+DRAIN")])
    assert found.entry.events == (NodeLost(0, "DOWN: power"), NodeDrained(1, "DRAIN"))


SACCT = """\
JobID|Partition|User|Account|State|Eligible|Start|End|ElapsedRaw|Timelimit|NNodes|NCPUS|ReqMem|ReqTRES|AllocTRES|NodeList|JobName
1|gpu|ada|lab|COMPLETED|1699990000|1699990100|1699991100|1000|01:00:00|1|4|4G|gres/gpu=2|gres/gpu=2|n0|a | b
2|gpu|ada|lab|RUNNING|1699990000|1699990100|Unknown|9000|01:00:00|1|4|4G|gres/gpu=2|gres/gpu=2|n0|c
3|gpu|ada|lab|COMPLETED|1699990000|1699990100|1699990200|100|01:00:00|1|4|4G|cpu=4|cpu=4|n0|d
"""


def test_past_jobs_are_read_from_the_accounting() -> None:
    found = look([job_json(2, 2, state="RUNNING")], sacct=SACCT)
    assert [(event.job.id, event.run_time, event.job.group) for event in of(found, PastJob)] == [("1", 1000.0, "a | b")]
    assert found.notes == []


def test_without_accounting_there_is_a_note() -> None:
    assert look([job_json(1)]).notes == [
        "no past jobs, so run times are predicted from time limits: sacct: Slurm accounting storage is disabled"
    ]


def test_only_programs_that_read_are_called() -> None:
    programs = FakePrograms([job_json(1)], [node_line("n0")], sacct=SACCT)
    observe_slurm(programs.run, HOUR)
    assert {tuple(call[:2]) for call in programs.calls} == {
        ("squeue", "--all"),
        ("scontrol", "show"),
        ("sacct", "--allusers"),
    }


def test_options_without_slurm_are_errors() -> None:
    for arguments, message in [
        (["snapshot", "--since", "3d"], "--since needs --from slurm"),
        (["snapshot", "--no-priorities"], "--no-priorities needs --from slurm"),
        (["compare", "--since", "3d"], "--since needs --from slurm"),
        (["compare", "jobs.csv", "--from", "slurm"], "leave jobs.csv out"),
        (["tune", "jobs.csv", "--since", "3d"], "--since needs --from slurm"),
        (["tune", "jobs.csv", "--from", "slurm"], "leave jobs.csv out"),
        (["tune"], "no job history given: name a trace file, or use --from slurm"),
        (["report", "--since", "3d"], "--since needs --from slurm"),
        (["report", "old.jsonl", "--from", "slurm"], "leave old.jsonl out"),
    ]:
        result = CliRunner().invoke(app, arguments)
        assert message in str(result.exception) + result.output, arguments


# Against a real Slurm.


def submit(slurm: SlurmServers, *options: str) -> str:
    return slurm.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 1000").strip()


def test_a_real_queue_reads_the_same_with_and_without_json(slurm: SlurmServers) -> None:
    first = submit(slurm, "--nodes=3", "--gpus-per-node=8", "--time=30")
    slurm.wait_until(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o", "%T", "-j", first), "the job runs")
    submit(slurm, "--gpus=12", "--time=1-0", "--job-name=two nodes")
    submit(slurm, "--gres=gpu:a100:2", "--hold", "--array=1-3")
    run = Programs(slurm.environment).run
    found = observe_slurm(run, HOUR)

    def without_json(program: str, *arguments: str) -> str:
        return run(program, *("--nonsense" if argument == "--json" else argument for argument in arguments))

    other = observe_slurm(without_json, HOUR)
    assert other.entry.events == found.entry.events
    jobs = [(event.job.id, str(event.job.demand), event.job.group) for event in of(found, JobSubmitted)]
    array = jobs[-1][0].partition("_")[0]
    assert jobs[0] == (first, "3 × 8 GPUs", "wrap")
    assert jobs[1][1:] == ("2 × 6 GPUs", "two nodes")
    assert [job[0] for job in jobs[2:]] == [f"{array}_1", f"{array}_2", f"{array}_3"]
    assert [event.reason for event in of(found, JobHeld)] == [Reason.HELD] * 3
    (adopted,) = of(found, RunAdopted)
    assert [len(share.gpus) for share in adopted.allocation.placement] == [8, 8, 8]


def test_advice_in_five_minutes(
    slurm_with_accounting: SlurmWithAccounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = slurm_with_accounting
    done = slurm.run("sbatch", "--parsable", "-o", "/dev/null", "--gpus=2", "--wrap", "true").strip()
    recorded = ("sacct", "-n", "-X", "-P", "-o", "State", "-j", done)
    slurm.wait_until(lambda: slurm.run(*recorded).strip() == "COMPLETED", "a job is recorded")
    running = submit(slurm, "--nodes=2", "--gpus-per-node=4", "--time=30")
    slurm.wait_until(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o", "%T", "-j", running), "the job runs")
    in_accounting = ("sacct", "-n", "-X", "-P", "-o", "State", "-j", running)
    slurm.wait_until(lambda: slurm.run(*in_accounting).strip() == "RUNNING", "the running job is recorded")
    waiting = submit(slurm, "--gpus=4", "--time=60")
    slurm.wait_until(lambda: "Resources" in slurm.run("squeue", "-h", "-o", "%r", "-j", waiting), "its reason is known")
    before = slurm.run("squeue", "--noheader")
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.chdir(tmp_path)

    def refold(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    assert "2 nodes, 8 GPUs: 1 running, 1 waiting" in refold("snapshot", "--from", "slurm", "-o", "now.jsonl")
    queue = refold("queue", "now.jsonl", "--start", "--futures", "2", "--json")
    assert f'"job": "{waiting}"' in queue and '"scheduler_estimate"' in queue
    assert "Slurm's" in refold("queue", "now.jsonl", "--start", "--futures", "2")
    assert "0 of 2 nodes fit" in refold("why", "now.jsonl", waiting)
    (tmp_path / "job.yaml").write_text("name: mine\ngpus: 4\ntime_limit: 1h\nrun: python train.py\n")
    assert "mine" in refold("whatif", "now.jsonl", "job.yaml", "--futures", "2")
    assert "2 jobs on 2 nodes with 8 GPUs" in refold("compare", "now.jsonl", "--policies", "fifo,easy")
    compared = refold("compare", "--from", "slurm", "--policies", "fifo,easy")
    assert "jobs on 2 nodes with 8 GPUs" in compared and "Slurm (recorded)" in compared
    assert "Slurm (recorded), Slurm's accounting" in refold("report", "--from", "slurm")
    assert [line.split()[0] for line in slurm.run("squeue", "--noheader").splitlines()] == [
        line.split()[0] for line in before.splitlines()
    ]


def test_compare_without_accounting_says_so(slurm: SlurmServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    from refold.cli.inputs.workload_reader import read_slurm_workload

    with pytest.raises(BadInput, match="accounting storage is disabled"):
        read_slurm_workload(HOUR, "", None, None, None)  # type: ignore[arg-type]
