"""`refold logs`, and the sanitisation of job output for terminals."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_service import FakeServer, FakeService
from hypothesis import given, strategies as st
from typer.testing import Result

from refold.cli.commands import logs
from refold.cli.views import screen
from refold.cli.views.output import Sanitizer
from refold.client.api.queries import Caller, LogsQuery
from refold.client.api.submissions import Submission
from refold.client.api.wire import Logs
from refold.errors import NotFound

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

MANY_LINES = "".join(f"line {number}\n" for number in range(30_000))


class TwoInstances(FakeService):
    """A service whose jobs have two instances that print the same output."""

    async def logs(self, caller: Caller, job: str, query: LogsQuery) -> Logs:
        if query.instance > 1:
            raise NotFound(f"{job} has no instance {query.instance}")
        return await super().logs(caller, job, query)


@pytest.fixture
def served(start_server: Callable[[type[FakeService]], FakeServer]) -> FakeServer:
    """A server with a waiting job."""
    served = start_server(TwoInstances)
    served.call(served.service.add, Submission("train", ["true"], instances=2))
    return served


@pytest.fixture
def service(served: FakeServer) -> FakeService:
    """A service whose job is running and has printed two lines."""
    served.call(served.service.start, "train-1")
    served.call(served.service.write_output, "train-1", "one\ntwo \x1b[2J\n")
    return served.service


def test_output_to_a_pipe_is_unchanged(service: FakeService, stdout_of: TextOf) -> None:
    assert stdout_of("logs", "train") == "one\ntwo \x1b[2J\n"


def test_lines_limits_the_output_to_the_last_lines(served: FakeServer, service: FakeService, stdout_of: TextOf) -> None:
    assert stdout_of("logs", "train", "--lines", "1") == "two \x1b[2J\n"
    assert stdout_of("logs", "train", "-n", "0") == ""
    assert stdout_of("logs", "train", "-n", "7") == "one\ntwo \x1b[2J\n"
    served.call(service.write_output, "train-1", MANY_LINES)
    assert stdout_of("logs", "train", "-n", "20000") == "".join(MANY_LINES.splitlines(keepends=True)[-20_000:])


def test_long_output_is_printed_completely(served: FakeServer, service: FakeService, stdout_of: TextOf) -> None:
    served.call(service.write_output, "train-1", MANY_LINES * 4)
    assert stdout_of("logs", "train") == "one\ntwo \x1b[2J\n" + MANY_LINES * 4


def test_lines_of_all_instances_start_with_the_instance_number(
    served: FakeServer, service: FakeService, stdout_of: TextOf
) -> None:
    served.call(service.write_output, "train-1", "incomplete")
    assert stdout_of("logs", "train", "--all-instances") == (
        "0: one\n0: two \x1b[2J\n1: one\n1: two \x1b[2J\n0: incomplete\n1: incomplete\n"
    )


def test_the_output_as_json(service: FakeService, json_of: JsonOf) -> None:
    assert json_of("logs", "1", "-n", "1") == {
        "job": "1",
        "run": 1,
        "instance": 0,
        "ended": False,
        "text": "two \x1b[2J\n",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-such-job",), "unknown job 'no-such-job'"),
        (("train", "--run", "7"), "train-1 has no run 7; it has had 1 runs"),
        (("train", "--instance", "7"), "train has no instance 7"),
        (("train", "--instance", "0", "--all-instances"), "leave one of them out"),
        (("train", "-f", "--json"), "--json cannot be combined with --follow"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    words: tuple[str, ...], message: str, service: FakeService, error_of: TextOf
) -> None:
    assert message in error_of("logs", *words)


class Script:
    """Replaces `sleep`: each call does the next step on the server."""

    def __init__(self, served: FakeServer, *steps: Callable[[], object]) -> None:
        self._served, self._steps = served, list(steps)

    def __call__(self, seconds: float) -> None:
        if not self._steps:
            raise AssertionError("polled again after the end of the job")
        self._served.call(self._steps.pop(0))


def test_a_job_is_followed_from_before_its_start_to_its_end(
    served: FakeServer, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served.service
    steps = Script(
        served,
        lambda: service.start("train-1"),
        lambda: service.write_output("train-1", "one\n"),
        lambda: service.write_output("train-1", "two\n"),
        lambda: service.end("train-1", "failed", "exit status 3"),
    )
    monkeypatch.setattr(screen, "sleep", steps)
    result = invoke("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert result.stderr.splitlines() == [
        "train-1 has not started yet (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
        "train-1 failed: exit status 3",
    ]


def test_all_instances_are_followed_from_before_the_start(
    served: FakeServer, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served.service
    steps = Script(
        served,
        lambda: service.write_output("train-1", "one\n"),
        lambda: service.start("train-1"),
        lambda: service.end("train-1"),
    )
    monkeypatch.setattr(screen, "sleep", steps)
    result = invoke("logs", "-f", "train", "--all-instances")
    assert (result.exit_code, result.stdout) == (0, "0: one\n1: one\n")
    assert [line.partition(" (")[0] for line in result.stderr.splitlines()] == [
        "train-1 has not started yet",
        "train-1 finished: exit status 0",
    ]


def test_a_job_that_has_not_started_has_no_output(served: FakeServer, stdout_of: TextOf) -> None:
    assert stdout_of("logs", "train", "--all-instances") == ""


def test_following_continues_when_the_daemon_is_back(
    served: FakeServer, service: FakeService, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.client.client import Client
    from refold.errors import NoDaemon

    calls, real = iter(range(100)), Client.read_logs

    def read_logs(self: Client, *arguments: Any, **options: Any) -> Logs:
        if next(calls) in (2, 3):
            raise NoDaemon("no daemon answers")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Client, "read_logs", read_logs)
    monkeypatch.setattr(screen, "sleep", Script(served, *[lambda: None] * 2, lambda: service.end("train-1")))
    result = invoke("logs", "-f", "train")
    assert (result.exit_code, result.stderr) == (0, "train-1 finished: exit status 0\n")


def test_following_ends_if_the_daemon_stays_away(
    service: FakeService, error_of: TextOf, served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.client.client import Client
    from refold.errors import NoDaemon

    calls, real = iter(range(1000)), Client.read_logs

    def read_logs(self: Client, *arguments: Any, **options: Any) -> Logs:
        if next(calls) > 2:
            raise NoDaemon("no daemon answers")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Client, "read_logs", read_logs)
    monkeypatch.setattr(screen, "sleep", lambda _: None)
    monkeypatch.setattr(logs, "MAX_FAILED_POLLS", 5)
    assert error_of("logs", "-f", "train", "-n", "0") == "error: no daemon answers\n"


# On a terminal.


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
def test_colours_are_kept_and_other_control_sequences_removed(text: str, shown: str) -> None:
    assert Sanitizer().clean(text) == shown


def test_a_control_sequence_may_be_split_between_chunks() -> None:
    sanitizer = Sanitizer()
    assert [sanitizer.clean(chunk) for chunk in ("a\x1b", "[3", "1mb\x1b[", "2Jc")] == ["a", "", "\x1b[31mb", "c"]
    assert sanitizer.end == "\x1b[0m"


CONTROL_TEXT = st.text(st.sampled_from("\x1b[]0123;mHJPq\\\x07\x9b\x00 ab\n\r\t?"), max_size=40)


@given(st.lists(CONTROL_TEXT, max_size=6))
def test_no_other_control_sequence_remains_for_any_chunks(chunks: list[str]) -> None:
    sanitizer = Sanitizer()
    shown = "".join(sanitizer.clean(chunk) for chunk in chunks)
    assert re.fullmatch(r"(?:[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*m)*", shown)
