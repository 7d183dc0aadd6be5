"""`--watch`, `--stuck` and `--endless`; and watch rules for real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.journal.files import check_replay, read_journal
from refold.policies.common.run_watch import WatchRules
from refold.simulator.registry import make_policy

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

TINY = ("--cluster", "2x4", "--gpus-per-instance", "4", "--report-every", "2s")
STUCK = ("--stuck", "0.4", "--stuck-seed", "1")
WATCH = ("--watch", "no-progress=10s,silent-too,grace=5s")


def test_stuck_jobs_keep_their_gpus_unless_watch_rules_end_them(jobs: Path, json_of: JsonOf) -> None:
    unwatched = json_of("simulate", str(jobs), *TINY, *STUCK)
    assert "jobs that never end by themselves, chosen at random: 2 stuck of 6" in unwatched["notes"]
    assert unwatched["measures"]["outcomes"]["running"] > 0
    watched = json_of("simulate", str(jobs), *TINY, *STUCK, *WATCH)
    assert watched["measures"]["outcomes"]["running"] == watched["measures"]["outcomes"]["waiting"] == 0
    assert (watched["measures"]["outcomes"]["finished"], watched["measures"]["outcomes"]["cancelled"]) == (4, 2)


def test_the_journal_header_contains_all_rules_and_the_journal_replays(
    jobs: Path, tmp_path: Path, stdout_of: TextOf
) -> None:
    path = tmp_path / "journal.jsonl"
    stdout_of("simulate", str(jobs), *TINY, *STUCK, *WATCH, "--journal", str(path))
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
            "limit_grace": None,
        }
    }
    recorded = list(entries)
    assert [end.why for entry in recorded for end in entry.ends] == ["no progress for 15 s"] * 2
    assert check_replay(header, iter(recorded), make_policy(header.policy, header.settings)) == len(recorded)
    assert "identical" in stdout_of("replay", str(path))


def test_compare_applies_watch_rules_to_every_policy(jobs: Path, tmp_path: Path, json_of: JsonOf) -> None:
    out = ("--out", str(tmp_path / "out"), "--policies", "fifo,las")
    runs = json_of("compare", str(jobs), *TINY, *STUCK, *WATCH, *out)["runs"]
    assert [run["measures"]["outcomes"]["cancelled"] for run in runs] == [2, 2]


def test_watch_rules_apply_to_a_users_policy(jobs: Path, own_policy: Path, json_of: JsonOf) -> None:
    document = json_of("simulate", str(jobs), *TINY, *STUCK, *WATCH, "--policy", str(own_policy))
    assert document["measures"]["outcomes"]["cancelled"] == 2


def test_endless_jobs_are_chosen_at_random(jobs: Path, json_of: JsonOf) -> None:
    document = json_of("simulate", str(jobs), *TINY, "--endless", "1")
    assert document["notes"][0] == "jobs that never end by themselves, chosen at random: 6 endless of 6"
    assert document["measures"]["outcomes"]["finished"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--watch", "no-progress=10m"), "--watch no-progress needs --report-every"),
        (
            ("--watch", "no-progress=10m", "--report-every", "1h"),
            "would flag every run, since runs report every 3600 s",
        ),
        (("--watch", "no-progress"), "no-progress takes a value"),
        (("--watch", "beyond-limit=1h"), "beyond-limit takes no value"),
        (("--watch", "beyond-tial=3"), "did you mean 'beyond-tail'?"),
        (("--watch", "beyond-tail=much"), "expected a factor"),
        (("--watch", "grace=5m"), "watch has no rule"),
        (("--watch", ""), "watch has no rule"),
        (("--watch", "no-progress=soon"), "'soon' is not a duration"),
        (("--watch", "beyond-limit", "--set", "watch=3"), "set it once"),
        (("--stuck-seed", "3"), "--stuck-seed needs --stuck or --endless"),
        (("--endless", "0.1"), "--endless needs --report-every"),
        (("--stuck", "0.6", "--endless", "0.6", "--report-every", "1s"), "expected shares ≥ 0 with a sum of at most 1"),
    ],
)
def test_bad_input_gives_a_one_line_error(jobs: Path, error_of: TextOf, options: tuple[str, ...], words: str) -> None:
    assert words in error_of("simulate", str(jobs), "--cluster", "2x4", *options)


def test_every_rule_can_be_given() -> None:
    from refold.cli.options import WATCH_RULE_NAMES, parse_watch_rules

    assert [rule.rstrip("=").replace("-", "_") for rule in WATCH_RULE_NAMES] == list(WatchRules.__struct_fields__)
    text = "no-progress=10m, silent-too,beyond-limit,beyond-tail=2.5,tail-at-least=2h,end-beyond-tail,grace=30s,per-job"
    assert WatchRules.from_settings(parse_watch_rules(f"{text},limit-grace=1m")) == WatchRules(
        600.0, True, True, 2.5, 7200.0, True, 30.0, True, 60.0
    )


JOBS = """
- {name: hangs, run: 'exec sleep 1000', time_limit: 500ms}
- {name: other, run: 'sleep 0.2', time_limit: 1h}
- {name: next, run: 'true', gpus: 2}
"""


def test_a_process_beyond_its_time_limit_is_flagged_and_ended_and_others_continue(
    tmp_path: Path, invoke: Invoke
) -> None:
    path, out = tmp_path / "jobs.yaml", tmp_path / "out"
    path.write_text(JOBS)
    options = ("--slots", "2", "--out", str(out), "--watch", "beyond-limit,grace=500ms", "--json")
    result = invoke("run", str(path), *options)
    assert result.exit_code == 1  # not all have finished
    states = {job["job"]: job["state"] for job in json.loads(result.stdout)["jobs"]}
    assert states == {"hangs": "timed out", "other": "finished", "next": "finished"}
    header, entries = read_journal(out / "journal.jsonl")
    recorded = list(entries)
    [(flagged_at, flag)] = [(entry.now, flag) for entry in recorded for flag in entry.flags]
    [(ended_at, end)] = [(entry.now, end) for entry in recorded for end in entry.ends]
    assert (flag.job, end.job) == ("hangs", "hangs")
    assert flag.why.endswith("beyond its time limit of 0.5 s; will be ended in 0.5 s")
    assert end.why.endswith("beyond its time limit of 0.5 s")
    assert ended_at - flagged_at >= 0.5
    assert f"hangs  warning: {flag.why}" in result.stderr
    assert f"hangs  stopping ({end.why})" in result.stderr
    assert check_replay(header, iter(recorded), make_policy(header.policy, header.settings)) == len(recorded)


def test_no_progress_is_rejected_because_commands_cannot_report_progress(tmp_path: Path, error_of: TextOf) -> None:
    (tmp_path / "jobs.yaml").write_text(JOBS)
    options = ("--slots", "2", "--out", str(tmp_path / "out"))
    message = error_of("run", str(tmp_path / "jobs.yaml"), *options, "--watch", "no-progress=10m")
    assert "--watch no-progress needs progress reports, which `refold run` does not support" in message
