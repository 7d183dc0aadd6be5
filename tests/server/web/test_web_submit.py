"""Submitting jobs in the web UI, and changing many at once: clicks, keys, roles, and what axe finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_service import MEMBER, OWNER, READER, FakeServer, FakeService, serve
from msgspec.structs import replace
from web_browser import sign_in

from refold.client.api.submissions import Submission


@pytest.fixture
def served() -> Iterator[FakeServer]:
    service = FakeService()
    for name in ("train", "tune", "tune"):
        service.add(Submission(name, ["true"], steps=100))
    service.start("train-1")
    with serve(service) as server:
        yield server


def states(served: FakeServer) -> dict[str, str]:
    return {name: job.state for name, job in served.service.jobs_by_id.items()}


def test_a_job_is_previewed_while_it_is_typed_and_submitted(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, MEMBER, "jobs")
    page.get_by_role("link", name="Submit a job").click()
    page.get_by_label("Command").fill("python -u train.py --lr 1e-4 | tee log")
    page.get_by_label("Time limit, hours").fill("3")
    page.get_by_label("GPUs per instance").fill("2")
    page.get_by_text("at most 6 GPU hours in 3 h").wait_for()
    page.get_by_label("GPUs per instance").fill("64")
    page.get_by_text("does not fit this cluster").wait_for()
    page.get_by_label("GPUs per instance").fill("2")
    with page.expect_request("**/api/v1/jobs") as sent:
        page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="train-4", level=1).wait_for()
    body = sent.value.post_data_json
    assert body.pop("request")
    assert body == {
        "name": "train",
        "command": ["sh", "-c", "python -u train.py --lr 1e-4 | tee log"],
        "gpus": 2,
        "instances": 1,
        "job_class": "guaranteed",
        "folder": "",
        "time_limit": 3 * 3600,
    }


def test_a_job_is_submitted_again_with_changes(page: Any, served: FakeServer) -> None:
    job = served.service.jobs_by_id["train-1"]
    launch: dict[str, Any] = {"command": ["python", "it's.py"], "folder": "/work", "variables": ["SEED"]}
    served.service.jobs_by_id["train-1"] = replace(job, **launch, requested_gpus=2.0, time_limit=7200.0)
    sign_in(page, served.address, OWNER, "jobs/train-1")
    page.get_by_role("link", name="Submit again…").click()
    page.get_by_text("Not copied: the environment variables SEED.").wait_for()
    assert page.get_by_label("Command").input_value() == "python 'it'\\''s.py'"
    assert page.get_by_label("Folder").input_value() == "/work"
    page.get_by_label("GPUs per instance").fill("1")
    with page.expect_request("**/api/v1/jobs") as sent:
        page.get_by_role("button", name="Submit", exact=True).click()
    body = sent.value.post_data_json
    assert (body["command"], body["gpus"], body["time_limit"]) == (["python", "it's.py"], 1, 7200)


def test_what_is_wrong_with_a_job_is_shown_and_it_can_be_corrected(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, OWNER, "submit")
    page.get_by_label("Command").fill("true")
    page.get_by_label("Name").fill("two words")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("alert").get_by_text("name").wait_for()
    page.get_by_label("Name").fill("two-words")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="two-words-4", level=1).wait_for()


def test_listed_jobs_are_held_released_and_cancelled_together(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, MEMBER, "jobs?name=tune")
    page.get_by_role("table", name="Queue").get_by_role("link", name="tune-3").wait_for()
    for action, state, changed in (
        ("Hold all", "held", "2 jobs held"),
        ("Release all", "waiting", "2 jobs released"),
        ("Cancel all", "cancelled", "2 jobs cancelled"),
    ):
        page.get_by_role("button", name=action).click()
        page.get_by_role("dialog").get_by_text("2 jobs?").wait_for()
        page.get_by_role("dialog").get_by_role("button", name=action).click()
        page.get_by_text(changed).wait_for()
        assert states(served) == {"train-1": "running", "tune-2": state, "tune-3": state}


def test_readers_can_neither_submit_nor_change_jobs(page: Any, served: FakeServer) -> None:
    sign_in(page, served.address, READER, "jobs")
    page.get_by_role("table", name="Queue").get_by_role("link", name="tune-3").wait_for()
    assert page.get_by_role("link", name="Submit a job").count() == 0
    assert page.get_by_role("button", name="Cancel all").count() == 0


def test_a_job_is_submitted_with_the_keyboard_alone_and_axe_finds_nothing_serious(
    page: Any, served: FakeServer
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    sign_in(page, served.address, OWNER, "submit")
    page.get_by_label("Command").focus()
    page.keyboard.type("echo hello")
    page.get_by_text("GPU hours").first.wait_for()
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    for _ in range(8):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="echo-4", level=1).wait_for()
