"""Values of options: policies with placements and settings, watch rules, overheads, options that need each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_service import FakeServer
from typer.testing import CliRunner

from refold.cli import options
from refold.cli.commands import cancel
from refold.cli.experiment_options import CostOptions, FaultOptions, NeverEndingOptions, OverheadOptions
from refold.cli.inputs.policy_choice import check_spread_power, parse_policies, parse_policy, policy_label
from refold.cli.lazy_group import app
from refold.cli.options import check_watch, make_folder, parse_settings, parse_watch_rules, require_option
from refold.cli.policy_guard import PolicyFailed, make_guarded_policy
from refold.client.api.submissions import Submission
from refold.core import JobSubmitted, Scheduler
from refold.errors import BadFile, BadInput, RefoldError
from refold.simulator import Costs
from refold.testing import make_cluster, make_job


def message_of(call: Callable[[], object], kind: type[RefoldError] = BadInput) -> str:
    """Return the message of the error that a call must raise."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# Settings


def test_values_of_settings_are_json_or_else_text() -> None:
    given = ["a=1", "b=1.5", "c=true", 'd="1"', "e=fgd", "f=", "g=a=b", "h=[1, 2]", "i=null", "j=1h30m"]
    assert parse_settings(given) == {
        "a": 1, "b": 1.5, "c": True, "d": "1", "e": "fgd", "f": "", "g": "a=b", "h": [1, 2], "i": None, "j": "1h30m",
    }  # fmt: skip


def test_placement_seed_and_watch_are_settings_too() -> None:
    settings = parse_settings(["x=1"], "fgd", 7, "beyond-limit")
    assert list(settings) == ["watch", "placement", "seed", "x"]
    assert (settings["placement"], settings["seed"], settings["watch"]["beyond_limit"]) == ("fgd", 7, True)
    assert parse_settings(None) == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["seed"], "--set seed: expected KEY=VALUE, such as --set threshold_gpu_seconds=600"),
        (["=1"], "--set =1: expected KEY=VALUE, such as --set threshold_gpu_seconds=600"),
        (["a=1", "a=2"], "--set a=2: a is already set to 1; set it once"),
        (["seed=2"], "--set seed=2: seed is already set to 7; set it once"),
    ],
)
def test_a_bad_setting_is_quoted_in_the_error(given: list[str], problem: str) -> None:
    assert message_of(lambda: parse_settings(given, seed=7)) == problem


# Watch rules


def test_watch_rules_are_flags_durations_and_factors() -> None:
    rules = parse_watch_rules(" no-progress=10m, beyond-limit,,beyond-tail=3,grace=30s ")
    assert (rules["no_progress"], rules["beyond_limit"], rules["beyond_tail"], rules["grace"]) == (
        600.0,
        True,
        3.0,
        30.0,
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no-progress", "--watch no-progress: no-progress takes a value, such as no-progress=10"),
        ("beyond-limit=1h", "--watch beyond-limit=1h: beyond-limit takes no value"),
        ("beyond-tail=far", "--watch beyond-tail=far: expected a factor, such as beyond-tail=3"),
        ("noprogress=1h", "unknown watch rule 'noprogress'; did you mean 'no-progress'?"),
        ("no-progress=soon", "'soon' is not a duration"),
    ],
)
def test_a_bad_watch_rule_is_explained(text: str, problem: str) -> None:
    assert message_of(lambda: parse_watch_rules(text), RefoldError).startswith(problem)


def test_missing_progress_can_only_be_noticed_if_runs_report_more_often() -> None:
    rules = parse_watch_rules("no-progress=60s")
    check_watch(None, None)
    check_watch(parse_watch_rules("beyond-limit"), None)
    check_watch(rules, 59.0)
    assert message_of(lambda: check_watch(rules, None)) == (
        "--watch no-progress needs --report-every: the progress report interval, such as 1m"
    )
    assert message_of(lambda: check_watch(rules, 60.0)) == (
        "--watch no-progress=60s would flag every run, since runs report every 60 s: "
        "increase no-progress or decrease --report-every"
    )


# Policies


