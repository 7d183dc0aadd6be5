"""The summary of a trace, by hand, and the rules by which every reader's jobs are ordered, named and counted."""

from __future__ import annotations

import pytest

from refold.errors import BadRow
from refold.model import Demand, format_count
from refold.simulator.traces import summarise
from refold.simulator.traces.summary import Portion, Summary, size_name
from refold.simulator.traces.text_source import BadCell, parse_time, parse_time_or_none, shift_to_first_submission
from refold.simulator.traces.trace import Trace, make_trace
from refold.testing import make_job

HOUR = 3600.0


def test_the_summary_of_four_jobs() -> None:
    jobs = (
        make_job("a", at=0.0, work=HOUR, gpus=8, tenant="lab"),
        make_job("b", at=HOUR, work=2 * HOUR, share=0.5, tenant="lab", job_class="best-effort"),
        make_job("c", at=HOUR, work=None, gpus=2, tenant="guest"),
        make_job("d", at=4 * HOUR, work=3 * HOUR, gpus=1, tenant="team"),
    )
    bad = BadRow("jobs.csv", 7, "num_gpu", "x", "a number ≥ 0")
    assert summarise(Trace("week", jobs, (bad,), ("a note",))) == Summary(
        name="week",
        jobs=4,
        best_effort=1,
        span=4 * HOUR,
        gpu_hours=12.0,
        offered_gpus=3.0,
        sizes=(
            Portion("fraction", 1, 1.0, 0.25, 1 / 12),
            Portion("1", 1, 3.0, 0.25, 3 / 12),
            Portion("2", 1, 0.0, 0.25, 0.0),
            Portion("5–8", 1, 8.0, 0.25, 8 / 12),
        ),
        durations=(HOUR, HOUR, HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR, 3 * HOUR),
        gaps=(0.0, 0.0, 0.0, HOUR, 3 * HOUR, 3 * HOUR, 3 * HOUR),
        tenants=(
            Portion("lab", 2, 9.0, 0.5, 9 / 12),
            Portion("team", 1, 3.0, 0.25, 3 / 12),
            Portion("guest", 1, 0.0, 0.25, 0.0),
        ),
        skipped_rows=("jobs.csv line 7: num_gpu is 'x', expected a number ≥ 0",),
        notes=("a note",),
    )


def test_the_summary_of_one_job_has_no_gaps_and_no_offered_load() -> None:
    summary = summarise(Trace("one", (make_job("a", at=5.0, work=None),)))
    assert (summary.span, summary.offered_gpus, summary.gaps, summary.durations) == (0.0, None, (), ())
    assert summary.sizes == (Portion("1", 1, 0.0, 1.0, 0.0),)


def test_tenants_with_equal_gpu_time_are_ordered_by_jobs_and_name() -> None:
    jobs = tuple(make_job(str(number), work=None, tenant=tenant) for number, tenant in enumerate("cabb"))
    assert [portion.name for portion in summarise(Trace("t", jobs)).tenants] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("demand", "name"),
    [
        (Demand(4, 0), "no GPU"),
        (Demand(1, 1, 999), "fraction"),
        (Demand(2, 1, 500), "1"),
        (Demand(3, 1, 500), "2"),
        (Demand(1, 3), "3–4"),
        (Demand(1, 4), "3–4"),
        (Demand(1, 5), "5–8"),
        (Demand(1, 8), "5–8"),
        (Demand(8, 8), "33–64"),
        (Demand(13, 5), "over 64"),
    ],
)
def test_jobs_are_classed_by_their_total_gpus(demand: Demand, name: str) -> None:
    assert size_name(demand) == name


# Order, names and times


def test_jobs_are_sorted_by_submission_and_equal_ones_keep_their_order() -> None:
    trace = make_trace("t", [make_job("b", at=2.0), make_job("z", at=1.0), make_job("a", at=1.0)])
    assert [job.id for job in trace.jobs] == ["z", "a", "b"]
    assert (trace.span, trace.notes) == (1.0, ())


def test_equal_ids_get_a_suffix_that_no_other_job_has() -> None:
    trace = make_trace("t", [make_job("a"), make_job("a"), make_job("a.2"), make_job("a"), make_job("b")])
    assert [job.id for job in trace.jobs] == ["a", "a.3", "a.2", "a.4", "b"]
    assert trace.notes == ("in the whole file: 2 duplicate ids given a suffix (such as '.2')",)


def test_control_characters_in_names_are_replaced_and_counted() -> None:
    trace = make_trace(
        "t",
        [
            make_job("a\x1b[31m", tenant="x\ny"),
            make_job("b", user="\x9b", types=["T4\t"]),
            make_job("é 日本\u00a0"),
        ],
    )
    first, second, third = trace.jobs
    assert (first.id, first.tenant) == ("a�[31m", "x�y")
    assert (second.user, second.demand.gpu_types) == ("�", ("T4�",))
    assert third.id == "é 日本\u00a0"
    assert trace.notes == ("in the whole file: 2 jobs with control characters in their names, replaced by '�'",)


def test_ids_that_become_equal_by_the_replacement_are_made_unique() -> None:
    assert [job.id for job in make_trace("t", [make_job("a\x01"), make_job("a\x02")]).jobs] == ["a�", "a�.2"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1500, "1,500 jobs"), (10**6, "1,000,000 jobs")]
)
def test_counts_are_written_with_their_noun(count: int, text: str) -> None:
    assert format_count(count, "job") == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01 00:00:00", 0.0),
        ("2017-10-07 01:12:09", 1507338729.0),
        ("2017-10-07 01:12:09 PST", 1507338729.0),
        ("2024-05-01T08:00:00", 1714550400.0),
        ("2024-05-01T10:00:00+02:00", 1714550400.0),
        ("2024-05-01T08:00:00.250", 1714550400.25),
        ("1714550400", 1714550400.0),
        ("12.5", 12.5),
    ],
)
def test_times_are_seconds_since_1970(text: str, seconds: float) -> None:
    assert parse_time(text, "Start") == seconds


@pytest.mark.parametrize("text", ["", "soon", "2024-13-01", "2024-05-01 25:00:00", "-5", "1e99"])
def test_a_bad_time_is_reported_with_its_column(text: str) -> None:
    with pytest.raises(BadCell) as caught:
        parse_time(text, "Start")
    assert (caught.value.column, caught.value.found) == ("Start", text)


def test_the_words_for_no_time_are_none() -> None:
    assert [parse_time_or_none(text, "End") for text in (None, "", "Unknown", "None", "N/A", "nan")] == [None] * 6


def test_the_note_of_a_shifted_trace_gives_the_calendar_time_if_there_is_one() -> None:
    jobs, notes = shift_to_first_submission([make_job("a", at=1714550460.0), make_job("b", at=1714550400.0)])
    assert ([job.submitted for job in jobs], notes) == (
        [60.0, 0.0],
        ["time 0 is the first submission, at 2024-05-01 08:00:00"],
    )
    assert shift_to_first_submission([make_job("a", at=890.0)])[1] == ["time 0 is the first submission, at 890"]
    assert shift_to_first_submission([]) == ([], [])
