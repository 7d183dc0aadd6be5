"""Telling people: who is told of what, at which pace, and that nothing of it blocks or fails whoever tells."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue
from refold.server.config.settings import NotifyChoice
from refold.server.notify.addresses import check_address, redacted
from refold.server.notify.notifier import BACK_OFF, MOST_QUEUED, PAUSE, Counts, Notifier, _Post
from refold.server.notify.rate_limit import Message, RateLimiter

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""Plug-ins of apprise use what newer Pythons will drop."""

PATIENCE = 10.0


def message(title: str = "train finished", kind: Any = "finished", user: str = "ann") -> Message:
    return Message(kind, title, "on 2 GPUs, after 3 h", job="job-1", user=user, tenant="vision")


class Inbox:
    """A web server on loopback that keeps what it is sent; it may be told to refuse."""

    def __init__(self) -> None:
        inbox = self
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.answered = threading.Semaphore(0)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                inbox.received.append(body)
                self.send_response(inbox.status)
                self.end_headers()
                inbox.answered.release()

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
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


def test_a_message_arrives_as_it_was_told(inbox: Inbox) -> None:
    notifier = Notifier(NotifyChoice(urls={"finished": (inbox.address,)}))
    notifier.tell(message())
    notifier.close(PATIENCE)
    assert [(sent["title"], sent["message"], sent["type"]) for sent in inbox.received] == [
        ("train finished", "on 2 GPUs, after 3 h", "success")
    ]
    assert notifier.counts == Counts(sent=1)


def test_an_address_that_refuses_is_counted_and_tried_again_later(inbox: Inbox) -> None:
    inbox.status = 500
    notifier = Notifier(NotifyChoice(urls={"finished": (inbox.address,)}))
    notifier.tell(message())
    assert inbox.answered.acquire(timeout=PATIENCE)
    notifier.close(PATIENCE)
    assert (len(inbox.received), notifier.counts) == (1, Counts())


