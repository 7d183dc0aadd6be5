"""Options that several commands share are declared once, as groups that expand into the options of each command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from refold.cli.declare import with_option_groups
from refold.cli.lazy_group import CommandGroup

EXPERIMENT_OPTIONS = [
    "--format",
    "--skip-bad",
    "--gpus-per-instance",
    "--limit",
    "--gpu-types",
    "--preemption",
    "--start-cost",
    "--stop-cost",
    "--restart-cost",
    "--live-cost",
    "--checkpoint-every",
    "--report-every",
    "--report-speeds",
    "--charge",
    "--knowledge",
    "--fit",
    "--faults",
    "--repair",
    "--fault-seed",
    "--stuck",
    "--endless",
    "--stuck-seed",
    "--watch",
]


def option_table(command: str) -> dict[str, tuple[Any, ...]]:
    """Return what a user sees of each option of a command: value, range, default, help text, repetition."""
    loaded: Any = CommandGroup().commands[command]
    return {
        option.opts[0]: (
            option.metavar,
            option.type_descriptor.annotation,
            option.min,
            option.max,
            option.default,
            option.help,
            option.multiple,
            option._custom_shell_complete is not None,
        )
        for option in loaded.params
        if option.param_type_name == "option"
    }


def test_compare_and_simulate_have_the_same_options_of_an_experiment() -> None:
    compare, simulate = option_table("compare"), option_table("simulate")

    first = list(compare).index("--format")
    assert list(compare)[first : first + len(EXPERIMENT_OPTIONS)] == EXPERIMENT_OPTIONS
    assert {name: compare[name] for name in EXPERIMENT_OPTIONS} == {name: simulate[name] for name in EXPERIMENT_OPTIONS}
    only_compare = {
        "--policies",
        "--placements",
        "--processes",
        "--workers",
        "--from",
        "--since",
        "--start-estimates",
    }
    assert {name for name in compare if name not in simulate} == only_compare
    assert {name for name in simulate if name not in compare} == {"--policy", "--placement", "--journal"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("predict", ["--format", "--skip-bad", "--gpus-per-instance", "--limit"]),
        ("replay", ["--start-cost"]),
    ],
)
def test_other_commands_share_some_of_these_options(command: str, options: list[str]) -> None:
    own, shared = option_table(command), option_table("simulate")
    assert {name: own[name] for name in options} == {name: shared[name] for name in options}


def test_seeds_and_shares_have_limits_and_the_format_is_completed() -> None:
    table = option_table("simulate")
    assert table["--fault-seed"][2:4] == (0, 2**62)
    assert table["--stuck"][2:4] == (0.0, 1.0)
    assert table["--format"][-1]
    assert table["--fit"][-2]


@dataclass(frozen=True, slots=True)
class Size:
    """A group with two options."""

    width: Annotated[int, typer.Option("--width", help="Width.")] = 1
    height: Annotated[int | None, typer.Option("--height", help="Height.")] = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A group that contains a group."""

    size: Size
    colour: Annotated[str, typer.Option("--colour")] = "red"


RECEIVED: list[object] = []


@with_option_groups
def draw(
    *, name: Annotated[str, typer.Argument()] = "box", shape: Shape, fast: Annotated[bool, typer.Option("--fast")]
) -> None:
    """Draw a shape."""
    RECEIVED.append((name, shape, fast))


def run_draw(*words: str) -> object:
    app = typer.Typer(add_completion=False)
    app.command()(draw)
    RECEIVED.clear()
    result = CliRunner().invoke(app, list(words))
    return RECEIVED[0] if result.exit_code == 0 else result.output


def test_a_group_is_built_from_the_values_of_its_options() -> None:
    words = ["hut", "--height", "5", "--colour", "blue", "--fast"]
    assert run_draw(*words) == ("hut", Shape(Size(1, 5), "blue"), True)


def test_options_of_groups_have_the_defaults_of_their_fields() -> None:
    assert run_draw("--fast") == ("box", Shape(Size(1, None), "red"), True)


def test_an_option_of_a_group_is_checked_as_any_other() -> None:
    message = str(run_draw("--width", "wide", "--fast"))
    assert "--width" in message
    assert "valid integer" in message


def test_options_of_groups_stand_in_the_place_of_the_group() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(draw)
    command: Any = get_command(app)
    assert [option.name for option in command.params] == ["name", "width", "height", "colour", "fast"]
    assert command.help == "Draw a shape."
