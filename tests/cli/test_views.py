"""Formatting of times, numbers and tables: worked examples, and rules that hold for any table and width."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from operator import itemgetter

import pytest
from fake_service import NOW, FakeServer
from hypothesis import given, settings, strategies as st
from rich.cells import cell_len

from refold.cli.views import output
from refold.cli.views.output import (
    Sanitizer,
    draw_bar,
    format_number,
    format_percent,
    plural,
    print_json,
    print_notes,
    progress,
)
from refold.cli.views.tables import Column, Table, cell_width, fact_table, print_tables
from refold.cli.views.times import format_clock, format_clock_near, format_gpus, format_interval, format_moment
from refold.client.api.submissions import Submission
from refold.client.api.wire import NodeGpus
from refold.testing import make_cluster

TextOf = Callable[..., str]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time zone is UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


# Times and numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "00:00:00"),
        (0.4, "00:00:00"),
        (59.6, "00:01:00"),
        (3599.5, "01:00:00"),
        (86_399.4, "23:59:59"),
        (86_400.0, "1 d 00:00:00"),
        (183_845.0, "2 d 03:04:05"),
        (1_800_000_000.0, "2027-01-15 08:00:00"),
        (1e18, "–"),
    ],
)
def test_moments_are_times_since_the_start_or_calendar_times(seconds: float, text: str, utc: None) -> None:
    assert format_clock(seconds) == text


def test_calendar_times_of_today_have_no_date(utc: None) -> None:
    now = 1_800_000_000.0  # 08:00:00
    assert format_clock_near(now + 60, now) == "08:01:00"
    assert format_clock_near(now + 57_599, now) == "23:59:59"
    assert format_clock_near(now + 57_600, now) == "2027-01-16 00:00"


def test_moments_of_a_simulation_are_not_compared_with_today(utc: None) -> None:
    assert format_moment(None) == "–"
    assert format_moment(90.0, 30.0) == "00:01:30"
    assert format_moment(1_800_000_000.0) == "2027-01-15 08:00:00"
    assert format_moment(1_800_000_060.0, 1_800_000_000.0) == "08:01:00"


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((None, None), "–"),
        ((60.0, 3600.0), "00:01:00 – 01:00:00"),
        ((60.0, None), "00:01:00 –"),
        ((None, 3600.0), "– 01:00:00"),
    ],
)
def test_intervals_may_be_open(interval: tuple[float | None, float | None], text: str) -> None:
    assert format_interval(interval) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1.0, "1"), (9.96, "10.0"), (9.5, "9.5"), (10.5, "10"), (11.5, "12"), (125_303.4, "125,303")],
)
def test_numbers_below_ten_have_one_decimal(number: float, text: str) -> None:
    assert format_number(number) == text


def test_counts_shares_and_gpus_are_formatted() -> None:
    assert [plural(number, "job") for number in (0, 1, 1500)] == ["0 jobs", "1 job", "1,500 jobs"]
    assert [format_percent(share) for share in (0.0, 0.1234, 1.0)] == ["0.0 %", "12.3 %", "100.0 %"]
    assert [format_gpus(gpus) for gpus in (0, 0.5, 1, 8.0)] == ["0 GPUs", "0.5 GPU", "1 GPU", "8 GPUs"]


@pytest.mark.parametrize(
    ("share", "bar"), [(-1.0, ""), (0.0, ""), (0.5, "████"), (0.5625, "████▌"), (1.0, "████████"), (7.0, "████████")]
)
def test_bars_are_drawn_in_eighths_and_clipped(share: float, bar: str) -> None:
    assert draw_bar(share, width=8) == bar


# Tables

words = st.text("abcdefgé日", min_size=1, max_size=9)
cells = st.lists(words, min_size=1, max_size=6).map(" ".join)
titles = st.lists(words, min_size=1, max_size=2).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    kinds = draw(st.lists(st.sampled_from(["text", "number", "whole"]), min_size=1, max_size=6))
    columns: list[Column[Sequence[str]]] = [
        Column(draw(titles), itemgetter(index), number=kind == "number", whole=kind == "whole")
        for index, kind in enumerate(kinds)
    ]
    rows = draw(st.lists(st.tuples(*(cells for _ in columns)), min_size=1, max_size=4))
    return Table("", columns, rows)


def cell_columns(*titles: str, numbers: Sequence[str] = (), whole: Sequence[str] = ()) -> list[Column[Sequence[str]]]:
    """Return columns for rows that are given as their cells."""
    return [Column(title, itemgetter(i), title in numbers, whole=title in whole) for i, title in enumerate(titles)]


def printed(table: Table, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with monkeypatch.context() as patch:
        out = StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setenv("COLUMNS", str(width))
        print_tables(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@settings(max_examples=60)
@given(table=tables(), width=st.sampled_from([80, 100, 120]))
def test_no_word_of_a_table_is_lost_or_broken_and_lines_keep_the_width(table: Table, width: int) -> None:
    lines = printed(table, width, pytest.MonkeyPatch())
    shown = " ".join(lines).split()
    for column in table.columns:
        for text in (column.title, *map(column.text, table.rows)):
            for word in text.split():
                assert word in shown
            if column.whole and text != column.title:
                assert any(text in line for line in lines)
    if all(cell_len(text) <= 30 for row in table.rows for text in row):  # two columns always fit
        assert max(map(cell_len, lines)) <= width


def test_a_table_that_is_too_wide_is_split_into_blocks_that_repeat_the_first_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = cell_columns("job", "mean", "peak", "limit", numbers=("mean", "peak", "limit"), whole=("job",))
    rows = [(name, "1" * 20, "2" * 20, "3" * 20) for name in ("train", "eval")]
    assert printed(Table("", columns, rows), 50, monkeypatch) == [
        "job                    mean                  peak",
        "train  11111111111111111111  22222222222222222222",
        "eval   11111111111111111111  22222222222222222222",
        "",
        "job                   limit",
        "train  33333333333333333333",
        "eval   33333333333333333333",
        "",
    ]


def test_optional_columns_are_left_out_of_a_table_that_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: list[Column[Sequence[str]]] = [
        Column("job", itemgetter(0), whole=True),
        Column("user", itemgetter(1), whole=True, optional=2),
        Column("state", itemgetter(2), whole=True),
        Column("time", itemgetter(3), number=True, optional=1),
    ]
    table = Table("", columns, [("train-17", "ann", "running", "3 s")])
    header_of = {width: printed(table, width, monkeypatch)[0].split() for width in (30, 27, 26, 20, 10)}
    assert header_of == {
        30: ["job", "user", "state", "time"],
        27: ["job", "state", "time"],
        26: ["job", "state", "time"],
        20: ["job", "state"],
        10: ["job", "state"],
    }
    assert printed(table, 26, monkeypatch)[-3:] == ["not shown, for lack of", "space: user", ""]


def test_all_key_columns_are_repeated_in_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = cell_columns("", "job", "reason", "source", whole=("", "job", "reason", "source"))
    table = Table("", columns, [("1", "train-17", "r" * 20, "s" * 20)], keys=2)
    rows = [line.split() for line in printed(table, 40, monkeypatch) if "train" in line]
    assert rows == [["1", "train-17", "r" * 20], ["1", "train-17", "s" * 20]]


def test_long_words_are_broken_beside_a_long_name(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = cell_columns("job", "reason", whole=("job",))
    lines = printed(Table("", columns, [("j" * 68, "日本語 " + "x" * 30)]), 80, monkeypatch)
    assert max(map(cell_len, lines)) == 80
    assert "".join(line[70:] for line in lines[2:]).count("x") == 30


@given(st.text("aé日ｱ\u0301", max_size=20))
def test_the_width_of_a_text_is_that_of_its_cells(text: str) -> None:
    assert cell_width(text) == cell_len(text)


def test_styles_are_used_on_a_terminal_unless_colours_are_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("title", [Column("job", str, style=lambda _: "bold red")], ["a"])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for disabled in (False, True):
        monkeypatch.setattr(sys, "stdout", out := Terminal())
        print_tables(table)
        styled = "\x1b[1mtitle\x1b[0m\n\x1b[2mjob\x1b[0m\n\x1b[1;31ma\x1b[0m  \n\n"
        assert out.getvalue() == ("title\njob\na  \n\n" if disabled else styled)
        monkeypatch.setenv("NO_COLOR", "1")


def test_texts_are_wrapped_at_spaces_and_numbers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = cell_columns("job", "reason", "start time", numbers=("start time",), whole=("job",))
    rows = [("a", "0 of 16 nodes fit: 16 have fewer than 8 free GPUs", "2 d 03:00:00")]
    assert printed(Table("", columns, rows), 45, monkeypatch) == [
        "job  reason                        start time",
        "a    0 of 16 nodes fit: 16 have  2 d 03:00:00",
        "     fewer than 8 free GPUs",
        "",
    ]


def test_titles_and_lines_below_frame_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("Two jobs", [Column("job", str)], ["a", "b"], after=["… and 3 more"])
    assert printed(table, 80, monkeypatch) == ["Two jobs", "job", "a", "b", "… and 3 more", ""]


def test_lines_below_a_table_are_wrapped_between_words_and_paths_are_kept_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["a note that is longer than the screen", "", "logs: /a/long/path/of/the/folder"]
    table = Table("", [Column("job", str)], ["a"], after=lines)
    assert [line.rstrip() for line in printed(table, 20, monkeypatch)] == [
        "job",
        "a",
        "a note that is",
        "longer than the",
        "screen",
        "",
        "logs:",
        "/a/long/path/of/the/folder",
        "",
    ]


def test_a_table_without_titles_has_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    table = fact_table("", {"jobs": "7", "empty": ""}, numbers=True)
    assert printed(table, 80, monkeypatch) == ["jobs  7", ""]


# JSON, notes and progress


def test_json_is_indented_and_safe_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"job": "a\x1b\x9b", "node": make_cluster(1).nodes[0]})
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x9b" not in out
    assert json.loads(out) == {
        "job": "a\x1b\x9b",
        "node": {"name": "n0", "gpus": 1, "gpu_type": "A100", "cpu_milli": 64000, "memory_mib": 524288},
    }


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes(["skipped 2 rows", "one\nline"])
    assert capsys.readouterr() == ("", "note: skipped 2 rows\nnote: one line\n")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for stderr, shown in ((Terminal(), True), (StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress("simulating", 2.0) as advance:
            advance()
            deadline = time.monotonic() + 10
            while shown and "simulating" not in stderr.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            advance()
        assert ("simulating" in stderr.getvalue()) == shown
        assert bool(stderr.getvalue()) == shown


def test_short_operations_show_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_DELAY_SECONDS", 600.0)
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("simulating") as advance:
        advance(0.5)
    assert stderr.getvalue() == ""


def test_progress_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError), progress("simulating"):
        raise ZeroDivisionError


# Job output


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2Jgone\x1b[10;20H", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;c2VjcmV0\x1b\\after", "after"),
        ("\x1bPquery\x1b\\after", "after"),
        ("bell\x07 null\x00 del\x7f csi\x9b", "bell null del csi"),
        ("\u202eabc\u2066", "abc"),
        ("\x1bcreset", "reset"),
    ],
)
def test_only_colours_of_job_output_reach_the_terminal(text: str, clean: str) -> None:
    assert Sanitizer().clean(text) == clean


@given(
    st.lists(st.sampled_from(["a", "\x1b", "[", "3", "1", "m", "J", "]", "0;t", "\x07", "\\", "\x9b"]), max_size=30),
    st.integers(0, 30),
)
def test_it_does_not_matter_where_job_output_is_cut(parts: list[str], cut: int) -> None:
    whole, split = Sanitizer(), Sanitizer()
    text = "".join(parts)
    assert split.clean(text[:cut]) + split.clean(text[cut:]) == whole.clean(text)


def test_colours_are_reset_at_the_end_if_there_were_any() -> None:
    sanitizer = Sanitizer()
    sanitizer.clean("plain \x1b[2J")
    assert sanitizer.end == ""
    sanitizer.clean("\x1b[1;32m")
    assert sanitizer.end == "\x1b[0m"


# The queue at different widths


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_queue_fits_the_screen_and_shows_every_job_with_its_reason(
    width: int, served: FakeServer, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, user in (("a-rather-long-name-of-a-job", "ann"), ("b", "bob")):
        served.call(served.service.add, Submission(name, ["true"], gpus=4), "vision", user)
    served.call(served.service.start, "b-2")
    served.call(lambda: served.service._change("b-2", "warned", placement=[NodeGpus("here", [0, 1, 2, 3])]))
    monkeypatch.setenv("COLUMNS", str(width))
    lines = stdout_of("queue").splitlines()
    shown = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    users = ("ann", "bob") if width > 80 else ("not shown, for lack of space: user",)
    for part in ("a-rather-long-name-of-a-job-1", "b-2", "running", "waiting", *users, "nodes (reason)"):
        assert part in shown
    for word in ("(resources:", "nodes", "fit:", "has", "fewer", "free", "GPUs)"):
        assert word in shown
    assert ("tenant" in shown) == (width >= 100)  # all jobs have the same


def test_a_run_that_waits_in_an_engine_is_shown_as_such(served: FakeServer, stdout_of: TextOf) -> None:
    served.call(served.service.add, Submission("a", ["true"], gpus=4), "vision", "ann")
    served.call(served.service.start, "a-1")
    here, why = [NodeGpus("n0", [0, 1, 2, 3])], "submitted to Slurm (Priority)"
    served.call(lambda: served.service._change("a-1", "warned", placement=here, message="node lost"))
    assert "node lost" not in stdout_of("queue")  # how the last run ended
    served.call(lambda: served.service._change("a-1", "warned", placement=here, reason="Starting", message=why))
    assert why in " ".join(stdout_of("queue").split())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["nodes", "tenants", "history", "token", "gpus", "models", "engines"])
def test_lists_fit_the_screen(
    command: str, width: int, served: FakeServer, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.call(served.service.add, Submission("train", ["true"]))
    served.call(served.service.end, "train-1", "failed", "exit status 1: " + "a word " * 30)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = stdout_of(*(("token", "list") if command == "token" else (command,))).splitlines()
    assert 0 < max(map(len, lines)) <= width


def test_the_time_of_a_job_counts_from_its_start_or_submission(served: FakeServer, stdout_of: TextOf) -> None:
    served.call(served.service.add, Submission("a", ["true"]))
    served.call(lambda: served.service._change("a-1", "moved", submitted=NOW - 5400.0))
    assert "1 h 30 min" in stdout_of("queue")
    served.call(lambda: served.service._change("a-1", "started", state="running", started=NOW - 60.0))
    assert "1 h 30 min" not in stdout_of("queue")
    assert "1 min" in stdout_of("queue")


def test_any_columns_of_rows_may_be_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("日本語", "x"), ("ab", "y")]
    lines = printed(Table("", cell_columns("a", "b"), rows), 80, monkeypatch)
    assert lines[1:3] == ["日本語  x", "ab      y"]
