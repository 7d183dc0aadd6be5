"""`refold open`: the link, and how it reaches the browser."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from fake_service import FakeServer

TextOf = Callable[..., str]


@pytest.fixture(autouse=True)
def _screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened in the browser."""
    addresses: list[str] = []

    def open_url(url: str) -> bool:
        addresses.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_url)
    return addresses


def test_the_link_is_printed_with_the_address_that_the_client_uses(served: FakeServer, stdout_of: TextOf) -> None:
    assert re.fullmatch(rf"{served.address}/#open=[\w-]{{43}}\n", stdout_of("open", "--print"))


def test_the_code_reaches_the_browser_in_a_private_file_and_not_in_its_arguments(
    served: FakeServer, stdout_of: TextOf, opened: list[str]
) -> None:
    assert stdout_of("open") == f"opened {served.address}/ in the browser\n"
    (address,) = opened
    path = Path(unquote(urlsplit(address).path))
    assert "#" not in address
    assert path.stat().st_mode & 0o777 == 0o600
    assert f'content="0; url={served.address}/#open=' in path.read_text()


def test_over_ssh_nothing_is_opened_and_the_tunnel_is_explained(
    served: FakeServer, invoke: Callable[..., object], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    result = invoke("open")
    assert opened == []
    assert f"{served.address}/#open=" in str(getattr(result, "stdout", ""))
    port = urlsplit(served.address).port
    assert f"ssh -L {port}:127.0.0.1:{port} " in str(getattr(result, "stderr", ""))


def test_a_browser_that_cannot_be_opened_leaves_the_link(
    served: FakeServer, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert stdout_of("open").startswith(f"{served.address}/#open=")
