"""Notifications: recipients, rate limits, retries, and that sending never blocks the caller."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue, RefoldError
from refold.server.config.reader import read_config
from refold.server.config.settings import NotifyConfig
from refold.server.notify.addresses import check_address, redact
from refold.server.notify.notifier import (
    MAX_QUEUED,
    PAUSE_SECONDS,
    RETRY_DELAYS,
    Counts,
    Message,
    Notifier,
    RateLimiter,
    _Outbox,
    send_with_apprise,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""Apprise plug-ins use deprecated features."""

TIMEOUT_SECONDS = 60.0


def message(title: str = "train finished", kind: Any = "finished", user: str = "ann") -> Message:
    return Message(kind, title, "on 2 GPUs, after 3 h", job="job-1", user=user, tenant="vision")


class WebhookServer:
    """A web server on loopback that records requests; it can be set to reject them."""

    def __init__(self) -> None:
        webhook = self
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.location = ""
        self.answered = threading.Semaphore(0)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                webhook.received.append(body)
                self.send_response(webhook.status)
                if webhook.location:
                    self.send_header("Location", webhook.location)
                self.end_headers()
                webhook.answered.release()

            def do_GET(self) -> None:
                webhook.received.append({})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"json://127.0.0.1:{self.server.server_address[1]}/"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    webhook = WebhookServer()
    yield webhook
    webhook.close()


def test_a_message_is_delivered(webhook: WebhookServer) -> None:
    notifier = Notifier(NotifyConfig(urls={"finished": (webhook.address,)}))
    notifier.notify(message())
    notifier.close(TIMEOUT_SECONDS)
    assert [(sent["title"], sent["message"], sent["type"]) for sent in webhook.received] == [
        ("train finished", "on 2 GPUs, after 3 h", "success")
    ]
    assert notifier.counts == Counts(sent=1)


def test_a_rejected_message_is_retried_later(webhook: WebhookServer) -> None:
    webhook.status = 500
    notifier = Notifier(NotifyConfig(urls={"finished": (webhook.address,)}))
    notifier.notify(message())
    assert webhook.answered.acquire(timeout=TIMEOUT_SECONDS)
    notifier.close(TIMEOUT_SECONDS)
    assert webhook.received
    assert notifier.counts == Counts()  # it has neither been sent nor given up


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_target_cannot_redirect_the_daemon_to_another_host(status: int, webhook: WebhookServer) -> None:
    inside = WebhookServer()
    try:
        webhook.status, webhook.location = status, f"http://{inside.address.partition('://')[2]}"
        assert not send_with_apprise(webhook.address, message())
    finally:
        inside.close()
    assert (len(webhook.received), inside.received) == (1, [])


def test_recipients_of_a_message() -> None:
    notifier = Notifier(
        NotifyConfig(
            urls={"failed": ("ntfy://owner",), "gpu_bad": ("ntfy://owner",)},
            users={"ann": ("ntfy://ann", "ntfy://owner")},
            kinds=("failed", "finished"),
        )
    )
    also = ("ntfy://job", "ntfy://ann", "syslog://")
    assert {
        kind: notifier.addresses(message(kind=kind, user=user), also)
        for kind, user in (("failed", "ann"), ("finished", "ann"), ("started", "ann"), ("gpu_bad", ""))
    } == {
        "failed": ["ntfy://owner", "ntfy://ann", "ntfy://job"],
        "finished": ["ntfy://ann", "ntfy://owner", "ntfy://job"],
        "started": [],
        "gpu_bad": ["ntfy://owner"],
    }
    assert notifier.addresses(message(user="bob"), ()) == []


def test_notify_never_blocks_and_excess_messages_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    proceed = threading.Event()
    sent: list[str] = []

    def send(address: str, message: Message) -> bool:
        proceed.wait(TIMEOUT_SECONDS)
        sent.append(message.title)
        return True

    notifier = Notifier(NotifyConfig(urls={"finished": ("ntfy://x",)}), send)
    for number in range(2 * MAX_QUEUED):
        notifier.notify(message(str(number)))
    proceed.set()
    notifier.close(TIMEOUT_SECONDS)
    assert MAX_QUEUED - 1 <= notifier.counts.dropped <= MAX_QUEUED
    assert len(sent) == 30
    assert caplog.messages == ["dropping notifications: more than 1024 are queued"]


def test_close_does_not_wait_for_an_address_that_does_not_respond() -> None:
    proceed = threading.Event()
    notifier = Notifier(NotifyConfig(urls={"finished": ("ntfy://x",)}), lambda *_: proceed.wait(TIMEOUT_SECONDS))
    notifier.notify(message())
    notifier.close(within=0.01)
    assert notifier.counts == Counts()
    proceed.set()