def described(
    policies: list[str], placements: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    return [(one.name, dict(one.settings)) for one in parse_policies(policies, placements, given or {})]


def test_every_policy_is_combined_with_every_placement() -> None:
    assert described(["fifo", "las"], ["fgd", "tetris"]) == [
        ("fifo/fgd", {"placement": "fgd"}),
        ("fifo/tetris", {"placement": "tetris"}),
        ("las/fgd", {"placement": "fgd"}),
        ("las/tetris", {"placement": "tetris"}),
    ]


def test_a_policy_that_is_named_twice_is_compared_once() -> None:
    assert described(["fifo", "fifo/fgd", "fifo"]) == [("fifo", {}), ("fifo/fgd", {"placement": "fgd"})]


def test_a_setting_of_one_policy_overrides_that_of_all() -> None:
    assert described(["fifo", "sjf"], given={"seed": 1, "sjf.seed": 2}) == [("fifo", {"seed": 1}), ("sjf", {"seed": 2})]


def test_policies_of_equal_names_are_labelled_by_their_files(own_policy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(own_policy.read_text())
    assert [name for name, _ in described(["fifo", str(own_policy), str(other)])] == [
        "fifo",
        str(own_policy),
        str(other),
    ]
    assert [name for name, _ in described([str(own_policy)])] == ["mine"]


def test_oracles_are_marked() -> None:
    assert [one.oracle for one in parse_policies(["fifo", "srtf"], [], {})] == [False, True]


@pytest.mark.parametrize(
    ("policies", "placements", "given", "problem"),
    [
        (["fifo/fgd"], ["tetris"], {}, "fifo/fgd and --placements both select a placement: leave one of them out"),
        (["fifo/fgd"], [], {"placement": "tetris"}, "fifo/fgd and placement=tetris both select a placement"),
        (["fifo"], ["fgd"], {"fifo.placement": "x"}, "--set fifo.placement and --placements both select a placement"),
        (["fifo"], [], {"las.seed": 1}, "unknown policy in --set las.seed: 'las'"),
        (["fifo"], [], {"seed": 1.5}, "fifo: seed is 1.5, expected a whole number"),
        (["fifo"], [], {"seed": True}, "fifo: seed is True, expected a whole number"),
        (["fifo"], [], {"defragment": 1}, "fifo: defragment is 1, expected true or false"),
        (["fifo"], [], {"placement": 3}, "fifo: placement is 3, expected a name"),
        (["fifo"], [], {"restart_seconds": "soon"}, "fifo: restart_seconds is 'soon', expected a number or a duration"),
        (["las"], [], {"threshold_gpu_seconds": float("inf")}, "las: threshold_gpu_seconds is inf, expected a number"),
        (["fifo/fdg"], [], {}, "did you mean 'fgd'?"),
        (["fifi"], [], {}, "did you mean 'fifo'?"),
    ],
)
def test_a_bad_choice_of_policies_is_rejected_before_the_simulation(
    policies: list[str], placements: list[str], given: Mapping[str, Any], problem: str
) -> None:
    assert problem in message_of(lambda: parse_policies(policies, placements, given), RefoldError)


def test_durations_may_be_given_for_settings_in_seconds() -> None:
    assert parse_policy("fifo", {"restart_seconds": "1m30s"}).settings == {"restart_seconds": 90.0}
    assert parse_policy("fifo", {"restart_seconds": 5}).settings == {"restart_seconds": 5}


def test_labels_are_short() -> None:
    assert policy_label("own/mine.py", {}) == "mine"
    assert policy_label("las", {"placement": "fgd", "seed": 3}) == "las/fgd"


@pytest.mark.parametrize(
    ("policies", "placements", "given", "conflict"),
    [
        (["fifo"], {"--placement": "fgd"}, {}, "--placement fgd"),
        (["fifo"], {}, {"las.placement": "fgd"}, "--set las.placement=fgd"),
        (["las/fgd"], {}, {}, "las/fgd"),
    ],
)
def test_power_is_spread_by_one_placement(
    policies: list[str], placements: Mapping[str, str | None], given: Mapping[str, Any], conflict: str
) -> None:
    check_spread_power(["fifo"], {"--placement": None}, {"seed": 1})
    assert message_of(lambda: check_spread_power(policies, placements, given)) == (
        f"--spread-power and {conflict} both select a placement (genetic-power and another): leave one of them out"
    )


def test_power_cannot_be_spread_for_a_policy_without_a_placement() -> None:
    problem = message_of(lambda: check_spread_power(["rubick"], {}, {}))
    assert problem.startswith("--spread-power selects a placement, but rubick places jobs itself; policies that take")
    assert "fifo" in problem


# A user's policy


def own_policy_that(folder: Path, body: str, init: str = "pass") -> Path:
    path = folder / "mine.py"
    path.write_text(
        f"class Mine:\n    name = 'mine'\n    def __init__(self):\n        {init}\n"
        f"    def decide(self, view):\n        {body}\n"
    )
    return path


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return None", "policy mine returned None, expected a Decision"),
        ("return [1]", "policy mine returned a list, expected a Decision"),
        ("1 / 0", "policy mine failed"),
        ("raise SystemExit(3)", "policy mine failed"),
    ],
)
def test_a_policy_that_misbehaves_is_reported_with_its_own_lines_only(body: str, problem: str, tmp_path: Path) -> None:
    scheduler = Scheduler(make_cluster(1), make_guarded_policy(str(own_policy_that(tmp_path, body)), {}))
    with pytest.raises(PolicyFailed) as caught:
        scheduler.step(0.0, [JobSubmitted(make_job())])
    assert str(caught.value).startswith(problem)
    assert "refold/" not in caught.value.frames.replace(str(tmp_path), "")
    assert ("mine.py" in caught.value.frames) == ("failed" in problem)


