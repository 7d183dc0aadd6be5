"""`refold logs`, as it is typed, and what of a program's output a terminal gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_service import FakeService, Served
from hypothesis import given, strategies as st
from typer.testing import Result

from refold.api.roles import Caller
from refold.api.wire import Logs, Submission
from refold.cli.commands import logs
from refold.cli.views import screen
from refold.cli.views.sanitize import Sanitizer
from refold.errors import NotFound

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]

MANY = "".join(f"line {number}\n" for number in range(30_000))


class TwoInstances(FakeService):
    """Its jobs have two instances, which print the same."""

    async def logs(self, caller: Caller, job: str, *, run: int | None, instance: int, offset: int, limit: int) -> Logs:
        if instance > 1:
            raise NotFound(f"{job} has no instance {instance}")
        return await super().logs(caller, job, run=run, instance=instance, offset=offset, limit=limit)


@pytest.fixture
def served(serving: Callable[[type[FakeService]], Served]) -> Served:
    """A job that waits."""
    served = serving(TwoInstances)
    served.do(served.service.add, Submission("train", ["true"], instances=2))
    return served


@pytest.fixture
def service(served: Served) -> FakeService:
    """It runs, and has printed two lines."""
    served.do(served.service.start, "train-1")
    served.do(served.service.say, "train-1", "one\ntwo \x1b[2J\n")
    return served.service


def test_in_a_pipe_the_output_is_as_it_was_printed(service: FakeService, said: Said) -> None:
    assert said("logs", "train") == "one\ntwo \x1b[2J\n"


def test_only_the_last_lines_where_that_was_asked_for(served: Served, service: FakeService, said: Said) -> None:
    assert said("logs", "train", "--lines", "1") == "two \x1b[2J\n"
    assert said("logs", "train", "-n", "0") == ""
    assert said("logs", "train", "-n", "7") == "one\ntwo \x1b[2J\n"
    served.do(service.say, "train-1", MANY)
    assert said("logs", "train", "-n", "20000") == "".join(MANY.splitlines(keepends=True)[-20_000:])


def test_output_of_any_length_is_printed_wholly(served: Served, service: FakeService, said: Said) -> None:
    served.do(service.say, "train-1", MANY * 4)
    assert said("logs", "train") == "one\ntwo \x1b[2J\n" + MANY * 4


def test_every_instance_is_told_apart(served: Served, service: FakeService, said: Said) -> None:
    served.do(service.say, "train-1", "begun")
    assert said("logs", "train", "--all-instances") == (
        "0: one\n0: two \x1b[2J\n1: one\n1: two \x1b[2J\n0: begun\n1: begun\n"
    )


def test_the_output_for_programs(service: FakeService, told: Told) -> None:
    assert told("logs", "1", "-n", "1") == {
        "job": "1",
        "run": 1,
        "instance": 0,
        "over": False,
        "text": "two \x1b[2J\n",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nobody",), "no job 'nobody'"),
        (("train", "--run", "7"), "train-1 has had 1 runs, and no run 7"),
        (("train", "--instance", "7"), "train has no instance 7"),
        (("train", "--instance", "0", "--all-instances"), "leave one out"),
        (("train", "-f", "--json"), "leave --follow"),
    ],
)
def test_what_there_is_not_is_refused(words: tuple[str, ...], told: str, service: FakeService, refuses: Said) -> None:
    assert told in refuses("logs", *words)


class Script:
    """What happens at each look, instead of time passing."""

    def __init__(self, served: Served, *steps: Callable[[], object]) -> None:
        self._served, self._steps = served, list(steps)

    def __call__(self, seconds: float) -> None:
        if not self._steps:
            raise AssertionError("it is over, and somebody looks again")
        self._served.do(self._steps.pop(0))


def test_following_goes_from_before_the_start_to_the_end(
    served: Served, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served.service
    steps = Script(
        served,
        lambda: service.start("train-1"),
        lambda: service.say("train-1", "one\n"),
        lambda: service.say("train-1", "two\n"),
        lambda: service.end("train-1", "failed", "exit status 3"),
    )
    monkeypatch.setattr(screen, "sleep", steps)
    result = typed("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert result.stderr.splitlines() == [
        "train-1 has not started yet (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
        "train-1 failed: exit status 3",
    ]


def test_all_instances_are_followed_from_before_the_start(
    served: Served, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served.service
    steps = Script(
        served,
        lambda: service.say("train-1", "one\n"),
        lambda: service.start("train-1"),
        lambda: service.end("train-1"),
    )
    monkeypatch.setattr(screen, "sleep", steps)
    result = typed("logs", "-f", "train", "--all-instances")
    assert (result.exit_code, result.stdout) == (0, "0: one\n1: one\n")
    assert [line.partition(" (")[0] for line in result.stderr.splitlines()] == [
        "train-1 has not started yet",
        "train-1 finished: exit status 0",
    ]


def test_of_a_job_that_has_not_started_there_is_nothing_yet(served: Served, said: Said) -> None:
    assert said("logs", "train", "--all-instances") == ""


def test_a_daemon_that_comes_back_is_gone_on_with(
    served: Served, service: FakeService, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.client.client import Client
    from refold.errors import NoDaemon

    asks, real = iter(range(100)), Client.piece_of_logs

    def piece(self: Client, *words: Any, **asked: Any) -> Logs:
        if next(asks) in (2, 3):
            raise NoDaemon("no daemon answers")
        return real(self, *words, **asked)

    monkeypatch.setattr(Client, "piece_of_logs", piece)
    monkeypatch.setattr(screen, "sleep", Script(served, *[lambda: None] * 2, lambda: service.end("train-1")))
    result = typed("logs", "-f", "train")
    assert (result.exit_code, result.stderr) == (0, "train-1 finished: exit status 0\n")


def test_a_daemon_that_does_not_come_back_is_given_up(
    service: FakeService, refuses: Said, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.client.client import Client
    from refold.errors import NoDaemon

    asks, real = iter(range(1000)), Client.piece_of_logs

    def piece(self: Client, *words: Any, **asked: Any) -> Logs:
        if next(asks) > 2:
            raise NoDaemon("no daemon answers")
        return real(self, *words, **asked)

    monkeypatch.setattr(Client, "piece_of_logs", piece)
    monkeypatch.setattr(screen, "sleep", lambda _: None)
    monkeypatch.setattr(logs, "MOST_LOOKS_IN_VAIN", 5)
    assert refuses("logs", "-f", "train", "-n", "0") == "error: no daemon answers\n"


# On a terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;5;12mblue", "\x1b[38;5;12mblue"),
        ("a\x1b[2Jb\x1b[10;10Hc\x1b[6nd", "abcd"),
        ("a\x1b]0;title\x07b\x1b]52;c;cm0=\x1b\\c", "abc"),
        ("a\x1bPx\x1b\\b\x1bcc\x1b(0d", "abcd"),
        ("bell\x07 null\x00 back\x08 c1\x9b2J\u202e", "bell null back c12J"),
        ("grüße ✓ 漢字", "grüße ✓ 漢字"),
    ],
)
def test_colours_are_kept_and_what_would_do_more_is_left_out(text: str, shown: str) -> None:
    assert Sanitizer().of(text) == shown


def test_what_is_begun_in_one_piece_and_ends_in_the_next_is_one_thing() -> None:
    harmless = Sanitizer()
    assert [harmless.of(piece) for piece in ("a\x1b", "[3", "1mb\x1b[", "2Jc")] == ["a", "", "\x1b[31mb", "c"]
    assert harmless.end == "\x1b[0m"


ODD = st.text(st.sampled_from("\x1b[]0123;mHJPq\\\x07\x9b\x00 ab\n\r\t?"), max_size=40)


@given(st.lists(ODD, max_size=6))
def test_nothing_harmful_is_left_however_it_is_cut(pieces: list[str]) -> None:
    harmless = Sanitizer()
    shown = "".join(harmless.of(piece) for piece in pieces)
    assert re.fullmatch(r"(?:[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*m)*", shown)