def test_closing_an_unused_notifier_does_nothing() -> None:
    notifier = Notifier(NotifyConfig())
    notifier.notify(message())
    notifier.close()
    assert notifier.counts == Counts()


class FakeSender:
    """Returns or raises the given results in turn and records the titles."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.titles: list[str] = []

    def __call__(self, _: str, message: Message) -> bool:
        self.titles.append(message.title)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_failed_message_is_retried_twice(caplog: pytest.LogCaptureFixture) -> None:
    sender = FakeSender(False, OSError("no route"), False)
    outbox = _Outbox(sender, RateLimiter())
    outbox.add("slack://secret/token", message("a"), 0.0)
    assert outbox.next_due() == RETRY_DELAYS[0]
    outbox.send_due(RETRY_DELAYS[0] - 0.1)
    assert sender.titles == ["a"]
    outbox.send_due(RETRY_DELAYS[0])
    outbox.send_due(RETRY_DELAYS[0] + RETRY_DELAYS[1])
    assert (sender.titles, outbox.sent, outbox.failed) == (["a", "a", "a"], 0, 1)
    assert caplog.messages == ["cannot send notifications to slack://…; pausing for 300 s"]


def test_a_failing_address_is_paused_and_then_sent_a_summary() -> None:
    sender = FakeSender(False, False, False)
    outbox = _Outbox(sender, RateLimiter())
    outbox.add("ntfy://x", message("a"), 0.0)
    outbox.send_due(2.0)
    outbox.send_due(12.0)
    for title in "bcd":
        outbox.add("ntfy://x", message(title), 20.0)
    assert (sender.titles, outbox.next_due()) == (["a"] * 3, 12.0 + PAUSE_SECONDS)
    outbox.send_due(12.0 + PAUSE_SECONDS)
    assert sender.titles == ["a"] * 3 + ["and 3 more"]
    outbox.add("ntfy://x", message("e"), 13.0 + PAUSE_SECONDS)
    assert sender.titles[-1] == "e"


def test_messages_wait_for_the_retry_of_an_earlier_one() -> None:
    sender = FakeSender(False)
    outbox = _Outbox(sender, RateLimiter())
    outbox.add("ntfy://x", message("a"), 0.0)
    outbox.add("ntfy://x", message("b"), 1.0)
    assert sender.titles == ["a"]
    outbox.send_due(RETRY_DELAYS[0])
    assert sender.titles == ["a", "a", "b"]


def test_a_failing_address_is_logged_once_until_it_recovers(caplog: pytest.LogCaptureFixture) -> None:
    sender = FakeSender(*[False] * 6, True, *[False] * 3)
    outbox = _Outbox(sender, RateLimiter())
    for start in (0.0, 1000.0, 2000.0, 3000.0):
        outbox.add("ntfy://x", message(), start)
        outbox.send_due(start + 2)
        outbox.send_due(start + 12)
    assert (outbox.sent, outbox.failed, len(caplog.messages)) == (1, 3, 2)


# Rate limits.


def test_excess_messages_are_summarised_after_the_window() -> None:
    limiter = RateLimiter(limit=2, window=60.0)
    admitted = [limiter.admit("x", message(str(number)), float(number)) for number in range(5)]
    assert (admitted, limiter.next_due()) == ([True, True, False, False, False], 62.0)
    assert limiter.admit("y", message(), 5.0)
    assert limiter.due(61.9) == []
    assert limiter.due(62.0) == [("x", Message("finished", "and 3 more", "3 finished; most recent: 4", user="ann"))]
    assert (limiter.due(62.0), limiter.next_due()) == ([], None)
    assert limiter.admit("x", message(), 63.0)
    assert not limiter.admit("x", message(), 64.0)


def test_a_single_message_held_back_is_sent_unchanged() -> None:
    limiter = RateLimiter(limit=1, window=60.0)
    late = message("late", "failed")
    assert [limiter.admit("x", message(), 0.0), limiter.admit("x", late, 1.0)] == [True, False]
    assert limiter.due(61.0) == [("x", late)]


def test_inactive_addresses_are_forgotten() -> None:
    limiter = RateLimiter(limit=2, window=60.0)
    for number in range(100):
        limiter.admit(f"x{number}", message(), 0.0)
    assert (limiter.due(61.0), len(limiter)) == ([], 0)


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from("xy")), max_size=60))
def test_no_window_exceeds_the_limit_and_no_message_is_lost(arrivals: list[tuple[float, str]]) -> None:
    limiter, now = RateLimiter(limit=3, window=60.0), 0.0
    delivered: dict[str, list[float]] = {"x": [], "y": []}
    reported = 0
    for waited, address in arrivals:
        now += waited
        for one, summary in limiter.due(now):
            delivered[one].append(now)
            reported += int(summary.title.split()[1]) if summary.title.startswith("and") else 1
        if limiter.admit(address, message(), now):
            delivered[address].append(now)
            reported += 1
    for _, summary in limiter.due(now + 1000):
        reported += int(summary.title.split()[1]) if summary.title.startswith("and") else 1
    assert reported == len(arrivals)
    for times in delivered.values():
        assert all(sum(start <= time < start + 60 for time in times) <= 3 for start in times)


# Addresses in job submissions.


@pytest.mark.parametrize(
    "address",
    [
        "ntfys://ntfy.sh/my-jobs?priority=high",
        "json://127.0.0.1:80/path?+X-Token=abc&method=outbox",
        "mailto://me:secret@example.org?to=you@example.org&smtp=mail.example.org",
        "slack://TokenA/TokenB/TokenC/#channel",
        "tgram://123:abc/456",
    ],
)
def test_addresses_of_network_services_are_allowed(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "me@example.org",
        "syslog://",
        "dbus://",
        "file:///etc/passwd",
        "https://hooks.slack.com/services/a/b/c",
        "slack://a/b/c?template=/etc/passwd",
        "slack://a/b/c?format=text;template=/etc/passwd",
        "slack://a/b/c?%74emplate=/etc/passwd",
        "slack://a/b/c?x?template=/etc/passwd",
        "mailto://a:b@c?pgppub=/etc/passwd",
        "json://host?rto=100000",
        "json://host?retry=1000&wait=60",
        "json://host/,syslog://",
        "json://host/ syslog://",
        "json://host\n",
        "slack://host?+header=1",
        "json://" + "x" * 2000,
    ],
)
def test_addresses_that_use_the_machine_or_delay_sending_are_rejected(address: str) -> None:
    with pytest.raises(BadValue, match="notify"):
        check_address(address)


def test_allowed_schemes_are_known_to_apprise() -> None:
    apprise = pytest.importorskip("apprise")
    from refold.server.notify.addresses import SAFE_SCHEMES

    plugins = apprise.Apprise().details()["schemas"]
    known = {name for one in plugins for names in ("protocols", "secure_protocols") for name in one[names] or []}
    assert known >= SAFE_SCHEMES


def test_addresses_are_redacted_in_logs() -> None:
    assert redact("slack://a/b/c") == "slack://…"


def test_apprise_is_not_imported_until_a_message_is_sent() -> None:
    import subprocess
    import sys

    code = "import sys, refold.server.notify.notifier; sys.exit('apprise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(autouse=True)
def quiet_apprise() -> Iterator[None]:
    level = logging.getLogger("apprise").level
    yield
    logging.getLogger("apprise").setLevel(level)


ALLOWED = ("slack", "ntfys://ntfy.sh", "jsons://*.example.org", "mailtos://mail.example.org")


@pytest.mark.parametrize(
    "address",
    [
        "slack://a/b/c",
        "ntfys://ntfy.sh/jobs",
        "ntfys://ann:secret@NTFY.sh:443/jobs?priority=5",
        "jsons://hooks.example.org/x",
    ],
)
def test_targets_that_the_owner_allows_are_accepted(address: str) -> None:
    check_address(address, ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        "json://169.254.169.254/latest",
        "jsons://example.org.evil.net/x",
        "jsons://hooks.example.org@127.0.0.1/x",
        "jsons://127.0.0.1\\@hooks.example.org/x",
        "jsons://127.0.0.1#@hooks.example.org/x",
        "jsons://[::1]/hooks.example.org",
        "ntfys://ntfy.sh.internal/jobs",
        "ntfy://ntfy.sh/jobs",
        "mailtos://ann:secret@mail.example.org?smtp=10.0.0.1",
    ],
)
def test_other_targets_are_refused_at_submission_and_when_they_are_sent_to(address: str) -> None:
    with pytest.raises(BadValue, match="notify:"):
        check_address(address, ALLOWED)
    notifier = Notifier(NotifyConfig(allow=ALLOWED))
    assert notifier.addresses(message(), [address]) == []


def test_the_targets_of_submissions_are_configured(tmp_path: Path) -> None:
    path = tmp_path / "refold.yaml"
    path.write_text("notify: {allow: [slack, 'ntfys://ntfy.sh']}\n")
    assert read_config(path).notify.allow == ("slack", "ntfys://ntfy.sh")


@pytest.mark.parametrize("allowed", ["slak", "'ntfy2://ntfy.sh'", "syslog"])
def test_targets_of_unknown_schemes_cannot_be_configured(tmp_path: Path, allowed: str) -> None:
    path = tmp_path / "refold.yaml"
    path.write_text(f"notify: {{allow: [slack, {allowed}]}}\n")
    with pytest.raises(RefoldError, match=r"a scheme of discord, .*slack"):
        read_config(path)