def test_whom_it_concerns() -> None:
    notifier = Notifier(
        NotifyChoice(
            urls={"failed": ("ntfy://owner",), "gpu_bad": ("ntfy://owner",)},
            users={"ann": ("ntfy://ann", "ntfy://owner")},
            tell=("failed", "finished"),
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


def test_telling_never_blocks_and_what_is_too_much_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    sent: list[str] = []

    def send(address: str, told: Message) -> bool:
        go_on.wait(PATIENCE)
        sent.append(told.title)
        return True

    notifier = Notifier(NotifyChoice(urls={"finished": ("ntfy://x",)}), send)
    for number in range(2 * MOST_QUEUED):
        notifier.tell(message(str(number)))
    go_on.set()
    notifier.close(PATIENCE)
    assert MOST_QUEUED - 1 <= notifier.counts.dropped <= MOST_QUEUED
    assert len(sent) == 30
    assert caplog.messages == ["notifications are dropped: more than 1024 wait to be sent"]


def test_closing_does_not_wait_for_an_address_that_does_not_answer() -> None:
    go_on = threading.Event()
    notifier = Notifier(NotifyChoice(urls={"finished": ("ntfy://x",)}), lambda *_: go_on.wait(PATIENCE))
    notifier.tell(message())
    notifier.close(within=0.01)
    assert notifier.counts == Counts()
    go_on.set()


def test_closing_one_that_never_had_anything_to_tell_is_nothing() -> None:
    notifier = Notifier(NotifyChoice())
    notifier.tell(message())
    notifier.close()
    assert notifier.counts == Counts()


class Service:
    """Answers as it was told to, and keeps what it got."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.got: list[str] = []

    def __call__(self, _: str, told: Message) -> bool:
        self.got.append(told.title)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_fails_is_tried_twice_again_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(False, OSError("no route"), False)
    post = _Post(service, RateLimiter())
    post.take("slack://secret/token", message("a"), 0.0)
    assert post.next_due() == BACK_OFF[0]
    post.send_due(BACK_OFF[0] - 0.1)
    assert service.got == ["a"]
    post.send_due(BACK_OFF[0])
    post.send_due(BACK_OFF[0] + BACK_OFF[1])
    assert (service.got, post.sent, post.failed) == (["a", "a", "a"], 0, 1)
    assert caplog.messages == ["slack://… does not take notifications; it is left alone for a while"]


def test_an_address_that_fails_is_left_alone_and_then_told_how_much_it_missed() -> None:
    service = Service(False, False, False)
    post = _Post(service, RateLimiter())
    post.take("ntfy://x", message("a"), 0.0)
    post.send_due(2.0)
    post.send_due(12.0)
    for title in "bcd":
        post.take("ntfy://x", message(title), 20.0)
    assert (service.got, post.next_due()) == (["a"] * 3, 12.0 + PAUSE)
    post.send_due(12.0 + PAUSE)
    assert service.got == ["a"] * 3 + ["and 3 more"]
    post.take("ntfy://x", message("e"), 13.0 + PAUSE)
    assert service.got[-1] == "e"


def test_an_address_that_is_tried_again_gets_nothing_else_before_that() -> None:
    service = Service(False)
    post = _Post(service, RateLimiter())
    post.take("ntfy://x", message("a"), 0.0)
    post.take("ntfy://x", message("b"), 1.0)
    assert service.got == ["a"]
    post.send_due(BACK_OFF[0])
    assert service.got == ["a", "a", "b"]


def test_a_failure_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(*[False] * 6, True, *[False] * 3)
    post = _Post(service, RateLimiter())
    for beginning in (0.0, 1000.0, 2000.0, 3000.0):
        post.take("ntfy://x", message(), beginning)
        post.send_due(beginning + 2)
        post.send_due(beginning + 12)
    assert (post.sent, post.failed, len(caplog.messages)) == (1, 3, 2)


# The pace.


def test_an_address_gets_so_many_in_a_minute_and_then_one_about_the_others() -> None:
    pace = RateLimiter(limit=2, window=60.0)
    admitted = [pace.admit("x", message(str(number)), float(number)) for number in range(5)]
    assert (admitted, pace.next_due()) == ([True, True, False, False, False], 62.0)
    assert pace.admit("y", message(), 5.0)
    assert pace.due(61.9) == []
    assert pace.due(62.0) == [("x", Message("finished", "and 3 more", "3 finished; the last: 4", user="ann"))]
    assert (pace.due(62.0), pace.next_due()) == ([], None)
    assert pace.admit("x", message(), 63.0)
    assert not pace.admit("x", message(), 64.0)


def test_a_single_message_that_was_held_back_is_told_itself() -> None:
    pace = RateLimiter(limit=1, window=60.0)
    late = message("late", "failed")
    assert [pace.admit("x", message(), 0.0), pace.admit("x", late, 1.0)] == [True, False]
    assert pace.due(61.0) == [("x", late)]


def test_addresses_that_got_nothing_lately_are_forgotten() -> None:
    pace = RateLimiter(limit=2, window=60.0)
    for number in range(100):
        pace.admit(f"x{number}", message(), 0.0)
    assert (pace.due(61.0), len(pace)) == ([], 0)


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from("xy")), max_size=60))
def test_nobody_gets_more_than_the_limit_in_any_window_and_nothing_goes_unsaid(looks: list[tuple[float, str]]) -> None:
    pace, now = RateLimiter(limit=3, window=60.0), 0.0
    got: dict[str, list[float]] = {"x": [], "y": []}
    said = 0
    for waited, address in looks:
        now += waited
        for one, summary in pace.due(now):
            got[one].append(now)
            said += int(summary.title.split()[1]) if summary.title.startswith("and") else 1
        if pace.admit(address, message(), now):
            got[address].append(now)
            said += 1
    for _, summary in pace.due(now + 1000):
        said += int(summary.title.split()[1]) if summary.title.startswith("and") else 1
    assert said == len(looks)
    for times in got.values():
        assert all(sum(start <= time < start + 60 for time in times) <= 3 for start in times)


# Addresses that tenants give.


@pytest.mark.parametrize(
    "address",
    [
        "ntfys://ntfy.sh/my-jobs?priority=high",
        "json://127.0.0.1:80/path?+X-Token=abc&method=post",
        "mailto://me:secret@example.org?to=you@example.org&smtp=mail.example.org",
        "slack://TokenA/TokenB/TokenC/#channel",
        "tgram://123:abc/456",
    ],
)
def test_services_on_the_network_may_be_named(address: str) -> None:
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
def test_what_reaches_into_the_machine_or_holds_us_up_may_not(address: str) -> None:
    with pytest.raises(BadValue, match="notify"):
        check_address(address)


def test_what_may_be_named_is_known_to_apprise() -> None:
    apprise = pytest.importorskip("apprise")
    from refold.server.notify.addresses import SAFE_SCHEMES

    plugins = apprise.Apprise().details()["schemas"]
    known = {name for one in plugins for names in ("protocols", "secure_protocols") for name in one[names] or []}
    assert known >= SAFE_SCHEMES


def test_an_address_in_a_log_keeps_its_secret() -> None:
    assert redacted("slack://a/b/c") == "slack://…"


def test_nothing_of_it_is_loaded_until_something_is_sent() -> None:
    import subprocess
    import sys

    code = "import sys, refold.server.notify.notifier; sys.exit('apprise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(autouse=True)
def quiet_apprise() -> Iterator[None]:
    level = logging.getLogger("apprise").level
    yield
    logging.getLogger("apprise").setLevel(level)
