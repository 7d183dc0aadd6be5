"""The HTTP server of the daemon."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import uvicorn

from refold.server.network.connections import ConnectionTable
from refold.server.network.http_protocol import LimitedProtocol
from refold.server.network.limits import ConnectionLimits
from refold.server.network.turnstile import Turnstile

GRACEFUL_SHUTDOWN_SECONDS = 3


def make_http_server(app: Any, limits: ConnectionLimits, table: ConnectionTable) -> uvicorn.Server:
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # its warnings are about requests: anybody can cause them
    protocol = cast(Any, partial(LimitedProtocol, table, limits))
    config = uvicorn.Config(
        Turnstile(app),
        http=protocol,
        lifespan="off",
        access_log=False,
        log_config=None,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=cast(int, limits.idle_seconds),  # of a timer, which may be a fraction
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        backlog=limits.backlog,
    )
    return uvicorn.Server(config)
