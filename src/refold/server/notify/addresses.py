"""Notification addresses in job submissions (Apprise URLs): which ones the daemon accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

from refold.errors import BadValue

MAX_ADDRESS_CHARS = 1024

SAFE_SCHEMES = frozenset(
    [
        "discord",
        "gchat",
        "gotify",
        "gotifys",
        "json",
        "jsons",
        "mailto",
        "mailtos",
        "matrix",
        "matrixs",
        "mmost",
        "mmosts",
        "ntfy",
        "ntfys",
        "opsgenie",
        "pagerduty",
        "pbul",
        "pover",
        "rocket",
        "rockets",
        "signal",
        "signals",
        "slack",
        "tgram",
        "twilio",
        "webex",
        "workflow",
        "workflows",
        "wxteams",
        "zulip",
    ]
)
"""Schemes that tenants may use: network services only, and none that runs programs, reads files or displays messages on
this machine.

Hosts are checked only if the owner limits them (`notify.allow`): a job can reach this machine's ports and network
itself, so a member token usually implies that trust.
"""

SAFE_PARAMETERS = frozenset(
    [
        "auth",
        "avatar",
        "bcc",
        "cc",
        "channel",
        "click",
        "email",
        "format",
        "from",
        "image",
        "method",
        "mode",
        "msgtype",
        "name",
        "pass",
        "password",
        "priority",
        "smtp",
        "tags",
        "to",
        "token",
        "topic",
        "user",
        "verify",
        "version",
    ]
)
"""URL parameters that tenants may use: none that names a file or extends timeouts or retries."""

NAMES_A_HOST = "smtp"
"""The parameter that names a host beside that of the address."""

_TARGET = re.compile(r"(?:[^@/?#\\]*@)?([\w.-]+)(?::\d+)?(?:[/?].*)?", re.ASCII)
"""User and password, host, port, path: nothing in which two programs could see different hosts."""


def check_address(address: str, allowed: Sequence[str] | None = None) -> None:
    """Reject an address that a tenant may not use.

    `allowed`: schemes ('slack') and hosts ('ntfys://ntfy.sh', 'jsons://*.example.org') to which the owner limits them.
    """
    scheme, _, rest = address.partition("://")
    # Apprise would split a text with commas into several addresses.
    if not rest or "://" in rest or len(address) > MAX_ADDRESS_CHARS or re.search(r"[\s\x00-\x1f]", address):
        raise BadValue("notify: invalid address, expected one such as ntfys://ntfy.sh/my-jobs")
    if scheme.lower() not in SAFE_SCHEMES:
        raise BadValue(
            f"notify: scheme {scheme[:32]!r} is not allowed, expected one of {', '.join(sorted(SAFE_SCHEMES))}"
        )
    for parameter in re.split("[?&;]", rest)[1:]:
        name = unquote(parameter.partition("=")[0]).strip().lower()
        headers = scheme.lower().startswith("json") and name.startswith(("+", "-", ":"))
        if (name not in SAFE_PARAMETERS and not headers) or (name == NAMES_A_HOST and allowed is not None):
            raise BadValue(f"notify: parameter {name[:32]!r} is not allowed in an address")
    if allowed is not None and not _is_allowed(scheme.lower(), rest, allowed):
        raise BadValue(f"notify: the owner allows only {', '.join(allowed) or 'no addresses'}")


def _is_allowed(scheme: str, rest: str, allowed: Sequence[str]) -> bool:
    if scheme in allowed:
        return True
    target = _TARGET.fullmatch(rest)
    return target is not None and any(fnmatchcase(f"{scheme}://{target[1].lower()}", pattern) for pattern in allowed)


def filter_safe(addresses: Iterable[str], allowed: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the allowed addresses. Stored jobs may have addresses that were accepted earlier."""
    for address in addresses:
        try:
            check_address(address, allowed)
        except BadValue:
            continue
        yield address


def redact(address: str) -> str:
    """Return an address for logs: everything after the scheme may be secret."""
    return f"{address.partition('://')[0]}://…"
