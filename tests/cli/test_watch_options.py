"""`--watch`, `--stuck` and `--endless`, as they are typed; and a watch over real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.journal.files import check_replay, read_journal
from refold.policies.common.run_watch import WatchRules
from refold.registry import make_policy

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]

TINY = ("--cluster", "2x4", "--gpus-per-instance", "4", "--report-every", "2s")
STUCK = ("--stuck", "0.4", "--stuck-seed", "1")
WATCH = ("--watch", "no-progress=10s,silent-too,grace=5s")


def test_without_a_watch_stuck_jobs_hold_their_gpus_and_with_one_they_are_ended(jobs: Path, told: Told) -> None:
    alone = told("simulate", str(jobs), *TINY, *STUCK)
    assert "of 6 jobs, 2 stuck by lot: these never end by themselves" in alone["notes"]
    assert alone["measures"]["outcomes"]["running"] > 0
    watched = told("simulate", str(jobs), *TINY, *STUCK, *WATCH)
    assert watched["measures"]["outcomes"]["running"] == watched["measures"]["outcomes"]["waiting"] == 0
    assert (watched["measures"]["outcomes"]["finished"], watched["measures"]["outcomes"]["cancelled"]) == (4, 2)


def test_the_header_of_the_journal_has_all_the_rules_and_it_replays(jobs: Path, tmp_path: Path, said: Said) -> None:
    path = tmp_path / "journal.jsonl"
    said("simulate", str(jobs), *TINY, *STUCK, *WATCH, "--journal", str(path))
    header, entries = read_journal(path)
    assert header.settings == {
        "watch": {
            "no_progress": 10.0,
            "silent_too": True,
            "beyond_limit": False,
            "beyond_tail": None,
            "tail_at_least": 3600.0,
            "end_beyond_tail": False,
            "grace": 5.0,
            "per_job": False,
        }
    }
    recorded = list(entries)
    assert [end.why for entry in recorded for end in entry.ends] == ["no progress for 15 s"] * 2
    assert check_replay(header, iter(recorded), make_policy(header.policy, header.settings)) == len(recorded)
    assert "identical" in said("replay", str(path))


def test_compare_watches_every_policy(jobs: Path, tmp_path: Path, told: Told) -> None:
    out = ("--out", str(tmp_path / "out"), "--policies", "fifo,las")
    runs = told("compare", str(jobs), *TINY, *STUCK, *WATCH, *out)["runs"]
    assert [run["measures"]["outcomes"]["cancelled"] for run in runs] == [2, 2]


def test_a_policy_of_ones_own_can_be_watched(jobs: Path, mine: Path, told: Told) -> None:
    document = told("simulate", str(jobs), *TINY, *STUCK, *WATCH, "--policy", str(mine))
    assert document["measures"]["outcomes"]["cancelled"] == 2


def test_endless_jobs_are_drawn_too(jobs: Path, told: Told) -> None:
    document = told("simulate", str(jobs), *TINY, "--endless", "1")
    assert document["notes"][0] == "of 6 jobs, 6 endless by lot: these never end by themselves"
    assert document["measures"]["outcomes"]["finished"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--watch", "no-progress=10m"), "--watch no-progress needs --report-every"),
        (
            ("--watch", "no-progress=10m", "--report-every", "1h"),
            "would flag every run, since they report every 3600 s",
        ),
        (("--watch", "no-progress"), "no-progress takes a value"),
        (("--watch", "beyond-limit=1h"), "beyond-limit takes no value"),
        (("--watch", "beyond-tial=3"), "did you mean 'beyond-tail'?"),
        (("--watch", "beyond-tail=much"), "expected how many times the tail"),
        (("--watch", "grace=5m"), "a watch needs a rule"),
        (("--watch", ""), "a watch needs a rule"),
        (("--watch", "no-progress=soon"), "'soon' is not a duration"),
        (("--watch", "beyond-limit", "--set", "watch=3"), "say it once"),
        (("--stuck-seed", "3"), "--stuck-seed needs --stuck or --endless"),
        (("--endless", "0.1"), "--endless needs --report-every"),
        (("--stuck", "0.6", "--endless", "0.6", "--report-every", "1s"), "shares of jobs are 0 to 1 together"),
    ],
)
def test_what_cannot_be_is_told(jobs: Path, refuses: Said, options: tuple[str, ...], words: str) -> None:
    assert words in refuses("simulate", str(jobs), "--cluster", "2x4", *options)


def test_every_rule_can_be_asked_for() -> None:
    from refold.cli.options import WATCH_RULES, rules_from

    assert [rule.rstrip("=").replace("-", "_") for rule in WATCH_RULES] == list(WatchRules.__struct_fields__)
    text = "no-progress=10m, silent-too,beyond-limit,beyond-tail=2.5,tail-at-least=2h,end-beyond-tail,grace=30s,per-job"
    assert WatchRules.of(rules_from(text)) == WatchRules(600.0, True, True, 2.5, 7200.0, True, 30.0, True)


LIST = """
- {name: hangs, run: 'exec sleep 1000', time_limit: 500ms}
- {name: other, run: 'sleep 0.2', time_limit: 1h}
- {name: next, run: 'true', gpus: 2}
"""


def test_a_process_beyond_its_limit_is_warned_of_and_ended_and_others_run_on(tmp_path: Path, typed: Typed) -> None:
    path, out = tmp_path / "jobs.yaml", tmp_path / "out"
    path.write_text(LIST)
    options = ("--slots", "2", "--out", str(out), "--watch", "beyond-limit,grace=500ms", "--json")
    result = typed("run", str(path), *options)
    assert result.exit_code == 1  # not all have finished
    states = {job["job"]: job["state"] for job in json.loads(result.stdout)["jobs"]}
    assert states == {"hangs": "cancelled", "other": "finished", "next": "finished"}
    header, entries = read_journal(out / "journal.jsonl")
    recorded = list(entries)
    [(flagged_at, flag)] = [(entry.now, flag) for entry in recorded for flag in entry.flags]
    [(ended_at, end)] = [(entry.now, end) for entry in recorded for end in entry.ends]
    assert (flag.job, end.job) == ("hangs", "hangs")
    assert flag.why.endswith("beyond its time limit of 0.5 s; ended in 0.5 s if that stays so")
    assert end.why.endswith("beyond its time limit of 0.5 s")
    assert ended_at - flagged_at >= 0.5
    assert f"hangs  warning: {flag.why}" in result.stderr
    assert f"hangs  is to stop ({end.why})" in result.stderr
    assert check_replay(header, iter(recorded), make_policy(header.policy, header.settings)) == len(recorded)


def test_commands_cannot_report_progress_yet_and_that_is_told(tmp_path: Path, refuses: Said) -> None:
    (tmp_path / "jobs.yaml").write_text(LIST)
    options = ("--slots", "2", "--out", str(tmp_path / "out"))
    told = refuses("run", str(tmp_path / "jobs.yaml"), *options, "--watch", "no-progress=10m")
    assert "--watch no-progress is about runs that report progress, which commands cannot do yet" in told
