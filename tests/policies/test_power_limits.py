"""Power limits of racks: drafts and transitions of policies that reshape."""

from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import JobSubmitted, RunStopped
from refold.model import Allocation, Cluster, Decision, GpuType, Node, Rack, Start, Stop
from refold.placement import Placer
from refold.policies.common import Draft, Transition
from refold.testing import make_job

THREE_OF_FOUR = Cluster(
    (Node("n0", 4, "A100", 8000, 2**20, rack="r"),), (GpuType("A100", busy_watts=100.0),), (Rack("r", 300.0),)
)
"""Three of four GPUs may be busy."""


def two_running() -> Scheduler:
    """Return a scheduler with `a` on GPUs 0 and 1, and `b` waiting."""
    policy = ScriptedPolicy()
    scheduler = Scheduler(THREE_OF_FOUR, policy)
    policy.next = Decision((Start("a", on(0, 1)),))
    scheduler.step(0.0, [JobSubmitted(make_job(name, gpus=2)) for name in "ab"])
    return scheduler


def test_a_draft_assigns_no_allocation_beyond_the_limit_of_a_rack() -> None:
    view = two_running().view
    assert Draft(view).assign("b", on(2, 3))
    limited = Draft(view, Placer("genetic-power"))
    assert not limited.assign("b", on(2, 3))
    limited.release("a")
    assert limited.assign("b", on(2, 3))


def test_a_transition_waits_for_the_power_of_a_run_that_stops() -> None:
    scheduler = two_running()
    target: dict[str, tuple[Allocation | None, str]] = {"a": (None, "for b"), "b": (on(2, 3), "")}
    transition = Transition(Placer("genetic-power"))
    assert transition.step_towards(scheduler.view, target) == Decision(stops=(Stop("a", "for b"),))
    assert list(transition.pending) == ["b"]
    scheduler.view.end_trial()
    scheduler._policy.next = Decision(stops=(Stop("a", "for b"),))  # type: ignore[attr-defined]
    scheduler.step(1.0, [])
    scheduler.step(2.0, [RunStopped("a", 1)])
    assert transition.next_step(scheduler.view).starts == (Start("b", on(2, 3)),)
