"""Host names and addresses that a request to the daemon may name (protection against DNS rebinding)."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address

from refold.client import LOOPBACK_OF_WILDCARD

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class AllowedHosts:
    """The values that a request's `Host` header may have: the names and addresses of this daemon.

    `host` is the configured listen address, `bound` the address it resolved to, `extra_names` further names. If the
    daemon is bound to a wildcard address, every numeric address is allowed: DNS rebinding needs a name.
    """

    def __init__(self, host: str = "127.0.0.1", bound: str = "", extra_names: Iterable[str] = ()) -> None:
        bound = bound or host
        known = [*LOOPBACK, host, bound, *extra_names]
        if not _is_loopback(bound):
            known += [socket.gethostname(), socket.getfqdn()]
        self._known = {name.lower().strip("[]").rstrip(".") for name in known if name}
        self._any_address = bound in LOOPBACK_OF_WILDCARD

    def __contains__(self, name: str) -> bool:
        return name.lower().rstrip(".") in self._known or (self._any_address and _is_address(name))


def _is_loopback(address: str) -> bool:
    return address in LOOPBACK or (_is_address(address) and ip_address(address).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
