"""What is to be done about a run of a gang: facts in, steps out. Nothing here calls Kubernetes, or reads a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from refold.core import RunFailed, RunFinished, RunStopped
from refold.engines.kubernetes.gangs import INSTANCE_ANNOTATION, GangName, RunKey, controller_of
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.owner_specs import SUSPENDABLE, OwnerState
from refold.engines.kubernetes.pod_states import (
    PodFailure,
    PodTarget,
    bindable,
    first_failure,
    have_started,
    have_succeeded,
    is_over,
    remember,
    start_problem,
)
from refold.engines.kubernetes.run_steps import (
    AskBudgets,
    AskKubelet,
    AskOwner,
    BindPods,
    BudgetsRead,
    GangAnswer,
    GangStep,
    KubeletSaid,
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
    RunEnd,
    SuspendOwner,
    Unchanged,
    blocking_budget,
)
from refold.model import Seconds, format_duration

POD_WAIT: Seconds = 60.0
"""How long a run waits for its controller to create the pods. It holds its GPUs meanwhile."""

SUSPEND_WAIT: Seconds = 30.0
"""How long the controller of a suspended JobSet, TrainJob or PyTorchJob has to end its pods. Then they are evicted."""

OWNER_CHECK_PAUSE: Seconds = 2.0
BUDGET_PAUSE: Seconds = 2.0
EVICTION_PAUSE: Seconds = 1.0
"""Pause before pods are evicted again whose eviction was refused."""


class GangFacts(NamedTuple):
    """What is known: the pods that were bound for the run, all pods of its gang, and the answer to the last step."""

    pods: Mapping[str, Pod]
    gang_pods: Mapping[str, Pod]
    nodes: Mapping[str, ApiNode]
    now: Seconds
    answer: GangAnswer | None = None


@dataclass(slots=True)
class GangRunState:
    """A run, as far as it is not in the cluster. `nodes`: the node of each instance. `grace`: its grace period.

    `start_timeout`: how long bound pods may take to start.
    """

    key: RunKey
    gang: GangName
    nodes: Sequence[str]
    grace: Seconds
    is_elastic: bool = False
    start_timeout: Seconds = inf
    stopping: bool = False
    ending: PodFailure | None = None
    """Why all pods are being ended, although the run was not ordered to stop."""
    gone: str = ""
    """What somebody did to the gang, so that its job is cancelled: 'was deleted', 'was suspended'."""
    _phase: Callable[[GangFacts], list[GangStep]] = field(init=False, repr=False)
    """What the run is at: `_adopt`, then `_bind`, `_follow`, and four phases of its end."""
    _size: int = field(init=False)
    """Pods that the run has: fewer than instances if some indices of its Jobs were complete before."""
    _has_started: bool = False
    _respects_budgets: bool = False
    _seen: dict[str, Pod] = field(default_factory=dict)
    """All pods of the run, as they were last: a pod that has succeeded may be deleted."""
    _pods: list[Pod] = field(default_factory=list)
    """The pods of the run as they are now; those that are gone, as they were last."""
    _uncertain: Sequence[Pod] = ()
    """Pods of which it is unknown whether they were bound."""
    _give_up_at: Seconds = 0.0
    _start_by: Seconds = inf
    _evict_at: Seconds = 0.0
    _removed: set[tuple[str, bool]] = field(default_factory=set)
    """Pods whose removal was accepted, and whether that was without a grace period."""

    def __post_init__(self) -> None:
        """Expect a pod for each instance."""
        self._size, self._phase = len(self.nodes), self._adopt

    @property
    def can_suspend(self) -> bool:
        return self.gang.kind in SUSPENDABLE

    def stop(self, grace: Seconds | None, is_preemption: bool) -> None:
        """End the run, after its grace period or another one.

        A preemption waits until the PodDisruptionBudgets of the pods allow it.
        """
        self.grace = self.grace if grace is None else grace
        self._respects_budgets = is_preemption and (self._respects_budgets or not self.stopping)
        self.stopping = True

    @property
    def is_ending(self) -> bool:
        return self.stopping or self.ending is not None

    def undo(self, why: str) -> bool:
        """End the run, which was bound and should not have been, unless it has started or ends anyway."""
        if self._has_started or self.is_ending:
            return False
        self.ending = PodFailure(why, lost=True)
        return True

    def next_steps(self, facts: GangFacts) -> list[GangStep]:
        self._pods = remember(self._seen, facts.pods)
        return self._phase(facts)

    # What a previous back end has done.

    def _adopt(self, facts: GangFacts) -> list[GangStep]:
        """Find out how the run ended, if its pods are gone.

        There is nothing to find out if the job has not run before and all pods wait. After an earlier run, the object
        may be suspended although its pods still wait: its controller has yet to delete them.
        """
        if isinstance(facts.answer, OwnerRead):
            return self._adopt_from(facts.answer.state, facts)
        is_first = self.key[1] == 1 and not facts.pods
        is_new = is_first and not self.is_elastic and len(bindable(facts.gang_pods)) >= self._size
        return [AskOwner()] if self.can_suspend and not is_new else self._begin_to_bind(facts)

    def _adopt_from(self, owner: OwnerState | None, facts: GangFacts) -> list[GangStep]:
        if owner is None:
            self.gone = "" if facts.pods else "was deleted"
            return self._begin_to_bind(facts) if facts.pods else [ReportEnd(RunStopped(*self.key))]
        self._expect_pods(owner)
        number, _, why = owner.ended_run.partition(" ")
        if number == str(self.key[1]):
            self.stopping, self.ending = not why, PodFailure(why) if why else None
            return self._begin_to_bind(facts) if facts.pods else [ReportEnd(self._end())]
        if owner.has_succeeded:
            return [ReportEnd(RunFinished(*self.key))]
        if facts.pods:
            return self._begin_to_bind(facts)
        if owner.finished:
            return [ReportEnd(RunFailed(*self.key, f"{self.gang} has failed: {owner.message}"))]
        return self._resume(owner) or self._begin_to_bind(facts)

    def _expect_pods(self, owner: OwnerState) -> None:
        """Indices that were complete before this run get no pods any more."""
        of_this_run = sum(pod.status.phase == "Succeeded" for pod in self._pods)
        self._size = len(self.nodes) - max(0, min(owner.succeeded - of_this_run, len(self.nodes) - 1))

    def _resume(self, owner: OwnerState) -> list[GangStep]:
        """Let the object create as many pods as the run has instances, unless it does."""
        has_other_size = self.is_elastic and owner.pods != len(self.nodes)
        if not (owner.suspended or has_other_size):
            return []
        return [ResumeOwner(len(self.nodes) if has_other_size else None)]

    # Binding.

    def _begin_to_bind(self, facts: GangFacts) -> list[GangStep]:
        self._phase, self._give_up_at = self._bind, facts.now + POD_WAIT
        return self._bind(facts._replace(answer=None))

    def _bind(self, facts: GangFacts) -> list[GangStep]:
        """Wait until there is a pod for each instance, and room for it; then bind those that are not bound yet."""
        if isinstance(facts.answer, PodsBound):
            self._uncertain = facts.answer.uncertain
            return self._bound(facts.answer.problem, facts)
        if self.is_ending:
            return self._bound("", facts)
        if isinstance(facts.answer, Unchanged) and self.can_suspend:
            return [AskOwner()]
        if isinstance(facts.answer, OwnerRead) and (steps := self._check_owner(facts.answer.state, facts)):
            return steps
        bound = {int(pod.metadata.annotations.get(INSTANCE_ANNOTATION, "0")) for pod in self._pods}
        missing = [instance for instance in range(self._size) if instance not in bound]
        waiting = bindable(facts.gang_pods)
        if isinstance(facts.answer, NoRoom):
            problem = facts.answer.problem
            if facts.answer.lasting and not facts.pods:  # nothing has to be ended
                return [ReportEnd(RunFailed(*self.key, problem, retry=True))]
            if facts.answer.lasting:
                return self._bound(problem, facts)
        elif len(waiting) < len(missing) and not self.can_suspend and not facts.pods:
            return [ReportEnd(self._end_without_pods(len(waiting), len(missing)))]
        elif len(waiting) < len(missing):
            problem = f"{len(waiting)} of {len(missing)} pods of {self.gang} exist"
        else:
            pairs = zip(waiting, missing, strict=False)
            return [BindPods([PodTarget(pod, instance, self.nodes[instance]) for pod, instance in pairs])]
        if facts.now >= self._give_up_at or first_failure(self._pods) is not None:
            return self._bound(problem, facts)
        return [PauseSteps(OWNER_CHECK_PAUSE)]

    def _end_without_pods(self, waiting: int, missing: int) -> RunEnd:
        """End a run for which pods are missing that it cannot create: nothing is held for what does not exist."""
        if self.gang.kind == "Pod":
            self.gone = "was deleted"
            return RunStopped(*self.key)
        return RunFailed(*self.key, f"{waiting} of {missing} pods of {self.gang} exist", retry=True)

    def _check_owner(self, owner: OwnerState | None, facts: GangFacts) -> list[GangStep]:
        """While pods are missing: see that the object is able to create them."""
        if owner is None:
            return self._bound(f"{self.gang} was deleted", facts)
        self._expect_pods(owner)
        return self._bound(f"{self.gang} has ended: {owner.finished}", facts) if owner.finished else self._resume(owner)

    def _bound(self, problem: str, facts: GangFacts) -> list[GangStep]:
        """Go on when all pods are bound, or one of them cannot be bound."""
        if problem:
            self.ending = PodFailure(problem, lost=True)
        self._phase, self._start_by = self._follow, facts.now + self.start_timeout
        return self._follow(facts)

    # Following.

    def _follow(self, facts: GangFacts) -> list[GangStep]:
        started: list[GangStep] = []
        if not self._has_started and have_started(self._pods, self._size):
            self._has_started, started = True, [ReportStart()]
        if not self.stopping and have_succeeded(self._pods, self._size):
            return [*started, ReportEnd(RunFinished(*self.key))]
        self.ending = self.ending or first_failure(self._pods)
        if not self.stopping and self.ending is None:
            steps = [PauseSteps()] if self._has_started else self._await_start(facts)
            if self.ending is None:
                return [*started, *steps]
        self._phase = self._find_out_whether_gone
        return [*started, *self._find_out_whether_gone(facts)]

    def _await_start(self, facts: GangFacts) -> list[GangStep]:
        """Wait for pods that have not started, or end all of them: they hold GPUs that others could use."""
        late = [pod for pod in self._pods if start_problem(pod) is not None]
        if not late:
            self._start_by = facts.now + self.start_timeout
        if facts.now < self._start_by:
            return [PauseSteps(None if self._start_by == inf else self._start_by - facts.now)]
        problem = start_problem(late[0]) or PodFailure("")
        if not problem.why and not isinstance(facts.answer, KubeletSaid):
            return [AskKubelet(late[0])]
        said = facts.answer.warning if isinstance(facts.answer, KubeletSaid) else ""
        count = f"{len(late)} of {len(self._pods)} pods have not started within {format_duration(self.start_timeout)}"
        self.ending = problem._replace(why=f"{count}: pod {late[0].key}: {problem.why or said or 'no reason given'}")
        return []

    # Ending.

    def _find_out_whether_gone(self, facts: GangFacts) -> list[GangStep]:
        """After a loss of pods, find out whether somebody has deleted or suspended the gang: its job is cancelled."""
        if self.ending is not None and self.ending.lost and not self.stopping:
            if self.can_suspend and not isinstance(facts.answer, OwnerRead):
                return [AskOwner()]
            owner = facts.answer.state if isinstance(facts.answer, OwnerRead) else None
            self.gone = self._what_was_done(owner)
        self._phase = self._await_budgets
        return self._await_budgets(facts)

    def _what_was_done(self, owner: OwnerState | None) -> str:
        if self.gang.kind == "Pod":
            if self.ending is None or not self._pods:
                return ""  # it still waits, and is placed again
            return f"is gone: {self.ending.why}"  # one created in its place is another gang
        if not self.can_suspend:
            gone = [pod for pod in self._pods if pod.is_deleted]
            return "was deleted" if gone and all(controller_of(pod) is None for pod in gone) else ""
        if owner is None:
            return "was deleted"
        ended_by_us = owner.ended_run.partition(" ")[0] == str(self.key[1])
        return "was suspended" if owner.suspended and not ended_by_us else ""

    def _await_budgets(self, facts: GangFacts) -> list[GangStep]:
        """Before a preemption, wait until PodDisruptionBudgets allow to evict the whole gang."""
        if self._respects_budgets and self.ending is None and self.grace > 0:
            if not isinstance(facts.answer, BudgetsRead):
                return [AskBudgets()]
            self.ending = first_failure(self._pods)
            pods = [pod for pod in facts.pods.values() if not pod.has_ended]
            if pods and (blocking := blocking_budget(facts.answer.budgets, pods)):
                return [PauseSteps(BUDGET_PAUSE, blocking)]
        if have_succeeded(self._pods, self._size):
            return [ReportEnd(self._end())]
        self._phase = self._suspend
        return self._suspend(facts)

    def _suspend(self, facts: GangFacts) -> list[GangStep]:
        """Suspend the object, and decide when pods that have not ended are evicted.

        At once if nothing else ends them; never if Kubernetes itself has the controller.
        """
        if self.can_suspend and not isinstance(facts.answer, OwnerSuspended):
            why = "" if self.stopping or self.ending is None else f" {self.ending.why}"
            return [SuspendOwner(f"{self.key[1]}{why}")]
        if self.gang.kind == "Job":
            self._evict_at = inf
        elif isinstance(facts.answer, OwnerSuspended) and facts.answer.accepted:
            self._evict_at = facts.now + SUSPEND_WAIT
        if self._evict_at:
            self._uncertain = ()  # the controller ends them
        self._phase = self._remove
        return self._remove(facts)

    def _remove(self, facts: GangFacts) -> list[GangStep]:
        """End all pods that have not ended, and wait until they are gone."""
        is_urgent, seconds_left, was_refused = self.grace <= 0, self._evict_at - facts.now, False
        if isinstance(facts.answer, PodsRemoved):
            step, accepted = facts.answer
            self._removed |= {(uid, step.grace <= 0) for uid in accepted}
            was_refused = len(accepted) < len(step.pods)
            self._uncertain = ()
        if self._uncertain:
            return [RemovePods(self._uncertain, self.grace, evict=False)]
        remaining = [pod for pod in facts.pods.values() if not is_over(pod, facts.nodes)]
        if not remaining:
            return [ReportEnd(self._end())]
        if was_refused:
            return [PauseSteps(EVICTION_PAUSE)]
        wanted = [
            pod
            for pod in remaining
            if (pod.metadata.uid, is_urgent) not in self._removed and (is_urgent or not pod.is_deleted)
        ]
        if wanted and (is_urgent or seconds_left <= 0):
            return [RemovePods(wanted, self.grace, evict=self.stopping and not is_urgent)]
        return [PauseSteps(seconds_left if 0 < seconds_left < inf else None)]

    def _end(self) -> RunEnd:
        if have_succeeded(self._pods, self._size):
            return RunFinished(*self.key)
        if self.gang.kind == "Pod" and self.stopping and self._pods:
            self.gone = self.gone or "was ended"
        if self.stopping or self.gone:
            return RunStopped(*self.key)
        assert self.ending is not None, "the pods were ended for a reason"
        found = first_failure(self._pods)  # pods that were ended with the others are no reason
        failure = found if found is not None and not found.lost and self.ending.lost else self.ending
        return RunFailed(*self.key, failure.why, retry=failure.lost, exit_code=failure.exit_code)
