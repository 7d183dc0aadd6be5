"""The files of the web UI over HTTP: compressed once, cached by browsers, and locked down by headers.

The page itself is checked at each visit. All other files are below a path with a hash of their contents, so that
browsers keep them, and never mix the files of two versions.
"""

from __future__ import annotations

import gzip
from functools import cached_property
from hashlib import sha256
from pathlib import Path, PurePosixPath

import msgspec

from refold.server.http import Reply, Scope, accepts_gzip, header

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
VERSION_MARK = "{version}"
"""In the page: the hash of all files."""

RECORDING_MARK = "{recording}"
"""In the page: the path of the recording that it shows; '' if it shows a daemon."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing but the daemon's own files: no inline script, no markup from strings, no other site."""

SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
CHECK_AGAIN, KEEP = "no-cache", "public, max-age=31536000, immutable"


class WebFile(msgspec.Struct, frozen=True):
    """A file: as it is, compressed, and how it is sent."""

    body: bytes
    compressed: bytes
    media: str
    etag: str
    cache: str

    def reply(self, scope: Scope) -> Reply:
        """Return the answer to a request; without a body if the browser has the file."""
        headers = {**SECURITY_HEADERS, "cache-control": self.cache, "etag": self.etag, "vary": "accept-encoding"}
        if self.etag in (header(scope, b"if-none-match") or ""):
            return Reply(304, b"", self.media, headers)
        if accepts_gzip(scope):
            return Reply(200, self.compressed, self.media, headers | {"content-encoding": "gzip"})
        return Reply(200, self.body, self.media, headers)


class WebFiles:
    """All files of a folder by path. They are read at the first request. `recording`: path of what the page shows."""

    def __init__(self, folder: Path = FOLDER, recording: str = "") -> None:
        self._folder = folder
        self._recording = recording

    def find(self, scope: Scope) -> Reply | None:
        """Return the answer to a GET request; None if there is no such file."""
        file = self._files.get(scope["path"])
        return None if file is None else file.reply(scope)

    @cached_property
    def _files(self) -> dict[str, WebFile]:
        contents = read_files(self._folder)
        version = sha256(b"".join(name.encode() + b"\0" + body for name, body in contents.items())).hexdigest()[:16]
        page = contents.pop(PAGE).replace(VERSION_MARK.encode(), version.encode())
        page = page.replace(RECORDING_MARK.encode(), self._recording.encode())
        others = {f"/web/{version}/{name}": _make_file(name, body, KEEP) for name, body in contents.items()}
        return {"/": _make_file(PAGE, page, CHECK_AGAIN), **others}


def read_files(folder: Path = FOLDER) -> dict[str, bytes]:
    """Return the contents of all files by their path below the folder, in order."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in MEDIA_TYPES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _make_file(name: str, body: bytes, cache: str) -> WebFile:
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    return WebFile(body, gzip.compress(body, 9, mtime=0), MEDIA_TYPES[PurePosixPath(name).suffix], etag, cache)
