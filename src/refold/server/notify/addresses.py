"""Addresses that tenants give, as apprise writes them: which of them the daemon is willing to write to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from refold.errors import BadValue

LONGEST_ADDRESS = 1024

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
"""What tenants may name: services that are written to over the network, and nothing that starts programs, reads files
or shows something on this machine.

Which host it is that they name is not looked at. Who may submit jobs can send anything to this machine's own ports and
to its network from a job as well; whoever is not trusted with that must not have a member's token.
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
"""What such an address may say beside: nothing that names a file, or makes us wait or try for longer."""


def check_address(address: str) -> None:
    """Refuse an address that a tenant should not be able to name."""
    scheme, _, rest = address.partition("://")
    # Several addresses in one text, with commas between, would be several for apprise, too.
    if not rest or "://" in rest or len(address) > LONGEST_ADDRESS or re.search(r"[\s\x00-\x1f]", address):
        raise BadValue("notify has an address that is not one such as ntfys://ntfy.sh/my-jobs")
    if scheme.lower() not in SAFE_SCHEMES:
        raise BadValue(f"notify: {scheme[:32]!r} is not allowed, expected one of {', '.join(sorted(SAFE_SCHEMES))}")
    for parameter in re.split("[?&;]", rest)[1:]:
        name = unquote(parameter.partition("=")[0]).strip().lower()
        headers = scheme.lower().startswith("json") and name.startswith(("+", "-", ":"))
        if name not in SAFE_PARAMETERS and not headers:
            raise BadValue(f"notify: the parameter {name[:32]!r} of an address is not allowed")


def safe_ones(addresses: Iterable[str]) -> Iterator[str]:
    """Those that would not be refused: what was accepted once may have been so by other rules."""
    for address in addresses:
        try:
            check_address(address)
        except BadValue:
            continue
        yield address


def redacted(address: str) -> str:
    """An address for people to read: the rest of it may be a secret."""
    return f"{address.partition('://')[0]}://…"
