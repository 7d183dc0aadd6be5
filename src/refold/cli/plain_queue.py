"""`refold queue` with its usual options, without typer, whose import takes a third of the time of the command.

Everything else is left to typer: other options and commands, --help, a journal, and mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

FLAGS = {"--start": "start", "--all": "show_all", "--json": "as_json"}
VALUES = {"--tenant": "tenant", "--user": "user", "--limit": "limit"}
LIMIT = re.compile(r"[1-9][0-9]{0,8}")


class QueueRequest(NamedTuple):
    """The options of `refold queue`."""

    start: bool = False
    show_all: bool = False
    as_json: bool = False
    tenant: str = ""
    user: str = ""
    limit: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the limit, if there is one, is a number that is not contradicted by --all."""
        is_number = LIMIT.fullmatch(self.limit) is not None
        return not self.limit or (is_number and not self.show_all)


def parse_queue_words(words: Sequence[str]) -> QueueRequest | None:
    """Return the options of `refold queue`; None if typer has to parse the command line."""
    if not words or words[0] != "queue":
        return None
    options: dict[str, Any] = {}
    rest = iter(words[1:])
    for word in rest:
        if word in FLAGS:
            options[FLAGS[word]] = True
        elif word in VALUES and (value := next(rest, "")) and not value.startswith("-"):
            options[VALUES[word]] = value
        else:
            return None
    request = QueueRequest(**options)
    return request if request.is_valid else None


def print_queue(request: QueueRequest) -> None:
    from refold.cli.daemon_client import make_client
    from refold.cli.inputs import ForecastOptions
    from refold.cli.views import live_queue

    limit = None if request.show_all else int(request.limit or live_queue.DEFAULT_LIMIT)
    options = live_queue.LiveQueueOptions(ForecastOptions(request.start), request.tenant, request.user, limit)
    live_queue.print_live_queue(make_client(), options, request.as_json)
