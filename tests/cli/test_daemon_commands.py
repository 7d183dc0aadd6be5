"""Commands that use the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import MEMBER, NOW, OTHER, OWNER, READER, FakeServer, FakeService
from typer.testing import Result

from refold.cli.daemon_arguments import complete_jobs, complete_tenants, complete_tokens
from refold.cli.daemon_client import list_jobs
from refold.cli.views.times import format_clock, format_clock_near
from refold.client.api.submissions import Submission
from refold.client.api.wire import GpuStatus, NodeStatus, StartAccuracy, TenantStatus
from refold.client.client import Client
from refold.errors import Conflict

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def make_submission(name: str, **fields: Any) -> Submission:
    return Submission(name, ["true"], **fields)


@pytest.fixture
def service(served: FakeServer) -> FakeService:
    """A running and a waiting job of tenant vision, and a waiting one of tenant speech."""
    for submission, tenant, user in (
        (make_submission("train", gpus=2, steps=100), "vision", "ann"),
        (make_submission("wide", gpus=4), "vision", "bob"),
        (make_submission("small"), "speech", "cleo"),
    ):
        served.call(served.service.add, submission, tenant, user)
    served.call(served.service.start, "train-1")
    return served.service


# Without a daemon.


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
def test_without_a_daemon_the_error_says_what_to_do(words: tuple[str, ...], no_daemon: None, error_of: TextOf) -> None:
    assert error_of(*words) == (
        "error: no Refold daemon found: start one with `refold serve`, or set REFOLD_HOME to its state folder, "
        "or REFOLD_ADDRESS and REFOLD_TOKEN\n"
    )


def test_completion_without_a_daemon_is_empty_and_silent(
    no_daemon: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete_jobs("t") == []
    monkeypatch.setenv("REFOLD_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("REFOLD_TOKEN", "rf_x")
    assert complete_tenants("") == []
    assert capsys.readouterr() == ("", "")


def test_completion_asks_the_daemon(served: FakeServer, service: FakeService) -> None:
    served.call(service.end, "train-1")
    assert complete_jobs("") == ["wide-2", "small-3", "train-1"]
    assert complete_jobs("tr") == ["train-1"]
    assert complete_tenants("v") == ["vision"]
    assert complete_tokens("o") == ["owner", "other"]


# The queue.


def test_running_jobs_are_listed_before_waiting_jobs_with_the_reason_in_parentheses(
    service: FakeService, stdout_of: TextOf
) -> None:
    assert lines(stdout_of("queue")) == [
        "1 running, 2 waiting, 4 of 4 GPUs free, policy backfill",
        "job GPUs tenant user state time nodes (reason)",
        "train-1 1 x 2 GPUs vision ann running 0 s here (GPU 0)",
        "2 wide-2 1 x 4 GPUs vision bob waiting 0 s (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
        "3 small-3 1 x 1 GPUs speech cleo waiting 0 s (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
    ]


def test_an_empty_queue_is_one_line(served: FakeServer, stdout_of: TextOf) -> None:
    assert stdout_of("queue") == "0 running, 0 waiting, 4 of 4 GPUs free, policy backfill\n"
    assert stdout_of("queue", "--start") == "0 running, 0 waiting, 4 of 4 GPUs free, policy backfill\n"
    assert stdout_of("history") == "no matching jobs have ended\n"


def test_the_queue_as_json(service: FakeService, json_of: JsonOf) -> None:
    document = json_of("queue", "--user", "ann")
    assert document == {
        "cluster": "here",
        "policy": "backfill",
        "now": NOW,
        "gpus": 4,
        "free_gpus": 4.0,
        "drained_gpus": 0,
        "running": 1,
        "waiting": 2,
        "held": 0,
        "jobs": [msgspec.to_builtins(service.jobs_by_id["train-1"])],
        "omitted": 0,
        "notes": [],
    }


def test_a_long_queue_is_truncated(
    served: FakeServer, service: FakeService, stdout_of: TextOf, json_of: JsonOf
) -> None:
    for number in range(60):
        served.call(service.add, make_submission(f"more{number}"))
    assert lines(stdout_of("queue"))[-1] == "… and 13 more jobs (--all)"
    assert len(json_of("queue", "--limit", "7")["jobs"]) == 7
    assert len(json_of("queue", "--all")["jobs"]) == 63
    assert [job["id"] for job in json_of("queue", "--tenant", "speech")["jobs"]] == ["small-3"]


def test_jobs_are_read_in_pages(served: FakeServer, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.cli.daemon_client.PAGE_SIZE", 2)
    jobs, total = list_jobs(Client(), None)
    assert ([job.id for job in jobs], total) == (["train-1", "wide-2", "small-3"], 3)
    assert [job.id for job in list_jobs(Client(), 1)[0]] == ["train-1"]


def test_start_estimates_are_shown_with_their_range(service: FakeService, stdout_of: TextOf, json_of: JsonOf) -> None:
    at, soonest, latest = (format_clock_near(NOW + later, NOW) for later in (60, 30, 300))
    [_, _, _, wide, _] = lines(stdout_of("queue", "--start"))
    assert wide.startswith(f"2 wide-2 1 x 4 GPUs vision bob waiting 0 s {at} {soonest} – {latest} policy (resources:")
    assert [job.get("source") for job in json_of("queue", "--start")["jobs"]] == [None, "policy", "policy"]


def test_why_shows_the_current_start_estimate_of_a_waiting_job(service: FakeService, stdout_of: TextOf) -> None:
    at, soonest, latest = (format_clock(NOW + later) for later in (60, 30, 300))
    assert f"start estimate: {at}, between {soonest} and {latest}" in lines(stdout_of("why", "wide"))
    status = service.jobs_by_id["wide-2"]
    service.jobs_by_id["wide-2"] = msgspec.structs.replace(status, start_estimate=None)
    assert "start estimate: not known yet" in lines(stdout_of("why", "wide"))
    assert "start estimate" not in stdout_of("why", "1")


def test_why_shows_what_a_job_runs(service: FakeService, stdout_of: TextOf) -> None:
    assert "command:" not in stdout_of("why", "wide")
    launch: dict[str, Any] = {
        "command": ["sh", "-c", "echo 'a  b'\nls"],
        "folder": "/work",
        "variables": ["DATA", "SEED"],
    }
    service.jobs_by_id["wide-2"] = msgspec.structs.replace(service.jobs_by_id["wide-2"], **launch)
    shown = lines(stdout_of("why", "wide"))
    assert shown[-3:] == ["command: sh -c 'echo '\"'\"'a b'\"'\"' ls'", "folder: /work", "variables: DATA, SEED"]


def test_a_start_that_the_daemon_does_not_know_is_not_known_and_not_simulated(
    service: FakeService, stdout_of: TextOf, json_of: JsonOf
) -> None:
    service.forecasts_starts = True
    status = service.jobs_by_id["wide-2"]
    service.jobs_by_id["wide-2"] = msgspec.structs.replace(status, start_estimate=None)
    [_, _, _, wide, _] = lines(stdout_of("queue", "--start"))
    assert wide.startswith("2 wide-2 1 x 4 GPUs vision bob waiting 0 s not known yet (resources:")
    _, wide, small = json_of("queue", "--start")["jobs"]
    assert (wide["expected"], wide["source"], small["source"]) == (None, "", "forecast")


def test_the_accuracy_of_start_estimates_is_shown_with_them(
    service: FakeService, stdout_of: TextOf, json_of: JsonOf
) -> None:
    service.forecasts_starts = True
    service.start_accuracy = StartAccuracy(jobs=12, unknown=3, median_error=4.0, bounded=10, coverage=0.9)
    assert lines(stdout_of("queue", "--start"))[-1] == "estimates of 12 jobs: median error 4 s, 90% of bounds met"
    assert json_of("queue", "--start")["start_accuracy"] == msgspec.to_builtins(service.start_accuracy)
    assert "start_accuracy" not in json_of("queue")


def test_with_many_waiting_jobs_a_policy_is_simulated_only_on_request(service: FakeService, json_of: JsonOf) -> None:
    service.waiting_count = 10_000
    status = service.jobs_by_id["wide-2"]
    service.jobs_by_id["wide-2"] = msgspec.structs.replace(status, start_estimate=None)
    document = json_of("queue", "--start")
    assert document["notes"] == ["policy backfill is not simulated with 10,000 waiting jobs; --futures N does"]
    assert [job.get("source") for job in document["jobs"]] == [None, "", "policy"]


def test_whatif_asks_the_daemon(service: FakeService, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf) -> None:
    service.forecasts_starts = True
    job = tmp_path / "job.yaml"
    job.write_text("name: mine\ngpus: 1\nestimate: 100s\nrun: 'true'\n")
    document = json_of("whatif", str(job), "--gpus", "8", "--seed", "7")
    note = "estimates assume no new jobs; jobs submitted later may start first (--arrivals simulates them)"
    scaling = "run time is assumed to be inversely proportional to the number of GPUs"
    shared = {
        "start": {"at": NOW + 60.0, "soonest": None, "latest": None},
        "end": {"at": NOW + 120.0, "soonest": None, "latest": None},
        "mean_delay_of_others": 0.0,
        "delayed_jobs": 0,
        "reason": "",
        "wait": 60.0,
    }
    assert document == {
        "journal": "the daemon",
        "policy": "backfill",
        "now": NOW,
        "futures": 40,
        "seed": 7,
        "variants": [
            {"variant": "as given: 1 GPU", "fits": True, "best": True, **shared},
            {"variant": "8 GPUs", "fits": False, "best": False, **shared},
        ],
        "notes": [note, scaling],
    }
    title = lines(stdout_of("whatif", str(job)))[0]
    assert title.startswith("mine, submitted at ")
    assert title.endswith(", policy backfill, 40 simulated futures")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["a", "a-rather-long-name-of-an-experiment", "x" * 64])
def test_start_estimates_are_one_table_with_the_id_in_every_row(
    name: str, width: int, served: FakeServer, service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.call(service.add, make_submission(name), "a-tenant", "a-user-name")
    monkeypatch.setenv("COLUMNS", str(width))
    printed = stdout_of("queue", "--start").splitlines()
    assert max(map(len, printed)) <= width
    assert sum("job" in line.split() for line in printed) == 1
    for job in ("train-1", "wide-2", "small-3", f"{name}-4"):
        assert sum(job in line for line in printed) == 1


def test_a_narrow_screen_hides_columns_with_the_same_value_in_all_rows(
    service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = stdout_of("queue", "--tenant", "vision").splitlines()
    assert printed[1].split() == ["job", "GPUs", "user", "state", "time", "nodes", "(reason)"]
    assert all(len(line) <= 80 for line in printed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("queue", "--at", "1h"), "--at needs JOURNAL"),
        (("queue", "--running"), "--running needs JOURNAL"),
        (("queue", "--all", "--limit", "3"), "--all and --limit 3"),
        (("queue", "--watch", "--json"), "--watch cannot be combined with --json"),
        (("queue", "j.jsonl", "--tenant", "a"), "--tenant needs the daemon"),
        (("why",), "expected a job"),
        (("why", "trane-1"), "unknown job 'trane-1'; did you mean 'train-1'?"),
        (("why", "absent.jsonl"), "absent.jsonl: cannot be read"),
        (("cancel",), "expected either job ids, or --tenant"),
        (("cancel", "train-1", "--all"), "expected either job ids, or --tenant"),
        (("cancel", "--all"), "cancelling 3 jobs needs confirmation, and stdin is not a terminal: add --yes"),
        (("cancel", "--user", "eve", "--yes"), "nothing to cancel"),
        (("drain", "there"), "unknown node 'there'"),
        (("history", "--state", "faild"), "unknown state 'faild'; did you mean 'failed'?"),
        (("history", "--since", "soon"), "--since: 'soon' is not a duration"),
        (("token", "new", "x", "--role", "onwer"), "unknown role 'onwer'; did you mean 'owner'?"),
        (("token", "new", "owner"), "token 'owner' already exists"),
        (("events", "--job", "trane-1"), "unknown job 'trane-1'"),
        (("whatif",), "Missing argument"),
        (("whatif", "a", "b", "c"), "expected a job file"),
        (("whatif", "job.yaml", "--at", "1h"), "--at needs JOURNAL"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    words: tuple[str, ...], message: str, service: FakeService, error_of: TextOf
) -> None:
    assert message in error_of(*words)


# One job.


def test_the_history_of_a_job_ends_with_its_state(service: FakeService, stdout_of: TextOf, json_of: JsonOf) -> None:
    assert [line.partition(" 2")[0] for line in lines(stdout_of("why", "wide"))[:3:2]] == [
        "wide-2, 1 x 4 GPUs, guaranteed, tenant vision",
        f"{clock(NOW)} submitted wide-2 submitted",
    ]
    assert [lines(stdout_of("why", "wide"))[index] for index in (-3, -1)] == [
        "waiting (resources: 0 of 1 nodes fit: 1 has fewer free GPUs)",
        "preemptible: no, not requested",
    ]
    assert lines(stdout_of("why", "1"))[-2] == "running on here (GPU 0)"
    assert [event["kind"] for event in json_of("why", "train")["events"]] == ["submitted", "started"]


def clock(seconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def test_a_job_is_cancelled_held_and_released(service: FakeService, stdout_of: TextOf) -> None:
    assert stdout_of("cancel", "train-1") == "train-1 cancelled\n"
    assert stdout_of("hold", "wide", "small") == "wide-2 held\nsmall-3 held\n"
    assert stdout_of("release", "wide") == "wide-2 released\n"
    assert [job.state for job in service.jobs_by_id.values()] == ["cancelled", "waiting", "held"]


def test_rejected_jobs_set_the_status_and_do_not_stop_the_others(
    service: FakeService, invoke: Invoke, error_of: TextOf
) -> None:
    invoke("cancel", "1")
    assert error_of("cancel", "1") == "error: train-1 cannot be cancelled: it is cancelled\n"
    result = invoke("cancel", "1", "no-such-job", "2")
    assert (result.exit_code, result.stdout) == (1, "wide-2 cancelled\n")
    first, second = result.stderr.splitlines()
    assert first == "1: train-1 cannot be cancelled: it is cancelled"
    assert second.startswith("no-such-job: unknown job 'no-such-job'")


@pytest.fixture
def array(served: FakeServer, service: FakeService) -> list[str]:
    """An array of three waiting jobs besides the jobs of `service`."""
    jobs = Client(served.address, OWNER).submit_all([make_submission("sweep", array="0-2", tenant="vision")])
    return [job.id for job in jobs]


def test_a_pattern_or_an_array_stands_for_all_its_jobs(
    array: list[str], service: FakeService, invoke: Invoke, stdout_of: TextOf
) -> None:
    held = invoke("hold", "sweep-4")
    assert held.stderr == "sweep-4 matches 3 jobs: sweep-4_0, sweep-4_1, sweep-4_2\n"
    assert held.stdout == "sweep-4_0 held\nsweep-4_1 held\nsweep-4_2 held\n"
    assert stdout_of("release", "sweep-4_2") == "sweep-4_2 released\n"
    assert stdout_of("release", "sweep*") == "sweep-4_0 released\nsweep-4_1 released\n"  # the held ones
    assert stdout_of("cancel", "*_[01]", "sweep*") == "sweep-4_0 cancelled\nsweep-4_1 cancelled\nsweep-4_2 cancelled\n"
    assert [service.jobs_by_id[job].state for job in array] == ["cancelled"] * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cancel", "nothing-*"), "no active job matches 'nothing-*'"),
        (("cancel", ""), "a job name is empty"),
        (("hold", "train-*"), "no waiting or held job matches 'train-*'"),
        (("release", "w*", "wide"), "no held job matches 'w*'"),
    ],
)
def test_a_pattern_without_a_match_is_an_error(
    words: tuple[str, ...], message: str, service: FakeService, error_of: TextOf
) -> None:
    assert message in error_of(*words)
    assert [job.state for job in service.jobs_by_id.values()] == ["running", "waiting", "waiting"]


def test_a_pattern_leaves_out_the_jobs_of_other_tenants(
    array: list[str], service: FakeService, error_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TOKEN", OTHER)
    assert "no active job matches 'sweep-*'" in error_of("cancel", "sweep-*")


def test_cancel_now_kills_jobs(service: FakeService, stdout_of: TextOf) -> None:
    stdout_of("cancel", "wide-2")
    assert stdout_of("cancel", "--now", "train-1", "small-3") == "train-1 cancelled\nsmall-3 cancelled\n"
    assert service.killed == ["train-1", "small-3"]


def test_all_jobs_of_a_user_are_cancelled(service: FakeService, json_of: JsonOf) -> None:
    document = json_of("cancel", "--user", "bob", "--yes")
    assert [job["id"] for job in document["jobs"]] == ["wide-2"]
    assert document["rejected"] == []


def test_changes_without_permission_are_rejected(
    service: FakeService, error_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TOKEN", OTHER)
    assert error_of("cancel", "wide-2") == "error: wide-2 belongs to tenant 'vision'; your token is for 'speech'\n"
    monkeypatch.setenv("REFOLD_TOKEN", READER)
    assert error_of("hold", "wide-2").startswith("error: ")
    monkeypatch.setenv("REFOLD_TOKEN", MEMBER)
    assert error_of("drain", "here").startswith("error: ")


def test_ended_jobs_are_listed_latest_first(
    served: FakeServer, service: FakeService, stdout_of: TextOf, json_of: JsonOf
) -> None:
    served.call(service.end, "train-1")
    served.call(service.end, "wide-2", "failed", "exit status 3")
    assert lines(stdout_of("history")) == [
        "job GPUs tenant user state ended waiting time run time runs reason",
        f"wide-2 1 x 4 GPUs vision bob failed {format_clock_near(NOW, NOW)} – – 0 exit status 3",
        f"train-1 1 x 2 GPUs vision ann finished {format_clock_near(NOW, NOW)} 0 s 0 s 1 exit status 0",
    ]
    assert lines(stdout_of("history", "--limit", "1"))[-1] == "… and 1 more job (--all)"
    assert [job["id"] for job in json_of("history", "--state", "finished")] == ["train-1"]
    assert [job["id"] for job in json_of("history", "--since", "1h")] == ["wide-2", "train-1"]
    assert [job["id"] for job in json_of("history", "--since", "1h", "--limit", "1")] == ["wide-2"]


def test_history_since_a_time_excludes_jobs_that_ended_before(
    served: FakeServer, service: FakeService, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.call(service.end, "train-1")
    service.jobs_by_id["train-1"] = msgspec.structs.replace(service.jobs_by_id["train-1"], ended=NOW - 7200)
    assert json_of("history", "--since", "1h") == []
    assert len(json_of("history", "--since", "3h")) == 1


def test_what_jobs_have_used_is_shown_if_it_was_measured(
    served: FakeServer, service: FakeService, stdout_of: TextOf, json_of: JsonOf
) -> None:
    for job in ("train-1", "wide-2"):
        served.call(service.end, job)
    assert "peak memory" not in stdout_of("history") + stdout_of("why", "train-1")
    used: dict[str, Any] = {"cpu_seconds": 90.0, "peak_memory_mib": 3072}
    service.jobs_by_id["train-1"] = msgspec.structs.replace(service.jobs_by_id["train-1"], **used)
    table = lines(stdout_of("history"))
    assert table[0].endswith("runs CPU time peak memory reason")
    assert [" 1 min 30 s 3 GiB" in line for line in table if line.startswith("train-1")] == [True]
    assert [" – –" in line for line in table if line.startswith("wide-2")] == [True]
    assert lines(stdout_of("why", "train-1"))[-1] == "used so far: 1 min 30 s of CPU time, peak memory 3 GiB"
    assert used.items() <= json_of("why", "train-1")["job"].items()


def test_each_event_is_one_line(service: FakeService, stdout_of: TextOf) -> None:
    assert [line.partition("  ")[2] for line in stdout_of("events").splitlines()] == [
        "train-1 submitted train-1 submitted",
        "wide-2 submitted wide-2 submitted",
        "small-3 submitted small-3 submitted",
        "train-1 started (run 1) train-1 started",
    ]
    assert len(stdout_of("events", "--job", "train").splitlines()) == 2
    [last] = stdout_of("events", "--limit", "1", "--json").splitlines()
    assert msgspec.json.decode(last)["kind"] == "started"


# The cluster.


def test_a_node_is_drained_and_resumed(service: FakeService, stdout_of: TextOf, json_of: JsonOf) -> None:
    assert stdout_of("drain", "here", "--reason", "too hot") == "node here drained\n"
    assert lines(stdout_of("nodes"))[1:] == ["here drained: too hot 4 of 4 H100"]
    assert stdout_of("resume", "here", "--gpu", "1") == "GPU 1 of node here resumed\n"
    assert json_of("nodes") == [msgspec.to_builtins(NodeStatus("here", True, 4, "H100", 4.0))]


def test_nodes_and_top_show_the_power_of_racks(
    service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [NodeStatus(name, True, 4, "H100", 4.0, [], "", False, "r1", 2400.0, 3000.0) for name in ("a", "b")]
    monkeypatch.setattr(service, "nodes", lambda _: found)
    assert lines(stdout_of("nodes"))[0] == "node state free GPUs GPU type rack jobs"
    assert lines(stdout_of("nodes"))[1] == "a up 4 of 4 H100 r1: 2,400 of 3,000 W"
    assert lines(stdout_of("top", "--once"))[-1] == "rack r1: 2,400 of 3,000 W"


def test_nodes_show_whether_requests_are_enforced_if_that_is_known(
    service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [NodeStatus("a", True, 4, "H100", 4.0, limits="enforced")]
    monkeypatch.setattr(service, "nodes", lambda _: found)
    assert lines(stdout_of("nodes")) == ["node state free GPUs GPU type CPUs, memory jobs", "a up 4 of 4 H100 enforced"]
    found[0] = NodeStatus("a", True, 4, "H100", 4.0)
    assert lines(stdout_of("nodes"))[0] == "node state free GPUs GPU type jobs"


def test_tenants_are_listed_with_quota_and_usage(
    service: FakeService, stdout_of: TextOf, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [TenantStatus("speech", 2.0, 0.0, 1, 3.0, 0, 0.0), TenantStatus("vision", 4.0, 4.0, 1, 1.0, 2, 5.0)]
    monkeypatch.setattr(service, "tenants", lambda _: found)
    assert lines(stdout_of("tenants")) == [
        "tenant quota limit GPUs used share of quota running waiting GPUs requested",
        "speech 2 – 3 ████████████████ + 1 0 0",
        "vision 4 4 1 ████ 1 2 5",
    ]
    assert [tenant["name"] for tenant in json_of("tenants")] == ["speech", "vision"]
    monkeypatch.setattr(service, "tenants", lambda _: [])
    assert stdout_of("tenants").startswith("no tenants: none is configured")


def test_users_are_listed_with_usage_share_and_weight(service: FakeService, stdout_of: TextOf, json_of: JsonOf) -> None:
    assert lines(stdout_of("users")) == [
        "user tenant running GPUs used waiting GPU hours part fair share weight",
        "ann vision 1 2 0 12.5 60% 50% 0.90",
        "bob speech 0 0 0 1.5 – – –",
    ]
    assert [(user["user"], user["weight"]) for user in json_of("users")] == [("ann", 0.9), ("bob", None)]


def test_a_token_is_created_listed_and_revoked(service: FakeService, stdout_of: TextOf, json_of: JsonOf) -> None:
    printed = stdout_of("token", "new", "dan", "--tenant", "vision").splitlines()
    assert printed[0] == "token dan (shown only once):"
    assert printed[1].startswith("rf_")
    assert "dan" in [token["name"] for token in json_of("token", "list")]
    assert lines(stdout_of("token", "list"))[-1].startswith("dan member vision dan 20")
    assert stdout_of("token", "revoke", "dan") == "token dan (member) revoked\n"
    assert "dan" not in [token["name"] for token in json_of("token", "list")]


GPUS = [
    GpuStatus("n0", 0, "H100-80GB", ["train-1"], 0.0, "", 61_000, 81_559, 97.0, 88.0, 612.0),
    GpuStatus("n0", 1, "H100-80GB", ["train-1", "b-2"], 0.25, "", 40_780, 81_559, 50.0, 61.0, 300.0),
    GpuStatus("n1", 0, "H100-80GB", [], 1.0, "", 0, 81_559, 0.0, 30.0, 70.0),
    GpuStatus("n1", 1, "H100-80GB", [], 0.0, "ECC errors"),
]


def test_top_has_a_line_for_each_gpu(
    service: FakeService, stdout_of: TextOf, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "gpus", lambda _: GPUS)
    monkeypatch.setenv("COLUMNS", "80")
    printed = stdout_of("top")
    assert "\x1b" not in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert lines(printed) == [
        "here: 1.75 of 4 GPUs in use, 1 drained, 1 running, 2 waiting, policy backfill",
        "GPU memory GiB util °C W job",
        "n0:0 H100-80GB ███████▌·· 60/80 97 % 88 612 train-1 (ann)",
        "n0:1 H100-80GB █████····· 40/80 50 % 61 300 train-1 (ann), b-2, 0.25 free",
        "n1:0 H100-80GB ·········· 0/80 0 % 30 70 free",
        "n1:1 H100-80GB – – – – drained: ECC errors",
    ]
    assert [gpu["index"] for gpu in json_of("top", "--once")["gpus"]] == [0, 1, 0, 1]


def test_top_without_measurements_shows_the_jobs_on_slots(
    service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "gpus", lambda _: [GpuStatus("here", 0, "slot", ["train-1"], 0.0)])
    assert lines(stdout_of("top", "--once"))[1:] == ["GPU job", "0 slot train-1 (ann)"]


@pytest.mark.parametrize(("of_slots", "word"), [(False, "GPU"), (True, "slot")])
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("queue",), "4 of 4 GPUs free"),
        (("queue",), "train-1 1 x 2 GPUs vision"),
        (("queue",), "here (GPU 0)"),
        (("top", "--once"), "of 4 GPUs in use"),
        (("nodes",), "node state free GPUs GPU type"),
        (("why", "train-1"), "train-1, 1 x 2 GPUs, guaranteed, tenant vision"),
        (("why", "train-1"), "on here (GPU 0)"),
        (("tenants",), "GPUs used"),
        (("users",), "GPU hours"),
        (("history",), "job GPUs tenant"),
        (("drain", "here", "--gpu", "0"), "GPU 0 of node here drained"),
        (("submit", "--dry-run", "--name", "GPU-test", "--gpus", "2", "--", "a", "GPU"), "demand 2 GPUs, guaranteed"),
    ],
)
def test_resources_of_a_machine_without_gpus_are_called_slots(
    words: tuple[str, ...],
    shown: str,
    of_slots: bool,
    word: str,
    service: FakeService,
    stdout_of: TextOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = service.info
    monkeypatch.setattr(service, "info", lambda caller: msgspec.structs.replace(info(caller), slots=of_slots))
    if words == ("history",):
        service.jobs_by_id["train-1"] = msgspec.structs.replace(
            service.jobs_by_id["train-1"], state="finished", ended=NOW
        )
    printed = " ".join(stdout_of(*words).split())
    assert shown.replace("GPU", word) in printed
    if words[0] == "submit":  # names and commands are not translated
        assert "GPU-test" in printed
        assert "command a GPU" in printed


def test_errors_of_a_daemon_of_slots_call_them_slots(
    service: FakeService, error_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = service.info
    monkeypatch.setattr(service, "info", lambda caller: msgspec.structs.replace(info(caller), slots=True))

    def refuse(*_: object) -> None:
        raise Conflict("GPU 3 of node here is used")

    monkeypatch.setattr(service, "drain", refuse)
    assert error_of("drain", "here", "--gpu", "3") == "error: slot 3 of node here is used\n"


def test_a_job_is_listed_with_the_gpus_that_it_holds(service: FakeService, stdout_of: TextOf) -> None:
    before = service.jobs_by_id["train-1"]
    for state, command in (("running", ("queue",)), ("finished", ("history",))):
        service.jobs_by_id["train-1"] = msgspec.structs.replace(before, state=state, gpus=8.0, ended=NOW)
        (row,) = [line.split() for line in lines(stdout_of(*command)) if "train-1" in line]
        assert row[row.index("train-1") + 1 :][:2] == ["8", "GPUs"]


@pytest.mark.parametrize(("held", "counted"), [(0, "2 waiting, "), (8, "2 waiting, 8 held, ")])
def test_held_jobs_are_counted_in_the_titles_of_queue_and_top(
    held: int, counted: str, service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = service.info
    monkeypatch.setattr(service, "info", lambda caller: msgspec.structs.replace(info(caller), held=held))
    assert counted in stdout_of("queue")
    assert counted in stdout_of("top", "--once")


def test_drained_gpus_are_counted_in_the_title_of_the_queue(
    service: FakeService, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = service.info
    monkeypatch.setattr(service, "info", lambda caller: msgspec.structs.replace(info(caller), drained_gpus=3))
    assert "4 of 4 GPUs free, 3 drained, policy" in stdout_of("queue")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"up": True}, "up"),
        ({"up": False, "drained": True, "reason": "new disk"}, "drained: new disk"),
        ({"up": False, "drained": True}, "drained"),
        ({"up": False, "reason": "no power"}, "down: no power"),
        ({"up": True, "reason": "GPU 1 is drained: fan"}, "GPU 1 is drained: fan"),
    ],
)
def test_a_node_is_listed_as_up_down_or_drained(
    fields: dict[str, Any], state: str, service: FakeService, stdout_of: TextOf
) -> None:
    service.node = NodeStatus("here", gpus=4, gpu_type="H100", free_gpus=4.0, **fields)
    assert lines(stdout_of("nodes"))[-1].startswith(f"here {state} 4 of 4")
