"""What is done about a run of a gang: literal facts in, literal steps out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kubernetes_objects import make_node, make_pod
from msgspec.structs import replace

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.objects import Metadata, Pod
from refold.engines.kubernetes.owner_specs import OwnerState
from refold.engines.kubernetes.pod_states import PodTarget
from refold.engines.kubernetes.run_state import (
    BUDGET_PAUSE,
    EVICTION_PAUSE,
    OWNER_CHECK_PAUSE,
    POD_WAIT,
    SUSPEND_WAIT,
    GangFacts,
    GangRunState,
)
from refold.engines.kubernetes.run_steps import (
    AskBudgets,
    AskKubelet,
    AskOwner,
    BindPods,
    BudgetSpec,
    BudgetsRead,
    DisruptionBudget,
    GangAnswer,
    GangStep,
    KubeletSaid,
    LabelSelector,
    NoRoom,
    OwnerRead,
    OwnerSuspended,
    PauseSteps,
    PodsBound,
    PodsRemoved,
    RemovePods,
    ReportEnd,
    ReportStart,
    ResumeOwner,
    SuspendOwner,
    Unchanged,
)

KEY = ("train", 1)
JOB, PODS = GangName("Job", "default", "train", "u"), GangName("Pods", "default", "train")
JOB_SET = GangName("JobSet", "default", "train", "u")
RUNNING = OwnerState(suspended=False, finished="", message="", ended_run="", pods=2)
SUSPENDED = RUNNING._replace(suspended=True)
FINISHED, STOPPED = [ReportEnd(RunFinished(*KEY))], [ReportEnd(RunStopped(*KEY))]


def waiting(number: int, **fields: Any) -> Pod:
    """A pod of the gang that waits. It has a controller, unless the gang is one of plain pods."""
    return make_pod(f"train-{number}", **{"owner": ("Job", "train", "u"), **fields})


def bound(number: int, phase: str = "Running", **fields: Any) -> Pod:
    """A pod that was bound for the run."""
    annotations = {"refold.dev/instance": str(number)}
    return waiting(number, annotations=annotations, nodeName="n", status={"phase": phase}, **fields)


WAITING = (waiting(0), waiting(1))
TARGETS = BindPods([PodTarget(WAITING[0], 0, "n"), PodTarget(WAITING[1], 1, "n")])
RUN = (bound(0), bound(1))


class Play:
    """A run, and what is known of it."""

    def __init__(self, gang: GangName = JOB, run: int = 1, nodes: Sequence[str] = ("n", "n"), **fields: Any) -> None:
        self.state = GangRunState((KEY[0], run), gang, nodes, 10.0, **fields)
        self.now = 0.0

    def next(self, *pods: Pod, answer: GangAnswer | None = None, gang: tuple[Pod, ...] | None = None) -> list[GangStep]:
        """Return what is to be done. `pods`: those of the run; `gang`: all of its gang, if there are more."""
        by_key = {pod.key: pod for pod in pods}
        gang_pods = by_key if gang is None else {pod.key: pod for pod in gang}
        return self.state.next_steps(GangFacts(by_key, gang_pods, {"n": make_node("n")}, self.now, answer))

    def start(self) -> Play:
        """Let the run start as usual."""
        assert self.next(gang=WAITING) == [TARGETS]
        assert self.next(*RUN, answer=PodsBound()) == [ReportStart(), PauseSteps()]
        return self


def test_the_pods_of_a_gang_are_bound_and_followed_to_their_end() -> None:
    play = Play().start()
    assert play.next(bound(0, "Succeeded"), bound(1)) == [PauseSteps()]
    assert play.next(bound(1, "Succeeded")) == FINISHED  # the first one was deleted meanwhile


SINGLE = GangName("Pod", "default", "web-1", "u")


@pytest.mark.parametrize("owner", [None, ("ReplicaSet", "web", "r")])
def test_the_run_of_a_single_pod_that_is_deleted_ends_its_job(owner: tuple[str, str, str] | None) -> None:
    play = Play(SINGLE, nodes=["n"])
    web = make_pod("web-1", owner=owner)
    assert play.next(gang=(web,)) == [BindPods([PodTarget(web, 0, "n")])]
    running = make_pod("web-1", owner=owner, nodeName="n", status={"phase": "Running"})
    assert play.next(running, answer=PodsBound()) == [ReportStart(), PauseSteps()]
    assert play.next(gang=()) == STOPPED
    assert play.state.gone


def test_a_single_pod_that_is_gone_before_it_is_bound_holds_nothing() -> None:
    for run in (1, 2):
        play = Play(SINGLE, run, nodes=["n"])
        assert (play.next(gang=()), play.state.gone) == ([ReportEnd(RunStopped(KEY[0], run))], "was deleted")


def test_a_single_pod_that_is_preempted_ends_its_job() -> None:
    play = Play(SINGLE, nodes=["n"])
    running = make_pod("web-1", owner=("ReplicaSet", "web", "r"), nodeName="n", status={"phase": "Running"})
    play.next(running, gang=(running,))
    play.state.stop(None, is_preemption=False)
    play.next(running)
    assert play.next(gang=()) == STOPPED
    assert play.state.gone


@pytest.mark.parametrize("answer", [NoRoom("node n is full"), PodsBound("no permission")])
def test_a_single_pod_that_cannot_be_bound_is_placed_again(answer: GangAnswer) -> None:
    play, web = Play(SINGLE, nodes=["n"]), make_pod("web-1", owner=("ReplicaSet", "web", "r"))
    play.next(gang=(web,))
    play.now = POD_WAIT
    why = "node n is full" if isinstance(answer, NoRoom) else "no permission"
    assert play.next(gang=(web,), answer=answer) == [ReportEnd(RunFailed(*KEY, why, retry=True))]
    assert not play.state.gone


def test_nothing_is_held_for_pods_that_others_have_to_create() -> None:
    play = Play(PODS)
    failed = RunFailed(*KEY, f"1 of 2 pods of {PODS} exist", retry=True)
    assert play.next(gang=(waiting(0),)) == [ReportEnd(failed)]


def test_a_node_that_has_changed_ends_the_run_at_once() -> None:
    play = Play()
    assert play.next(gang=WAITING) == [TARGETS]
    failed = RunFailed(*KEY, "node n is cordoned", retry=True)
    assert play.next(gang=WAITING, answer=NoRoom("node n is cordoned", lasting=True)) == [ReportEnd(failed)]


@pytest.mark.parametrize("gang", [JOB, PODS])
def test_pods_that_are_bound_already_are_not_bound_again(gang: GangName) -> None:
    play = Play(gang)
    steps = play.next(RUN[0], gang=(RUN[0], WAITING[1]))
    if gang is JOB:
        assert steps == [AskOwner()]
        steps = play.next(RUN[0], gang=(RUN[0], WAITING[1]), answer=OwnerRead(RUNNING))
    assert steps == [BindPods([PodTarget(WAITING[1], 1, "n")])]


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (None, STOPPED),
        (SUSPENDED, [ResumeOwner(None)]),
        (RUNNING, [PauseSteps(OWNER_CHECK_PAUSE)]),
        (RUNNING._replace(finished="Complete"), FINISHED),
        (RUNNING._replace(finished="Failed", message="why"), [ReportEnd(RunFailed(*KEY, f"{JOB} has failed: why"))]),
        (SUSPENDED._replace(ended_run="1"), STOPPED),
        (SUSPENDED._replace(ended_run="1 exit 3"), [ReportEnd(RunFailed(*KEY, "exit 3"))]),
        (SUSPENDED._replace(ended_run="0"), [ResumeOwner(None)]),
    ],
)
def test_the_object_of_a_gang_without_pods_tells_what_became_of_the_run(
    owner: OwnerState | None, expected: list[GangStep]
) -> None:
    play = Play()
    assert play.next() == [AskOwner()]
    assert play.next(answer=OwnerRead(owner)) == expected


def test_a_run_with_pods_that_was_ended_for_a_failure_is_ended_without_resuming_it() -> None:
    play = Play()
    assert play.next(RUN[0]) == [AskOwner()]
    steps = play.next(RUN[0], answer=OwnerRead(SUSPENDED._replace(ended_run="1 exit 3")))
    assert steps == [SuspendOwner("1 exit 3")]


def test_an_elastic_gang_gets_as_many_pods_as_the_run_has_instances() -> None:
    play = Play(is_elastic=True)
    assert play.next(gang=WAITING) == [AskOwner()]
    assert play.next(gang=WAITING, answer=OwnerRead(RUNNING._replace(pods=5))) == [ResumeOwner(2)]
    assert play.next(gang=WAITING) == [AskOwner()]


def test_indices_that_are_complete_get_no_pods() -> None:
    play = Play(run=2)
    assert play.next(gang=WAITING[:1]) == [AskOwner()]
    steps = play.next(gang=WAITING[:1], answer=OwnerRead(RUNNING._replace(succeeded=1)))
    assert steps == [BindPods([PodTarget(WAITING[0], 0, "n")])]


def test_a_gang_with_missing_pods_is_given_up_after_a_while_unless_its_object_ends_first() -> None:
    play = Play()
    play.next()
    assert play.next(answer=OwnerRead(RUNNING)) == [PauseSteps(OWNER_CHECK_PAUSE)]
    assert play.next(gang=WAITING[:1], answer=Unchanged()) == [AskOwner()]
    assert play.next(gang=WAITING[:1], answer=OwnerRead(RUNNING)) == [PauseSteps(OWNER_CHECK_PAUSE)]
    play.now = POD_WAIT
    assert play.next(gang=WAITING[:1]) == [AskOwner()]  # is it gone?
    assert play.next(answer=OwnerRead(RUNNING)) == [SuspendOwner(f"1 1 of 2 pods of {JOB} exist")]
    assert play.next(answer=OwnerSuspended(True)) == [
        ReportEnd(RunFailed(*KEY, f"1 of 2 pods of {JOB} exist", retry=True))
    ]


@pytest.mark.parametrize(("owner", "gone"), [(None, "was deleted"), (SUSPENDED, "was suspended")])
def test_a_gang_whose_object_somebody_has_ended_is_gone(owner: OwnerState | None, gone: str) -> None:
    play = Play().start()
    lost = bound(0, deletionTimestamp="2026-01-01T00:00:00Z")
    assert play.next(lost, RUN[1]) == [AskOwner()]
    (step,) = play.next(lost, RUN[1], answer=OwnerRead(owner))
    assert isinstance(step, SuspendOwner)
    assert play.state.gone == gone
    assert play.next(answer=OwnerSuspended(False)) == STOPPED


def test_without_room_nothing_is_bound_until_a_pod_changes() -> None:
    play = Play(PODS)
    assert play.next(gang=WAITING) == [TARGETS]
    assert play.next(gang=WAITING, answer=NoRoom("node n has no storage left")) == [PauseSteps(OWNER_CHECK_PAUSE)]
    assert play.next(gang=WAITING) == [TARGETS]


def test_if_a_pod_cannot_be_bound_all_are_deleted_and_the_uncertain_ones_first() -> None:
    play = Play(PODS)
    assert play.next(gang=WAITING) == [TARGETS]
    problem = PodsBound("pod default/train-1 cannot be bound", [WAITING[1]])
    doubtful = RemovePods([WAITING[1]], 10.0, evict=False)
    assert play.next(RUN[0], answer=problem) == [doubtful]
    rest = RemovePods([RUN[0]], 10.0, evict=False)
    assert play.next(RUN[0], answer=PodsRemoved(doubtful, frozenset({"uid-train-1"}))) == [rest]
    assert play.next(RUN[0], answer=PodsRemoved(rest, frozenset({"uid-train-0"}))) == [PauseSteps()]
    assert play.next() == [ReportEnd(RunFailed(*KEY, problem.problem, retry=True))]


def test_pods_are_evicted_again_if_that_was_refused() -> None:
    play = Play(PODS).start()
    play.state.stop(None, is_preemption=False)
    both = RemovePods(list(RUN), 10.0, evict=True)
    assert play.next(*RUN) == [both]
    assert play.next(*RUN, answer=PodsRemoved(both, frozenset({"uid-train-0"}))) == [PauseSteps(EVICTION_PAUSE)]
    assert play.next(*RUN, answer=Unchanged()) == [RemovePods([RUN[1]], 10.0, evict=True)]


def test_a_stop_without_grace_deletes_pods_that_were_evicted_before() -> None:
    play = Play(PODS).start()
    play.state.stop(None, is_preemption=False)
    both = RemovePods(list(RUN), 10.0, evict=True)
    assert play.next(*RUN) == [both]
    assert play.next(*RUN, answer=PodsRemoved(both, frozenset({"uid-train-0", "uid-train-1"}))) == [PauseSteps()]
    play.state.stop(0.0, is_preemption=False)
    assert play.next(*RUN) == [RemovePods(list(RUN), 0.0, evict=False)]


@pytest.mark.parametrize(("gang", "seconds"), [(JOB, None), (JOB_SET, SUSPEND_WAIT)])
def test_pods_of_a_suspended_object_are_left_to_its_controller(gang: GangName, seconds: float | None) -> None:
    play = Play(gang).start()
    play.state.stop(None, is_preemption=False)
    assert play.next(*RUN) == [SuspendOwner("1")]
    assert play.next(*RUN, answer=OwnerSuspended(True)) == [PauseSteps(seconds)]
    assert play.next() == STOPPED


def test_a_preemption_waits_until_budgets_allow_it_for_the_whole_gang() -> None:
    budget = DisruptionBudget(Metadata(name="one"), BudgetSpec(LabelSelector()))
    play = Play(PODS).start()
    play.state.stop(None, is_preemption=True)
    assert play.next(*RUN) == [AskBudgets()]
    assert play.next(*RUN, answer=BudgetsRead([budget])) == [PauseSteps(BUDGET_PAUSE, "one")]
    assert play.next(*RUN, answer=Unchanged()) == [AskBudgets()]
    allowed = replace(budget, status=replace(budget.status, disruptions_allowed=2))
    assert play.next(*RUN, answer=BudgetsRead([allowed])) == [RemovePods(list(RUN), 10.0, evict=True)]


def test_the_failure_of_the_job_counts_more_than_pods_that_were_lost_with_it() -> None:
    ended = {"terminated": {"exitCode": 3, "reason": "Error"}}
    failed = make_pod(
        "train-0", nodeName="n", status={"phase": "Failed", "containerStatuses": [{"name": "main", "state": ended}]}
    )
    play = Play(PODS).start()
    (step,) = play.next(failed, RUN[1])
    assert step == RemovePods([RUN[1]], 10.0, evict=False)
    assert play.next(failed) == [ReportEnd(RunFailed(*KEY, "pod default/train-0: exit 3", exit_code=3))]


LATE = "1 of 2 pods have not started within 10 min: pod default/train-1"
BACK_OFF = [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]


def stuck(**status: Any) -> Pod:
    """A pod that is bound and has not started."""
    annotations = {"refold.dev/instance": "1"}
    return waiting(1, annotations=annotations, nodeName="n", status={"phase": "Pending", **status})


def test_a_gang_of_which_a_pod_does_not_start_ends_with_the_reason_of_the_kubelet() -> None:
    play = Play(start_timeout=600.0)
    assert play.next(gang=WAITING) == [TARGETS]
    assert play.next(bound(0), stuck(), answer=PodsBound()) == [PauseSteps(600.0)]
    play.now = 400.0
    assert play.next(bound(0), stuck(), answer=Unchanged()) == [PauseSteps(200.0)]
    play.now = 600.0
    pod = stuck()
    assert play.next(bound(0), pod, answer=Unchanged()) == [AskKubelet(pod)]
    why = f"{LATE}: FailedMount: no volume"
    assert play.next(bound(0), pod, answer=KubeletSaid("FailedMount: no volume")) == [AskOwner()]
    assert play.next(bound(0), pod, answer=OwnerRead(RUNNING)) == [SuspendOwner(f"1 {why}")]
    assert play.next(bound(0), pod, answer=OwnerSuspended(True)) == [PauseSteps()]
    assert play.next() == [ReportEnd(RunFailed(*KEY, why, retry=True))]


def test_an_image_that_does_not_exist_is_the_fault_of_the_job() -> None:
    play = Play(PODS, start_timeout=600.0)
    play.next(gang=WAITING)
    play.next(bound(0), stuck(), answer=PodsBound())
    play.now = 600.0
    play.next(bound(0), stuck(containerStatuses=BACK_OFF), answer=Unchanged())
    assert play.next() == [ReportEnd(RunFailed(*KEY, f"{LATE}: ImagePullBackOff: no such image", retry=False))]


def test_time_in_init_containers_does_not_count() -> None:
    play = Play(start_timeout=600.0)
    play.next(gang=WAITING)
    loading = stuck(initContainerStatuses=[{"name": "load", "state": {"running": {}}}])
    assert play.next(bound(0), loading, answer=PodsBound()) == [PauseSteps(600.0)]
    play.now = 500.0
    assert play.next(bound(0), loading) == [PauseSteps(600.0)]
    assert play.next(bound(0), stuck()) == [PauseSteps(600.0)]
    assert play.next(bound(0), bound(1)) == [ReportStart(), PauseSteps()]
