"""What is done about a run in Slurm, for every combination of facts: literal facts in, literal steps out."""

from __future__ import annotations

from math import inf

import pytest
from slurm_output import FakePrograms, node_line

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.slurm.nodes import map_nodes, read_nodes
from refold.engines.slurm.programs import SlurmError
from refold.engines.slurm.requests import (
    NodeRequest,
    SlurmSettings,
    components,
    needed_time,
    node_requests,
    partition_arguments,
    partitions_of,
    resource_arguments,
)
from refold.engines.slurm.run_jobs import RunJob, read_runs, run_mark
from refold.engines.slurm.run_state import (
    GHOST_SECONDS,
    REFUSED_SECONDS,
    REPEAT_SECONDS,
    SETTLE_SECONDS,
    START_TIMEOUT,
    Abandon,
    Cancel,
    Ended,
    Facts,
    GiveUp,
    Postpone,
    ReportStarted,
    RunState,
    SignalRun,
    Step,
    Submit,
    waiting_reason,
)
from refold.errors import BadInput
from refold.model import Allocation, Job, Share

KEY = ("job", 3)
FINISHED, STOPPED = Ended(RunFinished(*KEY)), Ended(RunStopped(*KEY))


def failed(why: str = "", *, retry: bool = False, exit_code: int | None = None) -> Ended:
    return Ended(RunFailed(*KEY, why, retry=retry, exit_code=exit_code))


def lost(why: str) -> Ended:
    return failed(why, retry=True)


def steps(
    *jobs: RunJob,
    claim: str | None = None,
    status: int | None = None,
    stop: bool = False,
    was_claimed: bool = True,
) -> list[Step]:
    state = RunState(KEY, 10.0, stop=stop)
    return state.next_steps(Facts(jobs, claim, status, 0.0, was_claimed and claim is not None))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (steps(), [Submit()]),
        (steps(stop=True), [STOPPED]),
        (steps(RunJob("5", "PENDING")), []),
        (steps(RunJob("5", "PENDING"), stop=True), [Cancel("5")]),
        (steps(RunJob("5", "RUNNING")), []),
        (steps(RunJob("5", "RUNNING"), claim="5"), [ReportStarted()]),
        (steps(RunJob("5", "RUNNING"), claim="5", stop=True), [SignalRun("5", kill=False)]),
        (steps(RunJob("5", "COMPLETING"), claim="5", status=0), [ReportStarted()]),
        (steps(RunJob("5", "COMPLETED"), claim="5", status=0), [ReportStarted(), FINISHED]),
        (steps(RunJob("5", "COMPLETED"), claim="5"), []),
        (steps(RunJob("5", "COMPLETED")), []),
        (steps(claim="5", status=0, stop=True), [ReportStarted(), FINISHED]),
        (steps(claim="5", status=143, stop=True), [STOPPED]),
        (steps(claim="5", status=3), [ReportStarted(), failed(exit_code=3)]),
        (
            steps(claim="5", status=98),
            [ReportStarted(), failed("Slurm could not run its step on all nodes", retry=True)],
        ),
        (steps(RunJob("5", "FAILED", 4), claim="5", status=3), [ReportStarted(), failed(exit_code=3)]),
        (steps(RunJob("5", "FAILED", 4), claim="5"), []),
        (steps(RunJob("5", "NODE_FAIL"), claim="5"), [ReportStarted(), lost("a node failed (Slurm: NODE_FAIL)")]),
        (steps(RunJob("5", "PREEMPTED"), claim="5"), [ReportStarted(), lost("preempted by Slurm for another job")]),
        (steps(RunJob("5", "BOOT_FAIL"), stop=True), [STOPPED]),
        (steps(RunJob("5", "TIMEOUT"), claim="5"), [ReportStarted(), failed("exceeded the time limit in Slurm")]),
        (steps(RunJob("5", "OUT_OF_MEMORY", 137), claim="5"), [ReportStarted(), failed("out of memory")]),
        (steps(RunJob("5", "CANCELLED"), claim="5"), [Ended(RunStopped(*KEY), "cancelled in Slurm")]),
        (steps(RunJob("5", "CANCELLED"), claim="5", stop=True), [STOPPED]),
        (
            steps(RunJob("5", "CANCELLED", restarts=1), claim="5"),
            [ReportStarted(), failed("requeued in Slurm", retry=True)],
        ),
        (
            steps(RunJob("5", "FAILED", 97, restarts=1), claim="5"),
            [ReportStarted(), failed("requeued in Slurm", retry=True)],
        ),
        (
            steps(RunJob("5", "FAILED", 97)),
            [failed("its folder cannot be written on the node: is the state folder on a shared file system?")],
        ),
        (steps(RunJob("5", "CANCELLED")), []),
    ],
)  # fmt: skip
def test_a_run_in_one_round(found: list[Step], expected: list[Step]) -> None:
    assert found == expected