def test_a_policy_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    path = str(own_policy_that(tmp_path, "pass", init="raise KeyError('key')"))
    assert message_of(lambda: make_guarded_policy(path, {}), PolicyFailed).startswith(f"cannot create policy {path}")


# Overheads, and options that need each other


def test_a_restart_costs_as_much_as_a_start_unless_it_is_given() -> None:
    assert OverheadOptions().parse() == Costs()
    assert OverheadOptions(start_cost="1m").parse() == Costs(start=60.0, restart=60.0)
    assert OverheadOptions("1m", "10s", "0").parse() == Costs(start=60.0, stop=10.0, restart=0.0)
    assert CostOptions("1m", None, None, "10s", "1h", "30s").parse() == Costs(
        start=60.0, restart=60.0, live=10.0, checkpoint_every=3600.0, report_every=30.0
    )


def test_stops_and_restarts_of_simulations_cost_time_unless_set_to_0() -> None:
    assert CostOptions().parse() == Costs(stop=30.0, restart=120.0)
    assert CostOptions(stop_cost="0", restart_cost="0").parse() == Costs()


def test_options_about_faults_need_faults() -> None:
    FaultOptions().check(None)
    FaultOptions("30d", "1h", 3).check("1h")
    why = "needs --faults: the mean time between faults per node, such as --faults 30d"
    assert message_of(lambda: FaultOptions(repair="1h").check(None)) == f"--repair {why}"
    assert message_of(lambda: FaultOptions(fault_seed=0).check(None)) == f"--fault-seed {why}"
    assert message_of(lambda: FaultOptions().check("1h")) == f"--checkpoint-every {why}"


def test_endless_jobs_need_progress_reports() -> None:
    NeverEndingOptions(stuck=0.1, stuck_seed=1).check(None)
    NeverEndingOptions(endless=0.1, stuck_seed=1).check("1m")
    assert "--endless needs --report-every" in message_of(lambda: NeverEndingOptions(endless=0.1).check(None))
    assert "--stuck-seed needs --stuck or" in message_of(lambda: NeverEndingOptions(stuck_seed=1).check("1m"))
    assert "--stuck-seed needs --stuck or" in message_of(lambda: NeverEndingOptions(0.0, 0.0, 1).check("1m"))


def test_the_first_option_without_effect_is_named() -> None:
    require_option("--a", {"--b": None}, "why")
    assert message_of(lambda: require_option("--a", {"--b": None, "--c": 0, "--d": 1}, "why")) == "--c needs --a: why"


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b").is_dir()
    assert make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    problem = message_of(lambda: make_folder(tmp_path / "file" / "a"), BadFile)
    assert problem == f"{tmp_path / 'file' / 'a'}: cannot create the folder: Not a directory"


# Completion


def test_names_are_completed_within_lists() -> None:
    assert options._complete_policy_lists("fifo,sr") == ["fifo,srtf"]
    assert options._complete_policies("fifo/fg") == ["fifo/fgd"]
    assert options._complete_policies("no-such/fg") == []
    assert options._complete_placement_lists("fgd,tet") == ["fgd,tetris"]
    assert options._complete_watch_rules("beyond-limit,gr") == ["beyond-limit,grace="]
    assert options.complete_formats("s") == ["sacct"]


def test_files_are_completed_beside_shipped_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo.csv", "days.csv", "other.csv"):
        Path(name).touch()
    assert options._complete_traces("d") == ["demo", "days.csv", "demo.csv"]
    assert options._complete_traces("o") == []  # the shell completes files itself


# Confirmation


@pytest.fixture
def two_jobs(served: FakeServer) -> FakeServer:
    for name in ("a", "b"):
        served.call(served.service.add, Submission(name, ["true"]))
    return served


@pytest.mark.parametrize(
    ("answer", "status", "states"), [("y", 0, {"cancelled"}), ("n", 1, {"waiting"}), ("", 1, {"waiting"})]
)
def test_cancelling_all_jobs_asks_for_confirmation_on_a_terminal(
    answer: str, status: int, states: set[str], two_jobs: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(cancel, "sys", type("sys", (), {"stdin": Answers(), "stdout": sys.stdout}))
    result = CliRunner().invoke(app, ["cancel", "--all"], input=f"{answer}\n")
    assert result.exit_code == status
    assert result.stdout.startswith("cancel 2 jobs (a-1, b-2)? [y/N]: ")
    assert {job.state for job in two_jobs.service.jobs_by_id.values()} == states
