"""The files of the web UI: headers, caching, and rules that keep them safe and translatable."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from api_requests import Answer, request
from fake_service import make_app

from refold.server.web.files import FOLDER, WebFiles, read_files

APP = make_app()
FILES = read_files()
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
MAX_TRANSFERRED_BYTES = 300_000


def get(path: str, **headers: str) -> Answer:
    return request(
        APP, "GET", path, token=None, headers=[(name.replace("_", "-"), text) for name, text in headers.items()]
    )


def paths() -> list[str]:
    return ["/", *(path for path in WebFiles()._files if path != "/")]


def test_the_page_is_checked_at_each_visit_and_everything_else_is_kept() -> None:
    assert get("/").headers["cache-control"] == "no-cache"
    others = {get(path).headers["cache-control"] for path in paths()[1:]}
    assert others == {"public, max-age=31536000, immutable"}


def test_no_inline_script_and_no_other_site_is_allowed() -> None:
    answer = get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")


def test_a_browser_that_has_a_file_does_not_get_it_again() -> None:
    first = get("/")
    again = get("/", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert get("/", if_none_match='"other"').status == 200


def test_files_are_sent_compressed() -> None:
    answer = get(paths()[1], accept_encoding="gzip")
    assert gzip.decompress(answer.body) == get(paths()[1]).body


def test_all_files_together_are_small() -> None:
    assert sum(len(get(path, accept_encoding="gzip").body) for path in paths()) < MAX_TRANSFERRED_BYTES


def test_files_outside_the_folder_are_not_served() -> None:
    for path in ("/web/../files.py", "/web/x/app.js", "/style.css", "/web/"):
        assert get(path).status == 404


def test_another_version_of_a_file_has_another_path(tmp_path: Path) -> None:
    for name, body in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    before = set(WebFiles(tmp_path)._files) - {"/"}
    (tmp_path / "format.js").write_bytes(b"// changed\n")
    assert before.isdisjoint(WebFiles(tmp_path)._files)


def test_the_host_of_a_page_is_checked() -> None:
    assert request(APP, "GET", "/", token=None, host="evil.example").status == 403


def test_the_page_names_only_files_that_exist() -> None:
    page = get("/").body.decode()
    named = re.findall(r'(?:href|src)="(web/[^"]+)"', page)
    assert len(named) > 5
    assert [name for name in named if get(f"/{name}").status != 200] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_only_files_that_exist(name: str) -> None:
    for imported in re.findall(r'(?:from|import\()\s*"([^"]+)"', FILES[name].decode()):
        assert (FOLDER / name).parent.joinpath(imported).resolve().is_file(), imported


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_builds_no_markup_from_strings_and_says_what_it_is_for(name: str) -> None:
    text = FILES[name].decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:", text
    )
    assert text.startswith("/** ")
    assert len(text.splitlines()) < 400


def test_the_report_has_the_colours_of_the_web_ui() -> None:
    report = (FOLDER.parents[2] / "simulator" / "results" / "templates" / "report.css.j2").read_text()
    shared = re.search(r"As in the web UI.*?\n\n", report, re.DOTALL)
    assert shared is not None
    web = dict(re.findall(r"--([\w-]+): ([^;]+);", FILES["style.css"].decode()))
    found = dict(re.findall(r"--([\w-]+): ([^;]+);", shared[0]))
    assert len(found) >= 12
    assert found == {name: web[name] for name in found}
