# cython: boundscheck=True, wraparound=True
"""The scheduler: events in, orders out. It reads no clock and does no I/O: equal events give equal orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

import cython

from refold.core.check import check_and_allocate
from refold.core.entries import Entry, Journal, NoJournal
from refold.core.events import Event, PastJob
from refold.core.orders import Order
from refold.core.snapshot import snapshot
from refold.errors import BadDecision, BadValue
from refold.model import NO_CHANGE, Cluster, Decision, Placement, Seconds

if not cython.compiled:
    from refold.core.state import State
    from refold.core.view import View


class Policy(Protocol):
    """A scheduling policy. It must be deterministic: equal views give equal decisions."""

    name: str

    def decide(self, view: View) -> Decision:
        """Return what to change now, and why the jobs that it considered wait."""


def raise_rejection(error: BadDecision) -> None:
    """Raise the error of a rejected decision: the default handler, for simulations and tests."""
    raise error


class Scheduler:
    """Drives one policy on one cluster, and writes one journal.

    `on_rejection` is called with the error when a decision breaks a rule. If it returns, the decision is dropped.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        journal: Journal | None = None,
        on_rejection: Callable[[BadDecision], None] = raise_rejection,
        view: View | None = None,
    ) -> None:
        """`view`: of the state to continue from, in which the changes of the next decision are pending."""
        self._state = State(cluster) if view is None else view._state
        self._policy = policy
        self._journal = journal or NoJournal()
        self._on_rejection = on_rejection
        self.view = view or View(self._state)

    @property
    def policy(self) -> Policy:
        """The policy that it drives."""
        return self._policy

    @property
    def late_reports(self) -> int:
        """The number of events without effect, such as a report on a run that has ended. They are normal."""
        return self._state.late.total()

    def snapshot(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        """Return the current state as events from which another scheduler can start; `past`: jobs that have ended."""
        return snapshot(self._state, past)

    def repeat(self, entry: Entry) -> Entry:
        """Process the events of an entry of a journal, and call the policy if it was called then."""
        return self.step(entry.now, entry.events, entry.wake_at if entry.deferred else None)

    def step(self, now: Seconds, events: Sequence[Event], decide_at: Seconds | None = None) -> Entry:
        """Process events and call the policy. The returned entry is in the journal; its orders may be carried out.

        `decide_at`: do not call the policy before this time, when there must be a step; None: call it now.
        """
        state = self._state

        # 1. Apply the events to the state.
        if now < state.now:
            raise BadValue(f"step at {now} s after one at {state.now} s, expected times in ascending order")
        state.now = now
        orders: list[Order] = []
        for event in events:
            consequence = state.apply(event)
            if consequence is not None:
                orders.append(consequence)
        state.queue.relax(now)

        # 2. Call the policy, which sees the changes of all steps since it was last called.
        if decide_at is not None:
            return self._write(Entry(now, tuple(events), tuple(orders), wake_at=decide_at, deferred=True))
        try:
            decision = self._policy.decide(self.view)
        except BaseException:
            self.view.end_trial()
            raise
        preallocated = self.view.end_trial(decision.starts)
        state.changes.clear()

        # 3. Check the decision; apply all of it or nothing.
        rejection = ""
        if decision is not NO_CHANGE:
            try:
                holding = check_and_allocate(state, decision, self._policy.name, preallocated)
            except BadDecision as error:
                self._on_rejection(error)
                state.queue.reject(decision)
                decision, rejection = NO_CHANGE, str(error)
            else:
                orders += self._commit(decision, holding)

        # 4. Write the entry to the journal, before the caller acts on it.
        return self._write(
            Entry(
                now,
                tuple(events),
                tuple(orders),
                decision.waits,
                decision.start_estimates,
                self._wake_at(decision),
                rejection,
                decision.flags,
                decision.ends,
            )
        )

    def _wake_at(self, decision: Decision) -> Seconds | None:
        """Return the time of the next step if nothing happens until then: when the policy or the queue needs one."""
        change = self._state.queue.next_change()
        if change == inf or (decision.wake_at is not None and decision.wake_at <= change):
            return decision.wake_at
        return change

    def _write(self, entry: Entry) -> Entry:
        self._journal.write(entry)
        return entry

    def _commit(self, decision: Decision, holding: dict[str, Placement]) -> list[Order]:
        state = self._state
        orders: list[Order] = []
        for stop in decision.stops:
            orders.append(state.running.preempt(stop.job, stop.why, state.now))
        for end in decision.ends:
            orders.append(state.running.stop_for_good(end.job, end.why, state.now))
        for reshape in decision.reshapes:
            orders.append(state.running.reshape(reshape, holding[reshape.job], state.now))
        for start in decision.starts:
            orders.append(state.start(start.job, start.allocation))
        for wait in decision.waits:
            state.queue.reasons[wait.job] = wait
        for estimate in decision.start_estimates:
            state.queue.start_estimates[estimate.job] = estimate
        return orders
