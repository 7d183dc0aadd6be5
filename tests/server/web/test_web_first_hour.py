"""The first hour in a browser, beside a real daemon; every page is kept as a picture: light, dark and on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kept_pictures import keep_page
from typed_shell import Shell, daemon

TRAIN = "for n in $(seq 200); do echo step $n of 200; sleep 0.1; done"


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    with daemon(tmp_path), Shell(tmp_path) as opened:
        yield opened
        opened.run("refold cancel --all --now --yes")


def submit(page: Any, command: str, name: str, slots: int, hours: str = "") -> None:
    """Fill in the form, wait for its preview, and submit."""
    page.get_by_role("link", name="Submit a job").click()
    page.get_by_label("Command").fill(command)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Time limit, hours").fill(hours)
    page.get_by_label(re.compile("(GPUs|Slots) per instance")).fill(str(slots))
    page.get_by_text(re.compile(r"hours (in|for)")).wait_for()
    keep_page(page, f"submit-{name}")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name=re.compile(rf"^{name}-\d+$"), level=1).wait_for()


def test_jobs_are_submitted_followed_changed_and_ended_in_a_browser(page: Any, shell: Shell) -> None:
    [link] = re.findall(r"http://\S+", shell.succeed("refold open --print").words)
    page.goto(link)
    page.get_by_role("navigation").wait_for()
    keep_page(page, "overview-empty")
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    submit(page, TRAIN, "train", 3, "1")
    page.get_by_label("Details").get_by_text("for n in").wait_for()
    page.get_by_text("step 20 of 200").wait_for()
    page.get_by_label("Search the output").fill("step 2 of")
    page.get_by_text("1 of the last").wait_for()
    keep_page(page, "job-running")
    for name in ("tune-a", "tune-b"):
        page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
        submit(page, "sleep 600", name, 4)
    page.get_by_text(re.compile("Resources|free")).first.wait_for()
    keep_page(page, "job-waiting")
    page.evaluate("location.hash = '#/jobs?name=tune'")
    for action, changed in (("Hold all", "held"), ("Release all", "released"), ("Cancel all", "cancelled")):
        page.get_by_role("button", name=action).click()
        page.get_by_role("dialog").get_by_text("2 jobs?").wait_for()
        keep_page(page, action.lower().replace(" ", "-"))
        page.get_by_role("dialog").get_by_role("button", name=action).click()
        page.get_by_text(f"2 jobs {changed}").wait_for()
    for name in ("Overview", "Timeline", "Nodes", "Tenants", "What if", "Plan"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        page.wait_for_load_state("networkidle")
        keep_page(page, name.lower().replace(" ", "-"))


def test_a_job_beyond_its_time_limit_is_timed_out_and_submitted_again(page: Any, shell: Shell) -> None:
    shell.succeed("refold submit --name slow --time 1s -- sleep 60")
    shell.run("refold logs -f slow")
    [link] = re.findall(r"http://\S+", shell.succeed("refold open --print").words)
    page.goto(link)
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    page.get_by_role("button", name="Ended").click()
    page.get_by_role("row").filter(has_text="slow-1").get_by_text("Timed out").wait_for()
    keep_page(page, "jobs-ended")
    page.get_by_role("link", name="slow-1").click()
    page.get_by_role("link", name="Submit again…").click()
    page.get_by_label("Time limit, hours").fill("1")
    keep_page(page, "submit-again")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="slow-2", level=1).wait_for()
