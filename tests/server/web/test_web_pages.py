"""The pages of the web UI in a real browser: clicks, forms, live updates, roles, and hostile names and output."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_service import MEMBER, OTHER, OWNER, READER, FakeServer, FakeService, serve
from msgspec.structs import replace
from web_browser import sign_in

from refold.client.api import V1
from refold.client.api.submissions import Submission
from refold.client.client import Client

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture
def served() -> Iterator[FakeServer]:
    service = FakeService()
    for name in ("train", "tune"):
        service.add(Submission(name, ["true"], steps=100))
    service.start("train-1")
    service.write_output("train-1", "epoch 1\n")
    with serve(service) as server:
        yield server


def state_of(served: FakeServer, job: str) -> str:
    return served.service.jobs_by_id[job].state


def open_job(page: Any, served: FakeServer, token: str, job: str) -> None:
    sign_in(page, served.address, token, f"jobs/{job}")
    page.get_by_role("heading", name=job, level=1).wait_for()


# Sign in and out


def test_a_wrong_token_is_named_and_the_right_one_opens_the_overview(page: Any, served: FakeServer) -> None:
    page.goto(served.address)
    page.get_by_label("Access token").fill("rf_guessed")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("unknown token").wait_for()
    page.get_by_label("Access token").fill(OWNER)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="train-1").first.wait_for()
    page.reload()  # the cookie is kept
    page.get_by_role("link", name="train-1").first.wait_for()


def test_a_one_time_link_signs_in_once_and_leaves_no_trace_in_the_address(
    page: Any, browser: Any, served: FakeServer
) -> None:
    with Client(served.address, MEMBER) as client:
        code = client.sign_in_link().url
    page.goto(served.address + code)
    page.get_by_role("link", name="train-1").first.wait_for()
    assert page.url == f"{served.address}/#/"
    other = browser.new_context().new_page()
    other.goto(served.address + code)
    other.get_by_text("the link has been used").wait_for()
    other.context.close()


def test_signing_out_leads_to_the_sign_in_page(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.reload()
    page.get_by_role("heading", name="Sign in").wait_for()


def test_a_session_that_ends_elsewhere_leads_to_the_sign_in_page(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, MEMBER)
    page.get_by_role("link", name="train-1").first.wait_for()
    tokens = served.service.stored_tokens
    served.call(tokens.pop, next(key for key, stored in tokens.items() if stored.name == "member"))
    page.get_by_role("link", name="Jobs").click()
    page.get_by_text("The session has ended").wait_for()


# Live


def test_a_job_that_is_submitted_and_started_elsewhere_appears(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER)
    running = page.get_by_role("table", name="Running")
    running.get_by_role("link", name="train-1").wait_for()
    served.call(served.service.add, Submission("late", ["true"]))
    page.get_by_role("table", name="Queue").get_by_role("link", name="late-3").wait_for()
    served.call(served.service.start, "late-3")
    running.get_by_role("link", name="late-3").wait_for()
    page.locator(".activity").get_by_text("submitted").first.wait_for()


def test_the_page_says_that_the_daemon_is_gone_and_continues_when_it_is_back(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER)
    page.get_by_text("Live", exact=True).wait_for()
    page.context.set_offline(True)
    served.call(served.service.event_stream.close)
    page.get_by_text("Offline, trying again").wait_for()
    page.context.set_offline(False)
    served.call(setattr, served.service.event_stream, "_closed", False)
    page.get_by_text("Live", exact=True).wait_for()


# Jobs


def test_searching_finds_jobs_by_a_part_of_their_name(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "jobs")
    found = page.get_by_role("table", name="Queue").get_by_role("link", name="tune-2")
    found.wait_for()
    page.get_by_label("Search jobs").fill("nothing")
    page.get_by_text("No job matches.").wait_for()
    page.get_by_label("Search jobs").fill("un")
    found.wait_for()


def test_ended_jobs_are_listed_apart(page: Any, served: FakeServer) -> None:
    served.call(served.service.end, "train-1", "failed", "exit status 3")
    sign_in(page, served.address, OWNER, "jobs")
    page.get_by_role("button", name="Ended").click()
    row = page.get_by_role("row").filter(has_text="train-1")
    row.get_by_text("Failed").wait_for()
    row.get_by_text("exit status 3").wait_for()


def test_a_job_shows_what_it_runs_to_those_who_may_read_it(page: Any, served: FakeServer) -> None:
    launch: dict[str, Any] = {"command": ["python", "train.py", "--name", "it's"], "folder": "/data/ann"}
    job = served.service.jobs_by_id["train-1"]
    served.service.jobs_by_id["train-1"] = replace(job, **launch, variables=["DATA", "SEED"])
    open_job(page, served, OWNER, "train-1")
    details = page.get_by_label("Details")
    details.get_by_text("python train.py --name 'it'\\''s'").wait_for()
    details.get_by_text("/data/ann").wait_for()
    details.get_by_text("DATA, SEED").wait_for()


def test_output_is_searched_and_downloaded(page: Any, served: FakeServer) -> None:
    text = "".join(f"step {number} of 20000\n" for number in range(20_000)) + "\x1b[31mloss is nan\x1b[0m\n"
    served.service.output["train-1"] = text
    open_job(page, served, OWNER, "train-1")
    output = page.get_by_role("region", name="Output").locator("pre")
    page.get_by_label("Search the output").fill("NaN")
    page.get_by_text("1 of the last").wait_for()
    assert output.inner_text() == "loss is nan"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "train-1.log"
    assert Path(download.value.path()).read_text() == text


def test_cancelling_asks_first(page: Any, served: FakeServer) -> None:
    open_job(page, served, OWNER, "train-1")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep as it is").click()
    assert state_of(served, "train-1") == "running"
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_label("Kill it at once").check()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    page.get_by_text("Cancelled", exact=True).wait_for()
    assert state_of(served, "train-1") == "cancelled"
    assert served.service.killed == ["train-1"]


def test_a_waiting_job_is_held_and_released(page: Any, served: FakeServer) -> None:
    open_job(page, served, MEMBER, "tune-2")
    page.get_by_role("button", name="Hold").click()
    page.get_by_role("dialog").get_by_role("button", name="Hold").click()
    page.get_by_role("button", name="Release").click()
    assert state_of(served, "tune-2") == "held"
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    page.get_by_role("button", name="Hold").wait_for()
    assert state_of(served, "tune-2") == "waiting"


def test_a_refused_change_is_explained_in_the_dialog(page: Any, served: FakeServer) -> None:
    open_job(page, served, OWNER, "tune-2")
    page.get_by_role("button", name="Hold").click()
    served.call(served.service.start, "tune-2")
    page.get_by_role("dialog").get_by_role("button", name="Hold").click()
    page.get_by_role("dialog").get_by_text("cannot be held").wait_for()


@pytest.mark.parametrize(("token", "buttons"), [(READER, 0), (OTHER, 0), (MEMBER, 1), (OWNER, 1)])
def test_only_those_who_may_change_a_job_see_how(page: Any, served: FakeServer, token: str, buttons: int) -> None:
    open_job(page, served, token, "train-1")
    page.get_by_text("Running", exact=True).wait_for()
    assert page.get_by_role("button", name="Cancel job").count() == buttons


def test_output_that_another_tenant_may_not_read_is_not_shown(page: Any, served: FakeServer) -> None:
    open_job(page, served, OTHER, "train-1")
    page.get_by_text("belongs to tenant").wait_for()
    assert "epoch 1" not in page.content()


def test_the_predicted_throughput_is_shown_beside_the_measured_one(page: Any, served: FakeServer) -> None:
    served.call(partial(served.service._change, "train-1", "note", samples_per_second=64.0))
    open_job(page, served, READER, "train-1")
    facts = page.locator(".facts")
    facts.get_by_text("128 samples/s").wait_for()
    facts.get_by_text("measured: 50 % of it").wait_for()


def test_what_a_job_has_used_is_drawn_over_time(page: Any, served: FakeServer) -> None:
    open_job(page, served, READER, "train-1")
    charts = page.locator(".spark:visible")
    charts.first.wait_for()
    shown = {chart.locator(".stat-label").inner_text(): chart.locator(".figure").inner_text() for chart in charts.all()}
    assert {name: shown[name] for name in ("GPU utilisation", "CPUs in use")} == {
        "GPU utilisation": "90 %",
        "CPUs in use": "1.5",
    }
    page.get_by_role("img", name="CPUs in use: 1.5 – 3.5, 20 s").wait_for()
    line = page.get_by_role("img", name="CPUs in use").locator("polyline").get_attribute("points")
    assert [point.split(",")[0] for point in line.split()] == ["0.0", "120.0", "240.0"]


def test_what_a_job_of_another_tenant_has_used_is_not_shown(page: Any, served: FakeServer) -> None:
    open_job(page, served, OTHER, "train-1")
    page.get_by_text("belongs to tenant").wait_for()
    assert page.locator(".spark:visible").count() == 0


def test_output_is_followed(page: Any, served: FakeServer) -> None:
    open_job(page, served, OWNER, "train-1")
    page.get_by_text("epoch 1").wait_for()
    served.call(served.service.write_output, "train-1", "\x1b[32mepoch 2\x1b[0m\n10%\r20%\r30%\n")
    page.get_by_text("epoch 2").wait_for()
    assert page.locator("pre.log").inner_text() == "epoch 1\nepoch 2\n30%\n"


def test_a_job_that_does_not_exist_is_an_error(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "jobs/nope")
    page.get_by_role("alert").get_by_text("nope").first.wait_for()


def test_a_page_that_does_not_exist_is_an_error(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "constructor")
    page.get_by_text("There is no such page.").wait_for()


# Nodes, tenants, timeline


def test_an_owner_drains_and_resumes_a_node(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "nodes")
    page.get_by_role("button", name="Drain here").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("new fans")
    dialog.get_by_role("button", name="Drain").click()
    page.get_by_text("Drained: new fans").wait_for()
    assert (served.service.node.up, served.service.node.reason) == (False, "new fans")
    page.get_by_role("button", name="Resume here").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    page.get_by_text("In service", exact=True).wait_for()


def test_the_gpus_of_a_node_are_listed_with_their_readings(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "nodes/here")
    row = page.get_by_role("region", name="here").get_by_role("row").filter(has_text="train-1")
    row.wait_for()
    for text in ("97 %", "59.6 GiB", "64 °C", "610 W"):
        row.get_by_text(text).wait_for()


@pytest.mark.parametrize("token", [MEMBER, READER])
def test_only_an_owner_sees_how_to_drain(page: Any, served: FakeServer, token: str) -> None:
    sign_in(page, served.address, token, "nodes")
    page.get_by_text("In service", exact=True).wait_for()
    assert page.get_by_role("button", name="Drain").count() == 0


def test_nodes_are_searched(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "nodes")
    page.get_by_text("In service", exact=True).wait_for()
    page.get_by_label("Search nodes").fill("elsewhere")
    page.get_by_text("There are no nodes.").wait_for()


def test_tenants_and_users_are_listed_with_their_shares(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "tenants")
    user = page.get_by_role("region", name="Users").get_by_role("row").filter(has_text="ann")
    user.get_by_text("60 %").wait_for()
    user.get_by_text("50 %").wait_for()
    page.get_by_role("region", name="Tenants").get_by_role("link", name="vision").click()
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    assert page.get_by_label("Tenant").input_value() == "vision"


def test_a_click_on_the_timeline_opens_the_job_and_a_drag_zooms(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "timeline")
    canvas = page.get_by_role("application")
    page.get_by_role("application", name="Timeline: 0 past runs, 1 running").wait_for()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 60, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Reset zoom").click()
    start = 84 + (box["width"] - 84) * 6 / 9  # now, in six hours of the past and three of the future
    page.mouse.click(box["x"] + start + 20, box["y"] + 30)
    page.get_by_role("heading", name="train-1", level=1).wait_for()


GOODPUT = """async () => {
    const app = document.querySelector("script[src*='app.js']").src;
    const { describeGoodput } = await import(app.replace("app.js", "pages/timeline.js"));
    const run = (start, end, gpus, overhead, ending) => ({ start, end, overhead, ending, placement: [{ gpus }] });
    const ended = [run(0, 100, [0, 1], 10, "stopped"), run(0, 80, [2], 0, "finished"), run(0, 20, [3], 5, "failed")];
    return [describeGoodput([...ended, run(0, null, [4], 9, "")]), describeGoodput([])];
}"""


def test_goodput_is_the_gpu_time_that_became_progress(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "timeline")
    text, nothing = page.evaluate(GOODPUT)
    assert nothing == ""
    assert text == (
        "Goodput of the runs that have ended: 87 % of their GPU time became progress; 8 % went into starting and "
        "stopping, 5 % into runs that failed."
    )


# Questions


def test_what_if_compares_sizes_and_marks_the_one_that_ends_first(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "whatif")
    page.get_by_label("GPUs per instance").fill("2, 16")
    page.get_by_role("button", name="Estimate").click()
    answer = page.get_by_role("region", name="Estimates")
    answer.get_by_role("row").filter(has_text="2 GPU").get_by_text("earliest end").wait_for()
    answer.get_by_role("row").filter(has_text="16 GPU").wait_for()
    assert "what-if" not in [job.name for job in served.service.jobs_by_id.values()]


def test_the_present_queue_is_compared_under_other_policies(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "whatif")
    assert page.get_by_role("checkbox", name="refold", exact=True).is_checked()
    page.get_by_role("checkbox", name="easy").uncheck()
    page.get_by_role("checkbox", name="las").check()
    page.get_by_role("button", name="Simulate").click()
    rows = page.get_by_role("region", name="The current queue under other policies").get_by_role("row")
    rows.filter(has_text="current policy").get_by_text("10 min").wait_for()
    assert rows.filter(has_text="las").get_by_text("−2 min").count() == 1  # 100 s less
    starts = page.get_by_role("region", name="Starts of waiting jobs")
    starts.get_by_role("link", name="tune-2").wait_for()
    assert starts.get_by_role("columnheader").all_inner_texts() == ["Job", "backfill (current policy)", "las", "refold"]


def test_what_preemption_costs_and_brings_is_shown(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "whatif")
    page.get_by_role("button", name="Compare rules").click()
    rows = page.get_by_role("region", name="Costs and benefits of preemption").get_by_role("row")
    rows.filter(has_text="those that consent (48)").get_by_text("50 min", exact=True).wait_for()
    assert rows.filter(has_text="all 120 jobs").get_by_text("8 h 20 min").count() == 1
    assert rows.filter(has_text="none").get_by_text("18 h").count() == 1


def test_without_waiting_jobs_there_is_nothing_to_compare(page: Any, served: FakeServer) -> None:
    served.call(served.service.end, "tune-2", "cancelled", "")
    sign_in(page, served.address, READER, "whatif")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_text("No job waits").wait_for()


def test_the_planner_shows_plans_and_says_what_is_wrong_with_a_question(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "plan")
    page.get_by_label("Model").select_option("bert-large")
    page.get_by_label("GPUs", exact=True).fill("2")
    page.get_by_role("button", name="Find plans").click()
    page.get_by_role("heading", name="bert-large on 2 × A100-80GB").wait_for()
    page.get_by_role("region", name="Plan").get_by_role("row").nth(1).wait_for()
    page.get_by_label("Nodes").fill("4")
    page.get_by_role("button", name="Find plans").click()
    page.get_by_text("nodes is 4, expected at most 2").wait_for()


def test_the_planner_tries_expert_and_context_parallelism(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "plan")
    page.get_by_label("Model", exact=True).select_option("mixtral-8x7b")
    page.get_by_label("GPUs", exact=True).fill("32")
    page.get_by_role("button", name="Find plans").click()
    plans = page.get_by_role("region", name="Plan").locator("tbody code")
    plans.filter(has_text="EP").first.wait_for()
    page.get_by_label("Context parallelism").fill("2")
    page.get_by_label("Expert parallelism").fill("4")
    page.get_by_role("button", name="Find plans").click()
    plans.filter(has_text="CP2").first.wait_for()
    assert all("CP2" in plan and "EP4" in plan for plan in plans.all_inner_texts())


# Hostile names and output


def test_markup_in_names_messages_events_and_output_stays_text(page: Any, served: FakeServer) -> None:
    from msgspec.structs import replace

    service = served.service
    status = replace(
        service.jobs_by_id["train-1"], id=HOSTILE, name=HOSTILE, user=HOSTILE, message=HOSTILE, warning=HOSTILE
    )
    service.jobs_by_id[HOSTILE] = status
    service.events_by_job[HOSTILE] = service.events_by_job["train-1"]
    service.output[HOSTILE] = HOSTILE
    served.call(service._change, HOSTILE, "note")
    sign_in(page, served.address, OWNER)
    page.get_by_role("link", name=HOSTILE).first.click()
    page.get_by_role("heading", name=HOSTILE, level=1).wait_for()
    page.locator("pre.log").get_by_text(HOSTILE).wait_for()
    assert page.locator("#app img").count() == 0
    service.jobs_by_id[HOSTILE] = replace(status, state="waiting")
    page.evaluate("location.hash = '#/whatif'")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_role("region", name="Starts of waiting jobs").get_by_role("link", name=HOSTILE).wait_for()
    assert page.locator("#app img").count() == 0
    assert "hacked" not in page.title().replace(HOSTILE, "")


KEPT = ("state", "kind", "role", "job_class", "ending", "command")
"""What is not free text in the API's answers, or has to fit a form."""


