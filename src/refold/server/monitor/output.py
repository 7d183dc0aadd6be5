"""Monitor the output of runs: progress, and patterns that prevent a retry or drain the node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from refold.client.jobspec import Pattern
from refold.core import RunProgressed, StartRun
from refold.errors import BadValue
from refold.model import MAX_AMOUNT, Job, Plan, Seconds, SlowPlace
from refold.server import LiveState, LoopStep, Report, Subscriber
from refold.server.config import OutputAction, OutputRule
from refold.server.output import ResourceShortage, RunFiles, log_size, read_log, read_regular

OUTPUT_POLL_SECONDS: Seconds = 5.0
MAX_BYTES_PER_POLL = 256 * 2**10
"""Maximum new output of an instance per poll. If there is more, the oldest part is skipped."""

MAX_LINE_CHARS = 4096
MAX_NUMBER_CHARS = 64
MAX_PROGRESS_CHARS = 512
MAX_SLOW_RANKS = 16
"""So many slow ranks of a run are reported at most."""

MAX_MATCH_SECONDS: Seconds = 1.0
"""A pattern that takes longer on the output of one poll is disabled for the run."""

NoteCallback = Callable[[str, str], None]
"""Receives a job id and a note about the job."""


PlaceOf = Callable[[str, SlowPlace], str]
"""Returns where a rank of a job runs, as the end of a sentence."""


def say_nothing(job: str, place: SlowPlace) -> str:
    del job, place
    return ""


def ignore_note(job: str, text: str) -> None:
    """Do nothing."""


class OutputWatch:
    """Follows the output of runs line by line. Thread-safe."""

    def __init__(
        self,
        out: Path,
        report: Report,
        rules: Sequence[OutputRule] = (),
        note: NoteCallback = ignore_note,
        place_of: PlaceOf = say_nothing,
        max_match_seconds: Seconds = MAX_MATCH_SECONDS,
    ) -> None:
        self._out = out
        self._report = report
        self._rules = tuple(rules)
        self._note = note
        self._place_of = place_of
        self._followed: dict[tuple[str, int], _FollowedRun] = {}
        self._max_match_seconds = max_match_seconds
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def follow(self, job: Job, run: int, instances: int) -> None:
        self._followed.setdefault((job.id, run), _FollowedRun(job, run, instances, self._out, self._rules))

    def forget(self, job_id: str, run: int) -> None:
        self._followed.pop((job_id, run), None)

    def close(self) -> None:
        """Stop matching patterns."""
        self._closed.set()

    def poll(self) -> None:
        """Read the new output of every run and report progress."""
        for followed in list(self._followed.values()):
            with self._lock:
                progressed = self._read_new(followed)
                slow = followed.slow_if_new()
            if progressed is not None:
                self._report(progressed)
            if slow is not None:
                what = "".join(character for character in slow.what if character.isprintable())
                self._note(followed.job.id, f"{what}{self._place_of(followed.job.id, slow)}")

    def read_to_end(self, job_id: str, run: int) -> RunProgressed | None:
        """Read the output of a run that has ended; return its progress if it was not reported yet."""
        with self._lock:
            followed = self._followed.get((job_id, run))
            return None if followed is None else self._read_new(followed, to_end=True)

    def matches_no_retry(self, job_id: str, run: int) -> bool:
        """Whether the run's output, read to its end, matches a no-retry pattern.

        Slow patterns may take long: call this, `drain_pattern` and `read_to_end` in a thread.
        """
        return bool(self._matched_pattern(job_id, run, "no-retry"))

    def drain_pattern(self, job_id: str, run: int) -> str:
        """Return the drain-node pattern that matches the run's output, or ''."""
        return self._matched_pattern(job_id, run, "drain-node")

    def _matched_pattern(self, job_id: str, run: int, action: OutputAction) -> str:
        with self._lock:
            followed = self._followed.get((job_id, run))
            if followed is None:
                return ""
            self._read_new(followed, to_end=True)
            return followed.matched.get(action, "")

    def _read_new(self, followed: _FollowedRun, to_end: bool = False) -> RunProgressed | None:
        """Match the new output of a run; return its progress if its step count changed."""
        for text in followed.new_texts(to_end):
            for pattern, match in self._find_matches(followed, text):
                followed.record_match(pattern, match)
        return followed.progress_if_new()

    def _find_matches(self, followed: _FollowedRun, text: str) -> Iterator[tuple[_OutputPattern, str]]:
        """Yield the patterns that match, each with its last match. A pattern that takes too long is disabled."""
        for pattern in list(followed.patterns):
            if self._closed.is_set():
                return
            began = monotonic()
            match = pattern.find(text)
            if monotonic() - began > self._max_match_seconds:
                followed.patterns.remove(pattern)
                self._note(
                    followed.job.id,
                    f"{pattern.field}: {pattern.text!r} took too long on the job's output and was disabled",
                )
            if match is not None:
                yield pattern, match


class OutputFollower(Subscriber):
    """Follows the output of each run from its start to its end."""

    def __init__(self, state: LiveState, output: OutputWatch) -> None:
        self._state = state
        self._output = output

    def started(self) -> None:
        """Follow the runs that the previous daemon left running."""
        for run in self._state.view.runs.values():
            self._output.follow(self._state.view.active[run.job], run.number, len(run.allocation.placement))

    def after_step(self, step: LoopStep) -> None:
        """Follow the runs that were started in a step, and forget those that ended."""
        active = self._state.view.active
        for order in step.entry.orders:
            if isinstance(order, StartRun) and order.job in active:
                self._output.follow(active[order.job], order.run, len(order.allocation.placement))
        for notice in step.notices:
            if notice.job is not None and notice.kind in (
                "stopped",
                "failed",
                "finished",
                "cancelled",
                "ended",
                "timed out",
            ):
                self._output.forget(notice.job.id, notice.run)