def test_a_requeued_job_is_cancelled_but_not_one_that_has_just_begun() -> None:
    assert steps(RunJob("5", "PENDING"), claim="5") == [Cancel("5")]
    assert steps(RunJob("5", "RUNNING", restarts=1), claim="5") == [Cancel("5")]
    assert steps(RunJob("5", "PENDING"), claim="5", was_claimed=False) == []


def test_of_several_jobs_the_one_with_the_claim_stays_or_else_the_first() -> None:
    pending, running = RunJob("5", "PENDING"), RunJob("7", "RUNNING")
    assert steps(running, pending, claim="7") == [Cancel("5"), ReportStarted()]
    assert steps(running, pending) == [Cancel("7")]
    assert steps(RunJob("5", "COMPLETING"), running, claim="7") == [ReportStarted()]


def test_a_started_run_that_slurm_does_not_know_is_lost_after_some_time() -> None:
    state = RunState(KEY, 10.0)
    assert state.next_steps(Facts((), "5", None, 0.0)) == []
    assert state.next_steps(Facts((RunJob("5", "RUNNING"),), "5", None, SETTLE_SECONDS)) == [ReportStarted()]
    assert state.next_steps(Facts((), "5", None, SETTLE_SECONDS + 1)) == []
    (end,) = state.next_steps(Facts((), "5", None, 2 * SETTLE_SECONDS + 1))
    assert end == failed("lost: Slurm has no record of its job, which has left no exit status", retry=True)


@pytest.mark.parametrize(
    ("job", "claim", "why"),
    [
        (RunJob("5", "COMPLETED"), "5", "lost: its job in Slurm has left no exit status (COMPLETED)"),
        (RunJob("5", "FAILED", 137), "5", "lost: its job in Slurm has left no exit status (FAILED)"),
        (RunJob("5", "CANCELLED"), None, "its job in Slurm has ended before it began (CANCELLED)"),
        (RunJob("5", "BOOT_FAIL"), None, "its job in Slurm has ended before it began (BOOT_FAIL)"),
    ],
)
def test_the_word_of_slurm_is_not_enough(job: RunJob, claim: str | None, why: str) -> None:
    state = RunState(KEY, 10.0)
    assert state.next_steps(Facts((job,), claim, None, 0.0)) == []
    assert state.next_steps(Facts((job,), claim, None, SETTLE_SECONDS)) == [failed(why, retry=True)]


def test_a_run_continues_when_a_controller_with_an_old_state_lets_its_job_wait() -> None:
    """The job is cancelled, since Slurm would start it again. That is not the end of the run, nor a user's wish."""
    state, cancelled = RunState(KEY, 10.0), (RunJob("5", "CANCELLED", had_nodes=False),)
    assert state.next_steps(Facts((RunJob("5", "PENDING", had_nodes=False),), "5", None, 0.0, True)) == [Cancel("5")]
    assert state.next_steps(Facts(cancelled, "5", None, 1.0)) == []
    assert state.next_steps(Facts(cancelled, "5", 0, 2.0)) == [ReportStarted(), FINISHED]
    why = "a controller of Slurm with an old state has ended it"
    assert RunState(KEY, 10.0).next_steps(Facts(cancelled, "5", 143, 2.0)) == [ReportStarted(), lost(why)]
    (end,) = state.next_steps(Facts(cancelled, "5", None, 1.0 + SETTLE_SECONDS))
    assert end == lost("lost: Slurm has no record of its job, which has left no exit status")