def with_hostile_texts(value: Any) -> Any:
    """Return an answer of the API with markup in the place of every text."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [with_hostile_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in KEPT else with_hostile_texts(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "path", ["", "jobs", "jobs/train-1", "jobs/no-such-job", "timeline", "nodes", "tenants", "whatif", "submit"]
)
def test_markup_in_every_text_of_the_api_stays_text(path: str, page: Any, served: FakeServer) -> None:
    """Names of tenants, GPUs, nodes and racks, reasons, errors, output: whatever a page shows of an answer."""

    def poison(route: Any) -> None:
        if "/events" in route.request.url or "/session" in route.request.url:
            route.continue_()
            return
        answer = route.fetch()
        route.fulfill(response=answer, json=with_hostile_texts(answer.json()))

    sign_in(page, served.address, OWNER)
    page.route(f"**{V1}/**", poison)
    page.evaluate("at => { location.hash = '#/' + at }", path)
    page.reload()
    page.get_by_text(HOSTILE).first.wait_for(state="attached")
    assert page.locator("#app img, #app [onerror]").count() == 0
    assert "hacked" not in page.title().replace(HOSTILE, "")
    page.unroute_all(behavior="ignoreErrors")


# Keyboard and colours


def test_the_map_is_used_with_the_keyboard(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER)
    canvas = page.get_by_role("application")
    canvas.wait_for()
    canvas.focus()
    page.locator("[aria-live=polite]").filter(has_text="here, GPU 0").first.wait_for(state="attached")
    page.keyboard.press("ArrowRight")
    page.locator("[aria-live=polite]").filter(has_text="here, GPU 1").first.wait_for(state="attached")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="train-1", level=1).wait_for()


def test_the_map_speaks_if_it_has_the_focus_before_the_gpus_arrive(page: Any, served: FakeServer) -> None:
    held: list[Any] = []
    page.route("**/gpus*", lambda route: held.append(route))  # noqa: PLW0108
    sign_in(page, served.address, OWNER)
    canvas = page.get_by_role("application")
    canvas.wait_for()
    canvas.focus()
    assert held
    for route in held:
        route.continue_()
    page.unroute("**/gpus*")
    page.locator("[aria-live=polite]").filter(has_text="here, GPU 0").first.wait_for(state="attached")


def test_colours_can_be_chosen_and_are_remembered(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER)
    page.get_by_role("button", name="Colours: Match system").click()
    page.get_by_role("button", name="Colours: Light").click()
    page.get_by_role("button", name="Colours: Dark").wait_for()
    page.reload()
    page.get_by_role("button", name="Colours: Dark").wait_for()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