@dataclass(frozen=True, slots=True, eq=False)
class _OutputPattern:
    """A pattern, the field that it comes from, and its action (None: it reports progress)."""

    pattern: Pattern
    field: str
    action: OutputAction | None

    @property
    def text(self) -> str:
        return self.pattern.pattern

    def find(self, text: str) -> str | None:
        """Return the number of steps, or '' for a pattern with an action; None if there is no match."""
        if self.action is None:
            return self.pattern.last_match(text)
        return "" if self.pattern.matches(text) else None


def _compile_patterns(job: Job, rules: Sequence[OutputRule]) -> list[_OutputPattern]:
    """Compile the patterns of a job and of the configuration; skip invalid ones, which older versions accepted."""
    given: list[tuple[str, str, OutputAction | None]] = [
        *([(job.launch.progress, "progress", None)] if job.launch.progress else []),
        *((pattern, "never_retry", "no-retry") for pattern in job.launch.never_retry),
        *((rule.pattern, "watch.output", rule.action) for rule in rules),
    ]
    patterns: list[_OutputPattern] = []
    for pattern, field, action in given:
        with suppress(BadValue):
            patterns.append(_OutputPattern(Pattern(pattern), field, action))
    return patterns


class _FollowedRun:
    """One run: how far its output was read, its patterns, and what they matched."""

    def __init__(self, job: Job, run: int, instances: int, out: Path, rules: Sequence[OutputRule]) -> None:
        files = RunFiles(out, job.id, run)
        self.job = job
        self.run = run
        self.matched: dict[OutputAction, str] = {}
        self.patterns = _compile_patterns(job, rules)
        self._files = files
        self._logs = [files.log(instance) for instance in range(instances)]
        self._read = [0] * instances
        self._partial_lines = [""] * instances
        self._steps: int | None = None
        self._reported: int | None = None
        self._measures: dict[str, Any] = {}
        self._slow: SlowPlace | None = None
        self._slow_places: set[tuple[int, int]] = set()

    def new_texts(self, to_end: bool) -> list[str]:
        """Return the new complete lines of each instance, with the last incomplete one if `to_end`."""
        if not self.patterns:
            return []
        texts = [self._new_text(instance, to_end) for instance in range(len(self._logs))]
        return [text for text in texts if text]

    def _new_text(self, instance: int, to_end: bool) -> str:
        log = self._logs[instance]
        start = max(self._read[instance], log_size(log) - MAX_BYTES_PER_POLL)
        text = self._partial_lines[instance] if start == self._read[instance] else ""
        while (piece := read_log(log, start, MAX_BYTES_PER_POLL)).data and len(text) < 2 * MAX_BYTES_PER_POLL:
            text, start = text + piece.text, piece.next
        self._read[instance] = start
        text = text.replace("\r", "\n")  # progress bars rewrite a line with carriage returns
        if to_end:
            self._partial_lines[instance] = ""
            return text
        lines, _, rest = text.rpartition("\n")
        self._partial_lines[instance] = rest[:MAX_LINE_CHARS]
        return lines

    def record_match(self, pattern: _OutputPattern, match: str) -> None:
        if pattern.action is not None:
            self.matched.setdefault(pattern.action, pattern.text)
        elif (steps := _parse_steps(match)) is not None:
            self._steps = steps

    def progress_if_new(self) -> RunProgressed | None:
        """Return the progress from output and progress files if its step count was not reported yet."""
        for instance in range(len(self._logs)):
            number, *measures = _read_start(self._files.progress(instance)).split() or [""]
            steps = _parse_steps(number) if all("=" in measure for measure in measures) else None
            if steps is not None and (self._steps is None or steps > self._steps):
                self._steps, self._measures = steps, _parse_measures(measures)
                self._slow = self._measures.pop("slow", None)
        if self._steps == self._reported:
            return None
        self._reported = self._steps
        return RunProgressed(self.job.id, self.run, steps=self._steps, **self._measures)

    def slow_if_new(self) -> SlowPlace | None:
        """Return the rank that holds up the others according to the progress file, once for each rank."""
        slow, self._slow = self._slow, None
        place = (slow.instance, slow.local_rank) if slow is not None else None
        if place is None or place in self._slow_places or len(self._slow_places) == MAX_SLOW_RANKS:
            return None
        self._slow_places.add(place)
        return slow


def _read_start(path: Path) -> str:
    try:
        return read_regular(path, MAX_PROGRESS_CHARS).decode("ascii", "replace")
    except (OSError, ResourceShortage):
        return ""


_JSON_MEASURES: dict[str, type] = {"plan": Plan, "slow": SlowPlace}


def _parse_measures(words: Sequence[str]) -> dict[str, Any]:
    """Parse words such as 'loss=2.31' or 'plan={"data":2}'.

    Others are skipped, and so are numbers that are not finite or, of a speed, not positive.
    """
    measures: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name in _JSON_MEASURES:
            with suppress(msgspec.MsgspecError):
                measures[name] = msgspec.json.decode(text, type=_JSON_MEASURES[name])
            continue
        with suppress(ValueError):
            value = float(text)
            if isfinite(value) and (name == "loss" or (name == "samples_per_second" and value > 0)):
                measures[name] = value
    return measures


def _parse_steps(text: str) -> int | None:
    """Parse a step count such as '1,200'; None if it is not a number or too large."""
    digits = text.strip().replace(",", "").replace("_", "")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > MAX_NUMBER_CHARS:
        return None
    return int(digits) if int(digits) <= MAX_AMOUNT else None
