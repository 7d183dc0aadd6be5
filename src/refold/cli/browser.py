"""Open a link with a secret in the browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from refold.cli.views import print_line, print_notes

REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>Refold</title><meta http-equiv="refresh" content="0; url={url}">\n'
)
"""A page that leads to the link: the arguments of a browser are visible to other users of the machine."""

REDIRECT_FILE = "open.html"


def open_or_print(url: str, print_only: bool) -> None:
    """Open a link in the browser; print it if that is wanted, or if no browser can be shown here."""
    if print_only or not has_display() or not _open_browser(url):
        print_line(url)
        _print_tunnel_note(url)


def has_display() -> bool:
    """Whether a browser can be shown here."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(url: str) -> bool:
    import webbrowser

    path = _write_redirect(url)
    if path is None or not webbrowser.open(path.as_uri()):
        return False
    print_line(f"opened {url.partition('#')[0]} in the browser")
    return True


def _write_redirect(url: str) -> Path | None:
    """Write the page that leads to the link, readable only by this user; None if that is not possible."""
    from contextlib import suppress
    from html import escape

    from refold.client import state_folder

    path = state_folder() / REDIRECT_FILE
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(REDIRECT.format(url=escape(url, quote=True)))
        return path
    return None


def _print_tunnel_note(url: str) -> None:
    parts = urlsplit(url)
    if os.environ.get("SSH_CONNECTION") and parts.hostname in ("127.0.0.1", "::1") and parts.port:
        import socket

        tunnel = f"ssh -L {parts.port}:{parts.netloc} {socket.gethostname()}"
        print_notes([f"the link is for this machine; to open it on yours, first run there: {tunnel}"])