def test_a_step_that_slurm_keeps_after_its_end_is_not_waited_for() -> None:
    """A controller with an old state has steps that ended while it was dead."""
    ghost, wait = (RunJob("5.0", "RUNNING"),), GHOST_SECONDS + 10.0
    state = RunState(KEY, 10.0)
    assert state.next_steps(Facts(ghost, "5.0", 0, 0.0)) == [ReportStarted()]
    assert state.next_steps(Facts(ghost, "5.0", 0, wait - 1)) == []
    assert state.next_steps(Facts(ghost, "5.0", 0, wait)) == [Abandon("5.0"), FINISHED]
    job = RunState(KEY, 10.0)
    for now in (0.0, wait):
        assert job.next_steps(Facts((RunJob("5", "RUNNING"),), "5", 0, now))[1:] == [], "Slurm looks after jobs itself"


def test_a_step_that_cannot_be_cancelled_is_not_waited_for() -> None:
    ghost, wait = (RunJob("5.0", "RUNNING"),), GHOST_SECONDS + 10.0
    state = RunState(KEY, 10.0, stop=True, kill=True)
    assert state.next_steps(Facts(ghost, "5.0", None, 1.0)) == [SignalRun("5.0", kill=True)]
    assert state.next_steps(Facts(ghost, "5.0", None, 1.0 + REPEAT_SECONDS)) == [Cancel("5.0")]
    assert state.next_steps(Facts(ghost, "5.0", None, 2.0 + REPEAT_SECONDS)) == []
    assert state.next_steps(Facts(ghost, "5.0", None, 2.0 + REPEAT_SECONDS + wait)) == [Abandon("5.0"), STOPPED]
    part = RunState(KEY, 10.0)
    assert part.next_steps(Facts(ghost, "4.0", None, 0.0)) == [Cancel("5.0")]
    assert part.next_steps(Facts(ghost, "4.0", None, 1.0)) == [Cancel("5.0")]
    (abandon, end) = part.next_steps(Facts(ghost, "4.0", None, 1.0 + wait))
    assert (abandon, end) == (
        Abandon("5.0"),
        lost("lost: Slurm has no record of its job, which has left no exit status"),
    )


def test_a_job_that_waits_for_long_is_given_up() -> None:
    state, jobs = RunState(KEY, 10.0), (RunJob("5", "PENDING", reason="Resources"),)
    assert state.next_steps(Facts(jobs, None, None, 0.0)) == []
    assert state.next_steps(Facts(jobs, None, None, START_TIMEOUT - 1)) == []
    why = f"Slurm did not start it within {START_TIMEOUT:g} s: Resources"
    end = RunFailed(*KEY, why, retry=True)
    assert state.next_steps(Facts(jobs, None, None, START_TIMEOUT)) == [GiveUp(end, "5")]
    assert state.next_steps(Facts(jobs, None, None, START_TIMEOUT)) == [Cancel("5")]
    assert state.next_steps(Facts((RunJob("5", "CANCELLED"),), None, None, 900.0)) == [Ended(end)]


@pytest.mark.parametrize("reason", ["ReqNodeNotAvail, May be reserved for other job", "Reservation"])
def test_a_job_that_its_nodes_refuse_is_given_up_soon(reason: str) -> None:
    state, jobs = RunState(KEY, 10.0), (RunJob("5", "PENDING", reason=reason),)
    assert state.next_steps(Facts(jobs, None, None, 0.0)) == []
    end = RunFailed(*KEY, f"Slurm did not start it within {REFUSED_SECONDS:g} s: {reason}", retry=True)
    assert state.next_steps(Facts(jobs, None, None, REFUSED_SECONDS)) == [GiveUp(end, "5")]


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerUser", "AssocGrpGRES", "Licenses", "InvalidAccount", "JobHeldAdmin"])
def test_a_job_that_reaches_a_limit_is_postponed_once_and_not_failed(reason: str) -> None:
    state, jobs = RunState(KEY, 10.0), (RunJob("5", "PENDING", reason=reason),)
    assert state.next_steps(Facts(jobs, None, None, 0.0)) == []
    assert state.next_steps(Facts(jobs, None, None, REFUSED_SECONDS)) == [Postpone(reason)]
    assert state.next_steps(Facts(jobs, None, None, 10 * START_TIMEOUT)) == []
    state.stop = True
    assert state.next_steps(Facts(jobs, None, None, 11 * START_TIMEOUT)) == [Cancel("5")]
    assert state.next_steps(Facts((RunJob("5", "CANCELLED"),), None, None, 12 * START_TIMEOUT)) == [STOPPED]


