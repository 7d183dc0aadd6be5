"""One step of the scheduler: what the policy sees, what is recorded, and what becomes of a rejected decision."""

from collections.abc import Callable

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Changes, Entry, Journals, ListJournal, Scheduler, View
from refold.core.events import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
    Woke,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import (
    NO_CHANGE,
    Allocation,
    Decision,
    End,
    Flag,
    Reason,
    Reshape,
    Run,
    Start,
    StartEstimate,
    Stop,
    Wait,
)
from refold.placement import Placer
from refold.policies.queueing.fifo import FifoSkip
from refold.testing import make_cluster, make_job

A, B, C = make_job("a"), make_job("b"), make_job("c")
START_A = Decision((Start("a", on(0)),))


def contents(changes: Changes) -> dict[str, list[object]]:
    """Return the lists that are not empty."""
    return {name: list(getattr(changes, name)) for name in Changes.__slots__ if getattr(changes, name)}


class Watching(ScriptedPolicy):
    """Records all changes that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, list[object]]] = []
        self.freed: list[bool] = []

    def decide(self, view: View) -> Decision:
        self.seen.append(contents(view.changes))
        self.freed.append(view.changes.freed)
        return super().decide(view)


class Watched:
    """A scheduler on a cluster of 4 and 2 GPUs, with one step per second."""

    def __init__(self) -> None:
        self.policy = Watching()
        self.journal = ListJournal()
        self.scheduler = Scheduler(make_cluster(4, 2), self.policy, self.journal)
        self.now = 0.0

    def step(self, *events: Event, then: Decision = NO_CHANGE) -> dict[str, list[object]]:
        """Return the changes that the policy saw in this step."""
        self.policy.next = then
        self.scheduler.step(self.now, events)
        self.now += 1.0
        return self.policy.seen[-1]


class TestChanges:
    def test_each_change_is_seen_once(self) -> None:
        watched = Watched()
        run = Run("a", 1, on(0), 0.0)
        assert watched.step(JobSubmitted(A), JobSubmitted(B), then=START_A) == {"submitted": [A, B]}
        assert watched.step() == {"started": [run]}
        assert watched.step() == {}
        assert watched.step(RunStarted("a", 1)) == {"progressed": [run]}
        assert watched.step(RunProgressed("a", 1, 5.0)) == {"progressed": [run]}
        assert watched.step(JobHeld("b")) == {"removed": ["b"]}
        assert watched.step(JobReleased("b")) == {"submitted": [B]}
        assert watched.step(RunFailed("a", 1, retry=True)) == {"requeued": [A], "ended": [run]}
        assert watched.step(NodeLost(1)) == {"nodes": [1]}
        assert watched.step(NodeReturned(1)) == {"nodes": [1]}
        assert watched.step(PastJob(C, 7.0)) == {"past_jobs": [(C, 7.0)]}
        assert watched.step(Woke()) == {}

    def test_several_changes_of_one_kind_are_seen_in_their_order(self) -> None:
        watched = Watched()
        watched.step(*map(JobSubmitted, (A, B, C)), then=Decision((Start("a", on(0)), Start("b", on(1)))))
        assert watched.step(NodeLost(1), NodeReturned(1), RunFinished("b", 1), JobCancelled("c"))["nodes"] == [1, 1]
        assert watched.policy.seen[-1]["ended"] == [Run("b", 1, on(1), 0.0)]
        assert watched.policy.seen[-1]["removed"] == ["c"]

    @pytest.mark.parametrize(
        ("event", "freed"),
        [
            (RunFinished("a", 1), True),
            (RunStopped("a", 1), True),
            (NodeLost(1), True),
            (JobSubmitted(C), False),
            (JobCancelled("b"), False),
            (RunStarted("a", 1), False),
            (Woke(), False),
        ],
    )
    def test_resources_may_be_free_after_the_end_of_a_run_or_a_change_of_a_node(
        self, event: Event, freed: bool
    ) -> None:
        watched = Watched()
        watched.step(JobSubmitted(A), JobSubmitted(B), then=START_A)
        watched.step()
        watched.step(event)
        assert watched.policy.freed == [False, False, freed]

    @pytest.mark.parametrize("gone", [JobCancelled("a"), JobHeld("a"), RunAdopted("a", 1, on(0), 0.0)])
    def test_the_policy_does_not_see_a_job_that_leaves_the_queue_in_the_step_in_which_it_arrives(
        self, gone: Event
    ) -> None:
        seen = Watched().step(JobSubmitted(A), gone)
        assert "submitted" not in seen
        assert "removed" not in seen

    def test_the_policy_does_not_see_a_job_that_is_requeued_and_cancelled_in_one_step(self) -> None:
        watched = Watched()
        watched.step(JobSubmitted(A), then=START_A)
        watched.step()
        seen = watched.step(RunFailed("a", 1, retry=True), JobCancelled("a"))
        assert seen == {"ended": [Run("a", 1, on(0), 0.0)]}

    def test_only_the_job_that_leaves_is_hidden(self) -> None:
        assert Watched().step(*map(JobSubmitted, (A, B, C)), JobCancelled("b")) == {"submitted": [A, C]}

    def test_the_ended_run_of_a_stopped_job_is_marked_as_stopping(self) -> None:
        watched = Watched()
        watched.step(JobSubmitted(A), then=START_A)
        watched.step(then=Decision(stops=(Stop("a"),)))
        assert watched.step(RunStopped("a", 1))["ended"] == [Run("a", 1, on(0), 0.0, True)]

    def test_changes_are_kept_if_the_policy_fails(self) -> None:
        class FailsOnce(Watching):
            def decide(self, view: View) -> Decision:
                super().decide(view)
                if len(self.seen) == 1:
                    raise RuntimeError("bug")
                return NO_CHANGE

        policy = FailsOnce()
        scheduler = Scheduler(make_cluster(1), policy)
        with pytest.raises(RuntimeError):
            scheduler.step(0.0, [JobSubmitted(A)])
        scheduler.step(1.0, [])
        assert policy.seen == [{"submitted": [A]}, {"submitted": [A]}]


class TestEntries:
    def test_an_entry_has_the_events_the_orders_and_the_rest_of_the_decision(self) -> None:
        watched = Watched()
        events = tuple(map(JobSubmitted, (A, B, C)))
        watched.step(*events, then=Decision((Start("a", on(0)), Start("b", on(1)))))
        decision = Decision(
            ends=(End("a", "hung"),),
            flags=(Flag("b", "slow"),),
            waits=(Wait("c", Reason.PRIORITY),),
            start_estimates=(StartEstimate("c", 60.0, 50.0, 70.0),),
            wake_at=30.0,
        )
        watched.step(Woke(), then=decision)
        assert watched.journal.entries == [
            Entry(0.0, events, (StartRun("a", 1, on(0)), StartRun("b", 1, on(1)))),
            Entry(
                1.0,
                (Woke(),),
                (StopRun("a", 1, "hung"),),
                (Wait("c", Reason.PRIORITY),),
                (StartEstimate("c", 60.0, 50.0, 70.0),),
                30.0,
                "",
                (Flag("b", "slow"),),
                (End("a", "hung"),),
            ),
        ]

    def test_orders_are_those_of_events_then_stops_ends_reshapes_and_starts(self) -> None:
        watched = Watched()
        names = "abcdef"
        jobs = [make_job(name, reshapable=True) for name in names]
        starts = tuple(Start(name, on(gpu)) for gpu, name in enumerate("abcd"))
        watched.step(*map(JobSubmitted, jobs), then=Decision(starts))
        decision = Decision(
            starts=(Start("e", on(0, node=1)),),
            stops=(Stop("b", "stop"),),
            reshapes=(Reshape("c", on(1, node=1), "reshape"),),
            ends=(End("d", "end"),),
        )
        watched.step(JobCancelled("a"), then=decision)
        assert watched.journal.entries[-1].orders == (
            StopRun("a", 1, "cancelled"),
            StopRun("b", 1, "stop"),
            StopRun("d", 1, "end"),
            StopRun("c", 1, "reshape", on(1, node=1)),
            StartRun("e", 1, on(0, node=1)),
        )

    def test_several_journals_get_the_same_entries(self) -> None:
        first, second = ListJournal(), ListJournal()
        scheduler = Scheduler(make_cluster(1), FifoSkip(), Journals(first, second))
        entries = [scheduler.step(0.0, [JobSubmitted(A)]), scheduler.step(5.0, [RunFinished("a", 1)])]
        assert first.entries == second.entries == entries

    def test_the_entry_is_written_before_it_is_returned(self) -> None:
        written: list[Entry] = []

        class Failing:
            def write(self, entry: Entry) -> None:
                written.append(entry)
                raise OSError("disk full")

        scheduler = Scheduler(make_cluster(1), FifoSkip(), Failing())
        with pytest.raises(OSError, match="disk full"):
            scheduler.step(0.0, [JobSubmitted(A)])
        assert [entry.orders for entry in written] == [(StartRun("a", 1, on(0)),)]

    @pytest.mark.parametrize(("second", "allowed"), [(5.0, True), (4.9, False)])
    def test_a_step_may_be_at_the_time_of_the_last_but_not_before(self, second: float, allowed: bool) -> None:
        scheduler = Scheduler(make_cluster(1), FifoSkip())
        scheduler.step(5.0, [])
        if allowed:
            assert scheduler.step(second, []).now == second
        else:
            with pytest.raises(
                BadValue, match=r"step at 4\.9 s after one at 5\.0 s, expected times in ascending order"
            ):
                scheduler.step(second, [])

    def test_a_step_at_the_wrong_time_changes_nothing(self) -> None:
        scheduler = Scheduler(make_cluster(1), FifoSkip())
        scheduler.step(5.0, [])
        with pytest.raises(BadValue):
            scheduler.step(4.0, [JobSubmitted(A)])
        assert (scheduler.view.now, dict(scheduler.view.runs)) == (5.0, {})


class TestRejections:
    def test_a_rejected_decision_is_dropped_as_a_whole_and_recorded(self) -> None:
        rejections: list[BadDecision] = []
        policy, journal = ScriptedPolicy(), ListJournal()
        scheduler = Scheduler(make_cluster(2), policy, journal, rejections.append)
        policy.next = Decision(
            (Start("a", on(0)),),
            stops=(Stop("ghost"),),
            waits=(Wait("b", Reason.PRIORITY),),
            start_estimates=(StartEstimate("b", 9.0),),
            wake_at=7.0,
        )
        text = "scripted changed job 'ghost', which is unknown (rule: running)"
        assert scheduler.step(0.0, [JobSubmitted(A), JobSubmitted(B)]) == Entry(
            0.0, (JobSubmitted(A), JobSubmitted(B)), rejection=text
        )
        assert [str(error) for error in rejections] == [text]
        assert [entry.rejection for entry in journal.entries] == [text]
        view = scheduler.view
        assert (list(view.waiting), view.free_gpus, view.start_estimate("b")) == (["a", "b"], 2.0, None)

    def test_orders_that_events_caused_are_carried_out_although_the_decision_is_rejected(self) -> None:
        policy = ScriptedPolicy()
        scheduler = Scheduler(make_cluster(2), policy, on_rejection=lambda _: None)
        policy.next = START_A
        scheduler.step(0.0, [JobSubmitted(A)])
        policy.next = Decision(stops=(Stop("ghost"),))
        assert scheduler.step(1.0, [JobCancelled("a")]).orders == (StopRun("a", 1, "cancelled"),)

    def test_the_policy_is_told_again_of_jobs_that_it_wanted_to_start(self) -> None:
        policy = Watching()
        scheduler = Scheduler(make_cluster(2), policy, on_rejection=lambda _: None)
        policy.next = Decision((Start("a", on(0)), Start("ghost", on(1))))
        scheduler.step(0.0, [JobSubmitted(A), JobSubmitted(B)])
        scheduler.step(1.0, [])
        assert policy.seen[-1] == {"requeued": [A]}

    def test_by_default_a_rejection_is_an_error(self) -> None:
        policy = ScriptedPolicy()
        policy.next = Decision(wake_at=0.0)
        with pytest.raises(BadDecision, match="rule: wake"):
            Scheduler(make_cluster(1), policy).step(0.0, [])


class Placing:
    """Places jobs on trial, then returns what `decide_with` makes of the placements."""

    name = "placing"

    def __init__(self, decide_with: Callable[[list[Start]], Decision]) -> None:
        self._decide_with = decide_with

    def decide(self, view: View) -> Decision:
        starts = []
        for job in view.waiting.values():
            placement = view.trial().place(Placer(), job.demand)
            if placement is not None:
                starts.append(Start(job.id, Allocation(placement)))
        return self._decide_with(starts)


class TestTrials:
    def step(self, decide_with: Callable[[list[Start]], Decision]) -> Scheduler:
        scheduler = Scheduler(make_cluster(2), Placing(decide_with), on_rejection=lambda _: None)
        scheduler.step(0.0, [JobSubmitted(A), JobSubmitted(B)])
        return scheduler

    def test_placements_that_are_started_stay_allocated(self) -> None:
        view = self.step(lambda starts: Decision(tuple(starts))).view
        assert (sorted(view.runs), view.free_gpus) == (["a", "b"], 0.0)

    def test_placements_that_are_not_started_are_undone(self) -> None:
        view = self.step(lambda starts: Decision(tuple(starts[1:]))).view
        assert (list(view.runs), view.free_gpus) == (["b"], 1.0)

    def test_all_placements_are_undone_if_the_decision_is_rejected(self) -> None:
        view = self.step(lambda starts: Decision(tuple(starts), stops=(Stop("ghost"),))).view
        assert (list(view.runs), view.free_gpus) == ([], 2.0)

    def test_one_placement_cannot_be_given_to_two_jobs(self) -> None:
        def twice(starts: list[Start]) -> Decision:
            return Decision((starts[0], Start("b", starts[0].allocation)))

        view = self.step(twice).view
        assert (list(view.runs), view.free_gpus) == ([], 2.0)

    def test_a_placement_may_be_given_to_another_job(self) -> None:
        view = self.step(lambda starts: Decision((Start("b", starts[0].allocation),))).view
        assert (list(view.runs), view.free_gpus) == (["b"], 1.0)
