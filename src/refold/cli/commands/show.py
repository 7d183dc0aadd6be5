"""`refold open` and `show`: the web UI of the daemon, and of a recorded journal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from refold.cli import argument, make_client, open_or_print, option, switch
from refold.cli.views import AsJson, format_clock, plural, print_json, print_line, progress
from refold.errors import BadFile, MissingExtra

if TYPE_CHECKING:
    from refold.server import Recording


def show(
    journal: Annotated[Path, argument("JOURNAL", "Journal file, plain or .gz.")],
    port: Annotated[
        int, option("PORT", "Port of 127.0.0.1 (default: a free one).", min=0, max=65535, show_default=False)
    ] = 0,
    no_browser: Annotated[bool, switch("--no-browser", "Print the link instead of opening a browser.")] = False,
    export: Annotated[
        Path | None, option("FILE", "Write one HTML file that opens without this command, and end.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a recorded journal in the web UI, without a daemon: the cluster, the queue and each job at any time.

    A journal is what refold simulate and refold run write with --out, or a snapshot. Only people with the link can
    open the page, and nothing can be changed. Ends with Ctrl-C.

    Examples: refold show out/journal.jsonl · refold show out/journal.jsonl --export cluster.html
    """
    from refold.server import read_recording

    with progress(f"reading {journal.name}"):
        recording = read_recording(journal)
    if export is None:
        _serve(recording, port, no_browser, as_json)
    else:
        _export(recording, export, as_json)


def _summary(recording: Recording) -> dict[str, Any]:
    span = {"since": recording.since, "until": recording.until}
    counts = {"jobs": len(recording.jobs), "entries": recording.entries}
    return {"journal": recording.name, "policy": recording.policy, **counts, **span}


def _print_summary(recording: Recording) -> None:
    span = f"{format_clock(recording.since)} to {format_clock(recording.until)}"
    print_line(f"{recording.name}: {plural(len(recording.jobs), 'job')}, policy {recording.policy}, {span}")


def _export(recording: Recording, path: Path, as_json: bool) -> None:
    from refold.server.web import make_page

    try:
        path.write_text(make_page(recording.encode()))
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
    if as_json:
        print_json({**_summary(recording), "page": str(path)})
        return
    _print_summary(recording)
    print_line(f"page: {path}")


def _serve(recording: Recording, port: int, no_browser: bool, as_json: bool) -> None:
    import msgspec

    try:
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("refold show", "serve") from None
    from refold.server import RecordingServer

    server = RecordingServer(recording.encode(), port)
    if as_json:
        link = msgspec.json.encode({**_summary(recording), "url": server.make_link()})
        print_line(link.decode())  # one line, to be read while the page is served
    else:
        _print_summary(recording)
        open_or_print(server.make_link(), no_browser)
        print_line("serving until Ctrl-C")
    sys.stdout.flush()
    server.run()


def open_web_ui(
    print_only: Annotated[bool, switch("--print", "Print the link instead of opening a browser.")] = False,
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