def test_why_a_run_has_not_begun() -> None:
    pending = RunJob("5", "PENDING", reason="Priority")
    assert waiting_reason(Facts([pending], None, None, 0.0)) == "Priority"
    assert waiting_reason(Facts([RunJob("5", "RUNNING")], "5", None, 0.0)) is None
    assert waiting_reason(Facts([], None, None, 0.0)) is None


def test_a_stop_is_signalled_once_and_slurm_ends_what_does_not_end() -> None:
    state, jobs = RunState(KEY, 10.0, stop=True), (RunJob("5", "RUNNING"),)
    moments = (0.0, 1.0, 10.0 + REPEAT_SECONDS, 11.0 + REPEAT_SECONDS)
    found = [state.next_steps(Facts(jobs, "5", None, now)) for now in moments]
    assert found == [[SignalRun("5", kill=False)], [], [Cancel("5")], []]


def test_slurm_ends_a_stopped_job_only_after_its_grace_period() -> None:
    state, jobs = RunState(KEY, 300.0, stop=True), (RunJob("5", "RUNNING"),)
    moments = (0.0, REPEAT_SECONDS, 299.0 + REPEAT_SECONDS, 300.0 + REPEAT_SECONDS)
    found = [state.next_steps(Facts(jobs, "5", None, now)) for now in moments]
    assert found == [[SignalRun("5", kill=False)], [], [], [Cancel("5")]]


def test_a_kill_does_not_wait_for_the_grace_period_of_an_earlier_stop() -> None:
    state, jobs = RunState(KEY, 10.0, stop=True), (RunJob("5", "RUNNING"),)
    assert state.next_steps(Facts(jobs, "5", None, 1.0)) == [SignalRun("5", kill=False)]
    state.kill = True
    assert state.next_steps(Facts(jobs, "5", None, 2.0)) == [SignalRun("5", kill=True)]
    state.ask_again()
    assert state.next_steps(Facts(jobs, "5", None, 3.0)) == [SignalRun("5", kill=True)]
    assert state.next_steps(Facts(jobs, "5", None, 4.0)) == []


# What squeue prints.


def row(
    number: str,
    comment: str,
    state: str = "RUNNING",
    status: str = "0",
    offset: str = "N/A",
    nodes: str = "n0",
    owner: str = "1000",
) -> str:
    cells = ((number, 16), (offset, 12), (state, 24), (status, 16), ("0", 12), ("None", 64), (nodes, 8), (owner, 12))
    return "".join(text.ljust(width) for text, width in cells) + comment


def test_jobs_are_recognised_by_their_comment() -> None:
    odd = ("a/b %j ü", 12)
    text = "\n".join(
        [
            row("1", run_mark("d1", KEY), "FAILED", "1792"),
            row("2", run_mark("d1", odd, "ada/b ü"), "FAILED", "9", nodes=""),
            row("3", run_mark("d2", KEY)),
            row("4", "(null)"),
            row("5", "refold/d1/x/job"),
            row("6", run_mark("d1", KEY), offset="1"),
            "garbage",
            "",
        ]
    )
    assert read_runs(lambda *_: text, "d1", with_steps=False, selection=()).jobs == {
        KEY: [RunJob("1", "FAILED", 7, reason="None", owner=1000)],
        odd: [RunJob("2", "FAILED", 137, reason="None", had_nodes=False, owner=1000)],
    }


def test_jobs_of_others_with_the_comment_of_a_run_do_not_belong_to_it() -> None:
    text = "\n".join([row("1", run_mark("d1", KEY, "ann")), row("2", run_mark("d1", KEY, "ann"), owner="1001")])
    found = read_runs(lambda *_: text, "d1", with_steps=False, selection=())
    assert [job.id for job in found.jobs_of(KEY, 1000, None, None)] == ["1"]
    assert [job.id for job in found.jobs_of(KEY, 1001, None, None)] == ["2"]


