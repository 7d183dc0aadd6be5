"""The scheduler: facts in, orders out. It never asks the time, never acts, and the same facts give the same orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from refold.core.check import admit
from refold.core.entries import Entry, Journal, NoJournal
from refold.core.events import Event, PastJob
from refold.core.orders import Order
from refold.core.snapshot import snapshot
from refold.core.state import State
from refold.core.view import View
from refold.errors import BadDecision, BadValue
from refold.model import KEEP, Cluster, Decision, Placement, Seconds


class Policy(Protocol):
    """What others write: same view, same answer."""

    name: str

    def decide(self, view: View) -> Decision:
        """What should change now, and why the jobs it looked at wait."""
        ...


def raise_it(refusal: BadDecision) -> None:
    """What to do with a bad decision where a person is watching: stop."""
    raise refusal


class Scheduler:
    """One cluster, one policy, one journal."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        journal: Journal | None = None,
        refused: Callable[[BadDecision], None] = raise_it,
    ) -> None:
        self._state = State(cluster)
        self._policy = policy
        self._journal = journal or NoJournal()
        self._refused = refused
        self.view = View(self._state)

    @property
    def late_reports(self) -> int:
        """How many reports named a run that had ended or a job that was known: normal, and counted."""
        return self._state.late.total()

    def snapshot(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        """The present as facts, from which another scheduler can begin; `past` is what is known of earlier jobs."""
        return snapshot(self._state, past)

    def step(self, now: Seconds, events: Sequence[Event]) -> Entry:
        """One step. The entry it returns has been written to the journal; its orders can be carried out."""
        state = self._state

        # 1. What has happened.
        if now < state.now:
            raise BadValue(f"a step at {now} s after one at {state.now} s: time does not go back")
        state.now = now
        orders: list[Order] = []
        for event in events:
            consequence = state.apply(event)
            if consequence is not None:
                orders.append(consequence)

        # 2. What the policy makes of it.
        try:
            decision = self._policy.decide(self.view)
        except BaseException:
            self.view.end_trial()
            raise
        found = self.view.end_trial(decision.starts)
        state.changes.forget()

        # 3. Whether that can be done. If so, what is to be done about it; if not, nothing is.
        refusal = ""
        if decision is not KEEP:
            try:
                holding = admit(state, decision, self._policy.name, found)
            except BadDecision as bad:
                self._refused(bad)
                state.refuse(decision)
                decision, refusal = KEEP, str(bad)
            else:
                orders += self._commit(decision, holding)

        # 4. Write it down; whoever asked may act now.
        entry = Entry(
            now,
            tuple(events),
            tuple(orders),
            decision.waits,
            decision.start_estimates,
            decision.wake_at,
            refusal,
            decision.flags,
            decision.ends,
        )
        self._journal.write(entry)
        return entry

    def _commit(self, decision: Decision, holding: dict[str, Placement]) -> list[Order]:
        state = self._state
        orders: list[Order] = []
        for stop in decision.stops:
            orders.append(state.stop(stop.job, stop.why))
        for end in decision.ends:
            orders.append(state.end(end.job, end.why))
        for reshape in decision.reshapes:
            held = holding[reshape.job]
            orders.append(state.reshape(reshape.job, reshape.allocation, held, reshape.why))
        for start in decision.starts:
            orders.append(state.start(start.job, start.allocation))
        for wait in decision.waits:
            state.reasons[wait.job] = wait
        for expected in decision.start_estimates:
            state.start_estimates[expected.job] = expected
        return orders
