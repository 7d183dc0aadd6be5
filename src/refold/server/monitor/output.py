"""What running jobs say of themselves: how far they are, and that trying again would be of no use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from refold.backends import Report
from refold.backends.local import OutOfFileHandles, RunFiles, read_from, read_plain, size
from refold.core import RunProgressed
from refold.jobspec import Matcher, TooSlow
from refold.model import LARGEST, Job, Seconds
from refold.server.config import OutputRule, Then

LOOK_EVERY: Seconds = 5.0
MOST_PER_LOOK = 256 * 2**10
"""Bytes of an instance's output that are looked at at once; of more, the last."""

LONGEST_LINE = 4096
LONGEST_NUMBER = 64

Note = Callable[[str, str], None]
"""Somebody who is told a sentence about a job."""


def nobody_notes(job: str, sentence: str) -> None:
    """For those who do not want to know."""


class OutputWatch:
    """Follows the output of runs, line by line. Any thread may call any of its methods."""

    def __init__(
        self,
        out: Path,
        report: Report,
        rules: Sequence[OutputRule] = (),
        note: Note = nobody_notes,
        matcher: Matcher | None = None,
    ) -> None:
        self._out = out
        self._report = report
        self._rules = tuple(rules)
        self._note = note
        self._followed: dict[tuple[str, int], _Followed] = {}
        self._matcher = matcher or Matcher()
        self._matching = threading.Lock()
        self._closed = threading.Event()

    def follow(self, job: Job, run: int, instances: int) -> None:
        """A run has started, or was taken up."""
        self._followed.setdefault((job.id, run), _Followed(job, run, instances, self._out, self._rules))

    def forget(self, job_id: str, run: int) -> None:
        """Nobody will ask about this run any more."""
        self._followed.pop((job_id, run), None)

    def close(self) -> None:
        """Look for nothing any more."""
        self._closed.set()
        self._matcher.close()

    def look(self) -> None:
        """Read what is new of every run, and report how far they are."""
        for followed in list(self._followed.values()):
            with self._matching:
                steps = self._look_at(followed)
            if steps is not None:
                self._report(RunProgressed(followed.job.id, followed.run, steps=steps))

    def never_retry(self, job_id: str, run: int) -> bool:
        """Whether the run's output, all of which is looked at by now, says that trying again is of no use.

        Patterns may take their time: ask this and the next where nobody waits.
        """
        return bool(self._said(job_id, run, "no-retry"))

    def drains(self, job_id: str, run: int) -> str:
        """The pattern in the run's output that says that its node is not to be used; empty: none."""
        return self._said(job_id, run, "drain-node")

    def _said(self, job_id: str, run: int, meaning: Then) -> str:
        with self._matching:
            followed = self._followed.get((job_id, run))
            if followed is None:
                return ""
            self._look_at(followed, to_the_end=True)
            return followed.said.get(meaning, "")

    def _look_at(self, followed: _Followed, to_the_end: bool = False) -> int | None:
        """How many steps the run has done, if that is news."""
        for text in followed.new_texts(to_the_end):
            for rule, found in self._found(followed, text):
                followed.learn(rule, found)
        return followed.steps_if_new()

    def _found(self, followed: _Followed, text: str) -> list[tuple[_Sought, str]]:
        """Which of the patterns were found. One that takes too long is not looked for again."""
        while followed.sought and not self._closed.is_set():
            try:
                answers = self._matcher.last_found(text, [sought.pattern for sought in followed.sought])
            except OSError:
                return []  # no process can be had to look for them; another time
            except TooSlow as slow:
                if self._closed.is_set():
                    return []
                guilty = followed.sought.pop(slow.at)
                self._note(
                    followed.job.id,
                    f"{guilty.field}: {guilty.pattern!r} takes too long on its output and is not looked for any more",
                )
                continue
            return [
                (sought, found) for sought, found in zip(followed.sought, answers, strict=True) if found is not None
            ]
        return []


class _Sought(msgspec.Struct, frozen=True):
    """A pattern, who asks for it, and what it means (None: progress)."""

    pattern: str
    field: str
    meaning: Then | None


class _Followed:
    """One run: how far its output was read, what is looked for in it, and what was found."""

    def __init__(self, job: Job, run: int, instances: int, out: Path, rules: Sequence[OutputRule]) -> None:
        files, launch = RunFiles(out, job.id, run), job.launch
        self.job = job
        self.run = run
        self.said: dict[Then, str] = {}
        self.sought = [
            *([_Sought(launch.progress, "progress", None)] if launch.progress else []),
            *(_Sought(pattern, "never_retry", "no-retry") for pattern in launch.never_retry),
            *(_Sought(rule.pattern, "a rule of this cluster", rule.then) for rule in rules),
        ]
        self._progress_files = [files.progress(instance) for instance in range(instances)]
        self._logs = [files.log(instance) for instance in range(instances)]
        self._read = [0] * instances
        self._beginnings = [""] * instances
        self._steps: int | None = None
        self._reported: int | None = None

    def new_texts(self, to_the_end: bool) -> list[str]:
        """Whole lines that were not seen before, of each instance that has some; or what there is, at the end."""
        if not self.sought:
            return []
        texts = [self._new_text(instance, to_the_end) for instance in range(len(self._logs))]
        return [text for text in texts if text]

    def _new_text(self, instance: int, to_the_end: bool) -> str:
        log = self._logs[instance]
        begin = max(self._read[instance], size(log) - MOST_PER_LOOK)
        text = self._beginnings[instance] if begin == self._read[instance] else ""
        while (piece := read_from(log, begin, MOST_PER_LOOK)).data and len(text) < 2 * MOST_PER_LOOK:
            text, begin = text + piece.text, piece.next
        self._read[instance] = begin
        text = text.replace("\r", "\n")  # lines that are written over again and again are lines, too
        if to_the_end:
            self._beginnings[instance] = ""
            return text
        lines, _, rest = text.rpartition("\n")
        self._beginnings[instance] = rest[:LONGEST_LINE]
        return lines

    def learn(self, sought: _Sought, found: str) -> None:
        """Something was found."""
        if sought.meaning is not None:
            self.said.setdefault(sought.meaning, sought.pattern)
        elif (steps := _number(found)) is not None:
            self._steps = steps

    def steps_if_new(self) -> int | None:
        """How many steps were done, by its output and its files, if nobody was told yet."""
        for path in self._progress_files:
            steps = _number(_beginning_of(path))
            if steps is not None and (self._steps is None or steps > self._steps):
                self._steps = steps
        if self._steps == self._reported:
            return None
        self._reported = self._steps
        return self._steps


def _beginning_of(path: Path) -> str:
    try:
        return read_plain(path, LONGEST_NUMBER).decode("ascii", "replace")
    except (OSError, OutOfFileHandles):
        return ""


def _number(text: str) -> int | None:
    """'1,200' is a number of steps; what is none, or beyond reason, is not taken for one."""
    digits = text.strip().replace(",", "").replace("_", "")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > LONGEST_NUMBER:
        return None
    return int(digits) if int(digits) <= LARGEST else None
