"""The web UI as one file: its modules find each other by name, and its policy allows its own scripts only."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256

from refold.server.web.export import make_page
from refold.server.web.files import read_files

RECORDING = b'{"text": "</script><b>"}'


def elements(page: str, opening: str, closing: str) -> list[str]:
    """Return the contents of the elements of a kind."""
    return re.findall(f"{re.escape(opening)}(.*?){closing}", page, re.DOTALL)


def modules(page: str) -> dict[str, str]:
    """Return the modules of the import map by name."""
    (text,) = elements(page, '<script type="importmap">', "</script>")
    urls = json.loads(text)["imports"]
    assert all(url.startswith("data:text/javascript") for url in urls.values())
    return {name: base64.b64decode(url.partition(",")[2]).decode() for name, url in urls.items()}


def test_every_module_of_the_web_ui_is_in_the_import_map() -> None:
    scripts = {f"refold/{name}" for name in read_files() if name.endswith(".js")}
    assert len(scripts) > 10
    assert set(modules(make_page(RECORDING))) == scripts


def test_every_import_names_a_module_of_the_map() -> None:
    found = modules(make_page(RECORDING))
    imported = [
        name for body in found.values() for name in re.findall(r'(?:\bfrom |\bimport\(|\bimport )"([^"]+)"', body)
    ]
    assert len(imported) > 10
    assert sorted(set(imported) - set(found)) == []


def test_the_content_policy_allows_the_scripts_and_the_style_of_the_page_by_their_hashes() -> None:
    page = make_page(RECORDING)
    (policy,) = elements(page, '<meta http-equiv="Content-Security-Policy" content="', '">')
    scripts = [
        *elements(page, '<script type="importmap">', "</script>"),
        *elements(page, '<script type="module">', "</script>"),
    ]
    hashes = [
        f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in (*scripts, *elements(page, "<style>", "</style>"))
    ]
    assert len(hashes) == 3
    assert re.findall(r"'sha256-[^']*'", policy) == hashes
    assert "default-src 'none'" in policy


def test_a_recording_cannot_end_its_element() -> None:
    (text,) = elements(make_page(RECORDING), '<script type="application/json" id="recording">', "</script>")
    assert json.loads(text) == json.loads(RECORDING)
    assert "<" not in text