@pytest.mark.parametrize(
    ("message", "is_transient"),
    [
        ("sbatch: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("squeue: slurm_load_jobs error: Socket timed out on send/recv operation", True),
        ("sbatch: Batch job submission failed: Requested node configuration is not available", False),
        ("sbatch: Batch job submission failed: Invalid account or account/partition combination", False),
    ],
)
def test_no_answer_is_not_a_refusal(message: str, is_transient: bool) -> None:
    assert SlurmError(message).is_transient is is_transient


# What is requested.

CLUSTER = map_nodes(
    read_nodes(
        FakePrograms(
            [],
            [
                node_line("n0", Partitions="gpu,long"),
                node_line("n1", "gpu:a100:4,gpu:h100:4", Partitions="gpu"),
                node_line("n2", Partitions="long"),
            ],
        ).run
    )
)


def test_requests_of_a_run() -> None:
    shares = (Share(0, (0, 1), cpu_milli=1500, memory_mib=100), Share(0, (2,)), Share(1, (0, 1)), Share(2, (1,)))
    requests = node_requests(CLUSTER, Job("job"), Allocation(shares))
    assert requests == [
        NodeRequest("n0", "gpu:a100:3", 2 + 8, 100 + 8192),
        NodeRequest("n1", "gpu:a100:2,gpu:h100:1", 16 + 8, 16384 + 8192),
    ]
    assert partitions_of(CLUSTER, requests) == ["gpu"]
    with pytest.raises(BadInput, match="no partition has all of n1, n2"):
        partitions_of(CLUSTER, [requests[1], NodeRequest("n2", "", 1, 1)])


def test_parts_of_a_gpu_are_shards() -> None:
    cluster = map_nodes(read_nodes(FakePrograms([], [node_line("n0", "gpu:a100:8,shard:a100:32")]).run))
    (request,) = node_requests(cluster, Job("job"), Allocation((Share(0, (3,), 300),)))
    assert request == NodeRequest("n0", "shard:a100:2", 2, 2457)
    with pytest.raises(BadInput, match="job has several instances on n0; Slurm gives a job parts of one GPU"):
        node_requests(cluster, Job("job"), Allocation((Share(0, (3,), 300), Share(0, (3,), 300))))
    with pytest.raises(BadInput, match=r"n0 has no shards: add GresTypes=gpu,shard and Gres=shard:NUMBER"):
        node_requests(CLUSTER, Job("job"), Allocation((Share(0, (0,), 500),)))


def test_equal_nodes_are_one_component() -> None:
    requests = [NodeRequest("n0", "gpu:2", 4, 10), NodeRequest("n1", "gpu:1", 4, 10), NodeRequest("n2", "gpu:2", 4, 10)]
    parts = components(requests)
    assert [[request.node for request in part] for part in parts] == [["n1"], ["n0", "n2"]]
    assert resource_arguments(parts[1]) == [
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--mem=10M",
        "--nodelist=n0,n2",
        "--gres=gpu:2",
    ]


def test_options() -> None:
    assert SlurmSettings(account="lab", options=("--exclude=n9",)).arguments() == ["--account=lab", "--exclude=n9"]
    assert SlurmSettings(options=("--constraint=ib", "--constraint=a&b")).option("constraint") == "a&b"
    assert SlurmSettings(options=("--constraint=ib",)).option("reservation") == ""


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (90.0, ["--partition=short,day,any", "--time=3"]),
        (3600.0, ["--partition=short,day,any", "--time=60"]),  # not more than the first partition allows
        (2 * 3600.0, ["--partition=day,any", "--time=122"]),
        (None, ["--partition=any", "--time=UNLIMITED"]),
        (float("inf"), ["--partition=any", "--time=UNLIMITED"]),
    ],
)
def test_a_time_limit_is_given_and_partitions_that_allow_it(limit: float | None, expected: list[str]) -> None:
    limits = {"short": 3600.0, "day": 86400.0}
    cluster = CLUSTER._replace(time_limits=limits, short_by_default=frozenset({"any"}))
    job = Job("job", time_limit=limit)
    assert partition_arguments(cluster, ["short", "day", "any"], job, needed_time(job, 10.0)) == expected


def test_without_a_limit_of_its_own_a_job_has_that_of_its_partition_and_a_longer_one_fails() -> None:
    """A partition without a shorter default gives it by itself, and less where a QOS has a limit."""
    cluster, free = CLUSTER._replace(time_limits={"short": 3600.0}), Job("job")
    assert partition_arguments(cluster, ["short"], free, inf) == ["--partition=short"]
    cluster = cluster._replace(short_by_default=frozenset({"short"}))
    assert partition_arguments(cluster, ["short"], free, inf) == ["--partition=short", "--time=60"]
    assert partition_arguments(cluster, ["short"], free, None) == ["--partition=short"]
    why = "job has a time limit of 2 h, and partition short of Slurm allows 1 h"
    with pytest.raises(BadInput, match=why):
        partition_arguments(cluster, ["short"], Job("job", time_limit=7200.0), 7270.0)
