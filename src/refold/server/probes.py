"""Pages for monitoring: `/readyz` for load balancers and Kubernetes, `/metrics` for Prometheus."""

from __future__ import annotations

import msgspec

from refold.server.http import Page, Reply
from refold.server.inbox import Inbox
from refold.server.metrics import MEDIA, Metrics


def make_pages(inbox: Inbox, metrics: Metrics) -> dict[str, Page]:
    """Return the pages by path."""

    async def ready() -> Reply:
        problem = _problem(inbox)
        return Reply(503 if problem else 200, msgspec.json.encode({"status": problem or "ready"}))

    async def show_metrics() -> Reply:
        return Reply(200, await metrics.page(), MEDIA)

    return {"/readyz": Page(None, ready), "/metrics": Page("reader", show_metrics)}


def _problem(inbox: Inbox) -> str:
    """Return why no request that changes something is accepted; ''. Paths are not shown: anybody may ask."""
    if inbox.stopping:
        return "the daemon is shutting down"
    return "the journal cannot be written" if inbox.problem else ""
