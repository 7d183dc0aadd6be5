"""The commands that ask the daemon, as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_service import MEMBER, NOW, OTHER, READER, FakeService, Served
from typer.testing import Result

from refold.api.wire import GpuStatus, NodeStatus, Submission, TenantStatus
from refold.cli.daemon_client import first_jobs, jobs_beginning, tenants_beginning, tokens_beginning
from refold.cli.views.times import clock_near
from refold.client.client import Client

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def asked(name: str, **fields: Any) -> Submission:
    return Submission(name, ["true"], **fields)


@pytest.fixture
def service(served: Served) -> FakeService:
    """Two jobs of vision, of which the first runs, and one of speech."""
    for submission, tenant, user in (
        (asked("train", gpus=2, steps=100), "vision", "ann"),
        (asked("wide", gpus=4), "vision", "bob"),
        (asked("small"), "speech", "cleo"),
    ):
        served.do(served.service.add, submission, tenant, user)
    served.do(served.service.start, "train-1")
    return served.service


# Without a daemon


@pytest.mark.parametrize(
    "words",
    [
        ("queue",),
        ("why", "train-1"),
        ("logs", "train-1"),
        ("cancel", "train-1"),
        ("top", "--once"),
        ("history",),
        ("report",),
        ("submit", "--", "true"),
    ],
)
def test_where_nobody_serves_that_is_said_with_what_to_do(
    words: tuple[str, ...], no_daemon: None, refuses: Said
) -> None:
    assert refuses(*words) == (
        "error: no Refold daemon is known here: start one with `refold serve`, or set REFOLD_ADDRESS and REFOLD_TOKEN\n"
    )


def test_completion_where_nobody_serves_offers_nothing_and_says_nothing(
    no_daemon: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs_beginning("t") == []
    monkeypatch.setenv("REFOLD_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("REFOLD_TOKEN", "rf_x")
    assert tenants_beginning("") == []
    assert capsys.readouterr() == ("", "")


def test_completion_asks_the_daemon(served: Served, service: FakeService) -> None:
    served.do(service.end, "train-1")
    assert jobs_beginning("") == ["wide-2", "small-3", "train-1"]
    assert jobs_beginning("tr") == ["train-1"]
    assert tenants_beginning("v") == ["vision"]
    assert tokens_beginning("o") == ["owner", "other"]


# The queue


def test_who_runs_is_listed_first_then_who_waits_with_the_reason_in_brackets(service: FakeService, said: Said) -> None:
    assert lines(said("queue")) == [
        "1 job runs, 2 wait, under backfill; 4 of 4 GPUs free",
        "job GPUs tenant user for on (reason)",
        "train-1 1 x 2 GPUs vision ann runs 0 s here (GPU 0)",
        "2 wide-2 1 x 4 GPUs vision bob waits 0 s (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
        "3 small-3 1 x 1 GPUs speech cleo waits 0 s (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
    ]


def test_where_nobody_is_that_is_said_in_a_line(served: Served, said: Said) -> None:
    assert said("queue") == "0 jobs run, 0 wait, under backfill; 4 of 4 GPUs free\n"
    assert said("queue", "--start") == "0 jobs run, 0 wait, under backfill; 4 of 4 GPUs free\n"
    assert said("history") == "no such job is over\n"


def test_the_queue_for_programs(service: FakeService, told: Told) -> None:
    document = told("queue", "--user", "ann")
    assert document == {
        "cluster": "here",
        "policy": "backfill",
        "now": NOW,
        "gpus": 4,
        "free_gpus": 4.0,
        "running": 1,
        "waiting": 2,
        "jobs": [msgspec.to_builtins(service.all["train-1"])],
        "left_out": 0,
        "notes": [],
    }


def test_of_a_long_queue_the_first_are_listed(served: Served, service: FakeService, said: Said, told: Told) -> None:
    for number in range(60):
        served.do(service.add, asked(f"more{number}"))
    assert lines(said("queue"))[-1] == "… and 13 jobs more (--all)"
    assert len(told("queue", "--limit", "7")["jobs"]) == 7
    assert len(told("queue", "--all")["jobs"]) == 63
    assert [job["id"] for job in told("queue", "--tenant", "speech")["jobs"]] == ["small-3"]


def test_jobs_are_read_in_pages(served: Served, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.cli.daemon_client.PAGE", 2)
    jobs, total = first_jobs(Client(), None)
    assert ([job.id for job in jobs], total) == (["train-1", "wide-2", "small-3"], 3)
    assert [job.id for job in first_jobs(Client(), 1)[0]] == ["train-1"]


def test_promised_starts_are_told_with_their_bounds(service: FakeService, said: Said, told: Told) -> None:
    at, soonest, latest = (clock_near(NOW + later, NOW) for later in (60, 30, 300))
    [_, _, _, wide, _] = lines(said("queue", "--start"))
    assert wide.startswith(f"2 wide-2 1 x 4 GPUs vision bob waits 0 s {at} {soonest} – {latest} promise (resources:")
    assert [job.get("by") for job in told("queue", "--start")["jobs"]] == [None, "promise", "promise"]


def test_a_narrow_screen_has_no_column_that_says_the_same_of_everybody(
    service: FakeService, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = said("queue", "--tenant", "vision").splitlines()
    assert printed[1].split() == ["job", "GPUs", "user", "for", "on", "(reason)"]
    assert all(len(line) <= 80 for line in printed)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("queue", "--at", "1h"), "--at needs JOURNAL"),
        (("queue", "--running"), "--running needs JOURNAL"),
        (("queue", "--all", "--limit", "3"), "--all and --limit 3"),
        (("queue", "--watch", "--json"), "leave --json out"),
        (("queue", "j.jsonl", "--tenant", "a"), "--tenant needs the daemon"),
        (("why",), "of which job?"),
        (("why", "trane-1"), "no job 'trane-1'; did you mean 'train-1'?"),
        (("why", "absent.jsonl"), "absent.jsonl: cannot be read"),
        (("cancel",), "cancel which jobs?"),
        (("cancel", "train-1", "--all"), "cancel which jobs?"),
        (("cancel", "--all"), "3 jobs would be cancelled, and there is nobody to ask: add --yes"),
        (("cancel", "--user", "nobody", "--yes"), "there is nothing to cancel"),
        (("drain", "there"), "no node 'there'"),
        (("history", "--state", "faild"), "no state 'faild'; did you mean 'failed'?"),
        (("history", "--since", "soon"), "'soon' is not a duration"),
        (("token", "new", "x", "--role", "onwer"), "no role 'onwer'; did you mean 'owner'?"),
        (("token", "new", "owner"), "there is a token 'owner' already"),
        (("events", "--job", "trane-1"), "no job 'trane-1'"),
        (("whatif",), "Missing argument"),
        (("whatif", "a", "b", "c"), "which job?"),
        (("whatif", "job.yaml", "--at", "1h"), "--at needs JOURNAL"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: tuple[str, ...], told: str, service: FakeService, refuses: Said
) -> None:
    assert told in refuses(*words)


# One job


def test_the_story_of_a_job_ends_with_how_it_stands(service: FakeService, said: Said, told: Told) -> None:
    assert [line.partition(" 2")[0] for line in lines(said("why", "wide"))[::2]] == [
        "wide-2, 1 x 4 GPUs, guaranteed, of vision",
        f"{clock(NOW)} submitted wide-2 submitted",
    ]
    assert lines(said("why", "wide"))[-1] == "it waits (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)"
    assert lines(said("why", "1"))[-1] == "it runs on here (GPU 0)"
    assert [event["kind"] for event in told("why", "train")["story"]] == ["submitted", "started"]


def clock(moment: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")


def test_a_job_is_cancelled_held_and_released(service: FakeService, said: Said) -> None:
    assert said("cancel", "train-1") == "train-1 is cancelled\n"
    assert said("hold", "wide", "small") == "wide-2 is held\nsmall-3 is held\n"
    assert said("release", "wide") == "wide-2 is released\n"
    assert [job.state for job in service.all.values()] == ["cancelled", "waiting", "held"]


def test_of_several_jobs_those_are_done_that_can_be_and_the_status_tells(
    service: FakeService, typed: Typed, refuses: Said
) -> None:
    typed("cancel", "1")
    assert refuses("cancel", "1") == "error: train-1 has cancelled already, and cannot be cancelled\n"
    result = typed("cancel", "1", "nobody", "2")
    assert (result.exit_code, result.stdout) == (1, "wide-2 is cancelled\n")
    first, second = result.stderr.splitlines()
    assert first == "1: train-1 has cancelled already, and cannot be cancelled"
    assert second.startswith("nobody: no job 'nobody'")


def test_all_of_a_user_are_cancelled(service: FakeService, told: Told) -> None:
    document = told("cancel", "--user", "bob", "--yes")
    assert [job["id"] for job in document["jobs"]] == ["wide-2"]
    assert document["refused"] == []


def test_what_is_not_yours_is_refused(service: FakeService, refuses: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_TOKEN", OTHER)
    assert refuses("cancel", "wide-2") == "error: wide-2 is of the tenant 'vision', and you are of 'speech'\n"
    monkeypatch.setenv("REFOLD_TOKEN", READER)
    assert refuses("hold", "wide-2").startswith("error: ")
    monkeypatch.setenv("REFOLD_TOKEN", MEMBER)
    assert refuses("drain", "here").startswith("error: ")


def test_what_is_over_is_listed_the_latest_first(served: Served, service: FakeService, said: Said, told: Told) -> None:
    served.do(service.end, "train-1")
    served.do(service.end, "wide-2", "failed", "exit status 3")
    assert lines(said("history")) == [
        "job GPUs tenant user ended waited ran runs why",
        f"wide-2 1 x 4 GPUs vision bob failed {clock_near(NOW, NOW)} – – 0 exit status 3",
        f"train-1 1 x 2 GPUs vision ann finished {clock_near(NOW, NOW)} 0 s 0 s 1 exit status 0",
    ]
    assert lines(said("history", "--limit", "1"))[-1] == "… and 1 job more (--all)"
    assert [job["id"] for job in told("history", "--state", "finished")] == ["train-1"]
    assert [job["id"] for job in told("history", "--since", "1h")] == ["wide-2", "train-1"]
    assert [job["id"] for job in told("history", "--since", "1h", "--limit", "1")] == ["wide-2"]


def test_history_since_a_moment_leaves_out_what_ended_before(
    served: Served, service: FakeService, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.do(service.end, "train-1")
    service.all["train-1"] = msgspec.structs.replace(service.all["train-1"], ended=NOW - 7200)
    assert told("history", "--since", "1h") == []
    assert len(told("history", "--since", "3h")) == 1


def test_events_are_a_line_each(service: FakeService, said: Said) -> None:
    assert [line.partition("  ")[2] for line in said("events").splitlines()] == [
        "train-1 submitted train-1 submitted",
        "wide-2 submitted wide-2 submitted",
        "small-3 submitted small-3 submitted",
        "train-1 started (run 1) train-1 started",
    ]
    assert len(said("events", "--job", "train").splitlines()) == 2
    [last] = said("events", "--limit", "1", "--json").splitlines()
    assert msgspec.json.decode(last)["kind"] == "started"


# The cluster


def test_a_node_is_drained_and_resumed(service: FakeService, said: Said, told: Told) -> None:
    assert said("drain", "here", "--why", "too hot") == "here takes no more work\n"
    assert lines(said("nodes"))[1:] == ["here drained: too hot 4 of 4 H100"]
    assert said("resume", "here", "--gpu", "1") == "GPU 1 of here takes work again\n"
    assert told("nodes") == [msgspec.to_builtins(NodeStatus("here", True, 4, "H100", 4.0))]


def test_tenants_are_told_with_quota_and_use(
    service: FakeService, said: Said, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [TenantStatus("speech", 2.0, 0.0, 1, 3.0, 0, 0.0), TenantStatus("vision", 4.0, 4.0, 1, 1.0, 2, 5.0)]
    monkeypatch.setattr(service, "tenants", lambda _: found)
    assert lines(said("tenants")) == [
        "tenant quota limit uses GPUs of its quota jobs run wait for GPUs",
        "speech 2 – 3 ████████████████ + 1 0 0",
        "vision 4 4 1 ████ 1 2 5",
    ]
    assert [tenant["name"] for tenant in told("tenants")] == ["speech", "vision"]


def test_a_token_is_made_listed_and_revoked(service: FakeService, said: Said, told: Told) -> None:
    made = said("token", "new", "dan", "--tenant", "vision").splitlines()
    assert made[0] == "the token dan, which is told this once:"
    assert made[1].startswith("rf_")
    assert "dan" in [token["name"] for token in told("token", "list")]
    assert lines(said("token", "list"))[-1].startswith("dan member vision dan 20")
    assert said("token", "revoke", "dan") == "the token dan (member) opens nothing more\n"
    assert "dan" not in [token["name"] for token in told("token", "list")]


MEASURED = [
    GpuStatus("n0", 0, "H100-80GB", ["train-1"], 0.0, "", 61_000, 81_559, 0.97, 88.0, 612.0),
    GpuStatus("n0", 1, "H100-80GB", ["train-1", "b-2"], 0.25, "", 40_780, 81_559, 0.5, 61.0, 300.0),
    GpuStatus("n1", 0, "H100-80GB", [], 1.0, "", 0, 81_559, 0.0, 30.0, 70.0),
    GpuStatus("n1", 1, "H100-80GB", [], 0.0, "ECC errors"),
]


def test_top_has_a_line_for_each_gpu(
    service: FakeService, said: Said, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "gpus", lambda _: MEASURED)
    monkeypatch.setenv("COLUMNS", "80")
    printed = said("top")
    assert "\x1b" not in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert lines(printed) == [
        "here: 0 of 4 GPUs in use, 1 running, 2 waiting, under backfill",
        "GPU memory GiB load °C W job",
        "n0:0 H100-80GB ███████▌·· 60/80 97 % 88 612 train-1 (ann)",
        "n0:1 H100-80GB █████····· 40/80 50 % 61 300 train-1 (ann), b-2, 0.25 free",
        "n1:0 H100-80GB ·········· 0/80 0 % 30 70 free",
        "n1:1 H100-80GB – – – – drained: ECC errors",
    ]
    assert [gpu["index"] for gpu in told("top", "--once")["gpus"]] == [0, 1, 0, 1]


def test_top_without_measurements_tells_whose_slots_are(
    service: FakeService, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "gpus", lambda _: [GpuStatus("here", 0, "slot", ["train-1"], 0.0)])
    assert lines(said("top", "--once"))[1:] == ["GPU job", "0 slot train-1 (ann)"]
