"""`refold queue` is run without typer if its options are the usual ones, with the same result."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from fake_service import FakeServer

from refold.cli.app import main
from refold.cli.plain_queue import QueueRequest, parse_queue_words
from refold.client.api import Submission

TextOf = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("queue", QueueRequest()),
        ("queue --start --json", QueueRequest(start=True, as_json=True)),
        ("queue --tenant vision --user ann --all", QueueRequest(tenant="vision", user="ann", show_all=True)),
        ("queue --tenant a --tenant b --limit 10", QueueRequest(tenant="b", limit="10")),
    ],
)
def test_the_usual_options_are_parsed_without_typer(words: str, request_: QueueRequest) -> None:
    assert parse_queue_words(words.split()) == request_


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nodes",
        "queue --help",
        "queue --watch",
        "queue journal.jsonl",
        "queue --futures 5",
        "queue --tenant",
        "queue --tenant --all",
        "queue --tenant=vision",
        "queue --limit 0",
        "queue --limit ten",
        "queue --limit \u0663",
        f"queue --limit {'9' * 5000}",
        "queue --limit 5 --all",
        "queue --strat",
        "queue --",
        "--version queue",
    ],
)
def test_everything_else_is_left_to_typer(words: str) -> None:
    assert parse_queue_words(words.split()) is None


@pytest.mark.parametrize("words", ["", "--json", "--user ann", "--limit 1", "--limit 1 --json", "--all --tenant x"])
def test_the_output_is_that_of_the_typer_command(
    words: str,
    served: FakeServer,
    stdout_of: TextOf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for user in ("ann", "bob"):
        served.call(served.service.add, Submission("train", ["true"], gpus=2), "vision", user)
    expected = stdout_of("queue", *words.split())
    monkeypatch.setattr(sys, "argv", ["refold", "queue", *words.split()])
    with pytest.raises(SystemExit) as exited:
        main()
    assert (exited.value.code, capsys.readouterr().out) == (0, expected)


def test_errors_are_one_line(error_of: TextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("REFOLD_TOKEN", "rf_x")
    assert "127.0.0.1:1" in error_of("queue", "--all")
