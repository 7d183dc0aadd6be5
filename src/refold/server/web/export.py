"""The web UI and a recording as one file: it opens from disk, and loads nothing.

Browsers load no modules from disk, so each is a `data:` URL in an import map, under a name that does not depend on
where it is.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from hashlib import sha256

from refold.server.web.files import MEDIA_TYPES, PAGE, RECORDING_MARK, read_files

PREFIX = "refold/"
"""Of the names of modules in the import map."""

_IMPORT = re.compile(r'(\bfrom |\bimport\(|\bimport )"(\.{1,2}/[^"]+)"')
_LINK = re.compile(r'<link rel="(?:modulepreload|stylesheet|icon)"[^>]*>\n')
_SCRIPT = re.compile(r'<script type="module"[^>]*></script>\n')
ICON, START = "icon.svg", f'import "{PREFIX}app.js";'
CONTENT_POLICY = (
    "default-src 'none'; script-src data: {scripts}; style-src {styles}; img-src data:; form-action 'none'; "
    "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def make_page(recording: bytes) -> str:
    """Return the page with a recording, which is JSON."""
    files = read_files()
    imports = {PREFIX + name: _data_url(name, _rename(name, body)) for name, body in files.items() if _is_module(name)}
    style = b"\n".join(body for name, body in files.items() if name.endswith(".css")).decode()
    modules = json.dumps({"imports": imports})
    policy = CONTENT_POLICY.format(scripts=f"{_hash(modules)} {_hash(START)}", styles=_hash(style))
    parts = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<link rel="icon" href="{_data_url(ICON, files[ICON])}">',
        f"<style>{style}</style>",
        f'<script type="importmap">{modules}</script>',
        f'<script type="module">{START}</script>',
        f'<script type="application/json" id="recording">{_escape(recording)}</script>',
    ]
    page = _LINK.sub("", _SCRIPT.sub("", files[PAGE].decode())).replace(RECORDING_MARK, "")
    return page.replace("</head>", "\n".join(parts) + "\n</head>")


def _is_module(name: str) -> bool:
    return name.endswith(".js")


def _rename(name: str, body: bytes) -> bytes:
    """Return a module whose imports do not depend on where it is."""
    folder = posixpath.dirname(name)

    def rename(found: re.Match[str]) -> str:
        return f'{found[1]}"{PREFIX}{posixpath.normpath(posixpath.join(folder, found[2]))}"'

    return _IMPORT.sub(rename, body.decode()).encode()


def _data_url(name: str, body: bytes) -> str:
    media = MEDIA_TYPES[posixpath.splitext(name)[1]].replace(" ", "")
    return f"data:{media};base64,{base64.b64encode(body).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _escape(json_text: bytes) -> str:
    """Return JSON that ends no element: '<' is only in its strings."""
    return json_text.decode().replace("<", "\\u003c")
