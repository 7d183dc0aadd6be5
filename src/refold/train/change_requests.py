"""The requests to change the plan of a run: the one that is carried out, and the next one."""

from __future__ import annotations

from refold.model import ChangeAnswer, ChangeRequest, ChangeWay, Seconds
from refold.train.actions import Answer
from refold.train.messages import Entered


class ChangeRequests:
    """Keeps the requests until they are answered. The newest one that is not carried out yet supersedes the others."""

    def __init__(self) -> None:
        self.current: ChangeRequest | None = None
        self.next: ChangeRequest | None = None

    def add(self, request: ChangeRequest) -> list[Answer]:
        """Add a request; return the answer to the one that it supersedes."""
        superseded, self.next = self.next, request
        return [refusal(superseded, f"superseded by run {request.run}")] if superseded else []

    def begin(self) -> ChangeRequest:
        """Return the next request, which is now carried out."""
        assert self.next is not None
        assert self.current is None
        request = self.next
        self.current, self.next = request, None
        return request

    def complete(self, entered: Entered, earlier: dict[str, Seconds], way: ChangeWay) -> Answer | None:
        """Return the answer to the current request, if there is one; `earlier`: phases before those of new ranks."""
        if self.current is None:
            return None
        run, self.current = self.current.run, None
        return Answer(ChangeAnswer(run, entered.plan, entered.step, earlier | entered.phases, entered.why, way=way))

    def refuse_current(self, why: str) -> list[Answer]:
        """Give up the current request."""
        refused, self.current = self.current, None
        return [refusal(refused, why)] if refused else []

    def refuse_next(self, why: str) -> list[Answer]:
        """Give up the next request."""
        refused, self.next = self.next, None
        return [refusal(refused, why)] if refused else []


def refusal(request: ChangeRequest, why: str) -> Answer:
    """Return the answer to a request that is not carried out."""
    return Answer(ChangeAnswer(request.run, error=why))
