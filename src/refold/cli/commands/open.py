"""`refold open`: open the web UI, signed in."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from refold.cli import make_client, open_or_print


def open_web_ui(
    print_only: Annotated[bool, typer.Option("--print", help="Print the link instead of opening a browser.")] = False,
) -> None:
    """Open the web UI in a browser, signed in as you.

    The link works once, within five minutes. Without a display, as in an SSH session, it is printed.

    Examples: refold open · refold open --print
    """
    client = make_client()
    link = client.sign_in_link()
    open_or_print(_reachable_url(link.url, client.address), print_only)


def _reachable_url(url: str, address: str) -> str:
    """Return the link for the address by which this command has reached the daemon, which may be that of a proxy."""
    if not address.startswith("http"):
        return url
    return f"{address}/#{urlsplit(url).fragment}"
