"""Crash tests: daemons that are killed at named points, and checks that nothing is lost or run twice."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
from crash_points import POINTS, START_POINTS, QueueState
from real_daemon import RealDaemon, kill_runs, live_processes

from refold.client.api.submissions import Submission
from refold.client.api.wire import JobStatus
from refold.client.client import Client
from refold.core import Entry, Header
from refold.errors import Conflict, NoDaemon, RefoldError, Unavailable
from refold.server.store import FILE_NAME
from refold.testing import Audit

Result = TypeVar("Result")

TIMEOUT_SECONDS = 45.0
"""Seconds after which a setup that has not ended fails."""


class CrashPlan(msgspec.Struct, frozen=True):
    """The crash points of successive daemons; the last daemon is not killed."""

    seed: int
    crashes: list[tuple[str, int]]
    new_epochs: bool


def make_plan(seed: int, points: Sequence[str]) -> CrashPlan:
    """Return one to three crashes, the first ones at `points`. Every third setup begins a new epoch at each start."""
    rng = Random(seed)
    at_start = points[0] in START_POINTS
    crashes = [(point, _nth(rng, point)) for point in points]
    while len(crashes) < 3 and rng.random() < 0.5:
        again = points[0] if at_start else rng.choice(list(POINTS))
        crashes.append((again, _nth(rng, again)))
    if at_start:  # recovery needs earlier entries
        crashes.insert(0, ("after a commit", rng.randint(2, 12)))
    return CrashPlan(seed, crashes, seed % 3 == 0 or any("epoch" in point for point in points))


def _nth(rng: Random, point: str) -> int:
    if point in START_POINTS:
        return 1
    maximum = {"between two statements of a commit": 60, "while stopping": 2}.get(point, 8)
    return rng.randint(1, maximum)


SCRIPT = """
echo "start $REFOLD_JOB $REFOLD_RUN $REFOLD_INSTANCE $$" >>"$RECORD"
number=3
for slot in $(echo "$REFOLD_SLOTS" | tr , ' '); do
    eval "exec $number>\\"$LOCKS/$slot\\""
    flock -n $number || echo "clash $REFOLD_JOB $REFOLD_RUN slot $slot" >>"$RECORD"
    number=$((number + 1))
done
[ "$KIND" != stubborn ] || trap '' TERM
sleep "$SECONDS_OF_WORK"
[ "$KIND" != failing ] || exit 3
[ "$KIND" != retried ] || [ "$REFOLD_RUN" -gt 1 ] || exit 4
echo "done $REFOLD_JOB $REFOLD_RUN $REFOLD_INSTANCE $$" >>"$RECORD"
"""

JOB_KINDS = (
    "plain",
    "plain",
    "plain",
    "wide",
    "gang",
    "stubborn",
    "retried",
    "failing",
    "held",
    "cancelled",
    "cancelled",
)


class CrashSetup:
    """A state folder, daemons that crash on it, and a client that records what was acknowledged."""

    def __init__(self, folder: Path, plan: CrashPlan) -> None:
        self.folder = folder / "state"
        self.record = folder / "record"
        self.record.touch()
        self._states_file = folder / "states"
        self._locks = folder / "locks"
        self._locks.mkdir()
        self._plan = plan
        self._rng = Random(plan.seed)
        self._remaining = list(plan.crashes)
        self._deadline = time.monotonic() + TIMEOUT_SECONDS
        self.reached: list[str] = []
        self.kinds: dict[str, str] = {}
        """Kind of each acknowledged job."""
        self.cancelled: set[str] = set()
        self._client: Client | None = None
        self._armed = ""
        self._daemon: RealDaemon | None = None

    def run(self) -> None:
        """Submit and change jobs, wait until all have ended, then shut down."""
        self._daemon = self._next_daemon()
        try:
            for number in range(12):
                self._submit(number)
                self._change_random_job()
                time.sleep(self._rng.choice((0.0, 0.0, 0.02, 0.05)))
            for job, kind in self.kinds.items():
                if kind == "held":
                    self._release(job)
                if kind == "cancelled":
                    self._cancel(job)
            while self._call(lambda client: client.jobs(limit=1)).total:
                time.sleep(0.02)
            self.ended = {job.id: job for job in self._call(lambda client: list(client.history()))}
            status = self._current_daemon().end()
            assert status == 0, f"the daemon ended with {status}:\n{self._current_daemon().log()}"
            self.left_over = live_processes(self.folder)
        finally:
            self._current_daemon().kill()
            kill_runs(self.folder)

    def _submit(self, number: int) -> None:
        kind = self._rng.choice(JOB_KINDS)
        work = 20.0 if kind == "cancelled" else self._rng.choice((0.0, 0.05, 0.2))
        before = [job for job, known in self.kinds.items() if known == "plain" and job not in self.cancelled]
        submission = Submission(
            name=f"{kind}{number}",
            command=["sh", "-c", SCRIPT],
            gpus=2 if kind == "wide" else 1,
            instances=2 if kind == "gang" else 1,
            environment={
                "RECORD": str(self.record),
                "LOCKS": str(self._locks),
                "KIND": kind,
                "SECONDS_OF_WORK": str(work),
            },
            retries=1 if kind == "retried" else 0,
            hold=kind == "held",
            after=before[-1:] if kind == "plain" and self._rng.random() < 0.3 else [],
            request=f"{self._plan.seed}-{number}",
        )
        self.kinds[self._call(lambda client: client.submit(submission)).id] = kind

    def _change_random_job(self) -> None:
        job, kind = self._rng.choice(list(self.kinds.items()))
        match self._rng.randrange(6):
            case 0 if kind == "cancelled":
                self._cancel(job)
            case 1 if kind == "held":
                self._release(job)
            case 2 | 3 if kind in ("plain", "wide"):
                self._call(lambda client: client.hold(job))
                self._release(job)

    def _release(self, job: str) -> None:
        self._call(lambda client: client.release(job))

    def _cancel(self, job: str) -> None:
        self.cancelled.add(job)
        self._call(lambda client: client.cancel(job))

    def _call(self, call: Callable[[Client], Result]) -> Result:
        """Repeat a call until it is answered, restarting daemons as needed. A Conflict counts as an answer."""
        while True:
            assert time.monotonic() < self._deadline, f"{self._plan} timed out:\n{self._current_daemon().log()}"
            self._client = self._client or self._current_daemon().client(timeout=15.0)
            try:
                return call(self._client)
            except Conflict:
                return None  # type: ignore[return-value]  # only where the result is not used
            except (NoDaemon, Unavailable):
                self._client = None
                self._daemon = self._next_daemon()

    def _next_daemon(self) -> RealDaemon:
        """Return the daemon if it is alive, else start the next one that serves."""
        if self._daemon is not None and self._daemon.is_alive():
            time.sleep(0.01)
            return self._daemon
        if self._daemon is not None:
            self._record_crash(self._daemon)
        while True:
            point, nth = self._remaining.pop(0) if self._remaining else ("", 0)
            arguments = {
                "point": point,
                "nth": nth,
                "states_file": str(self._states_file),
                "new_epochs": self._plan.new_epochs,
            }
            daemon = RealDaemon(self.folder, prepare="crash_points:arm", arguments=arguments)
            self._armed = point
            if daemon.startup.address:
                return daemon
            self._record_crash(daemon)

    def _current_daemon(self) -> RealDaemon:
        assert self._daemon is not None
        return self._daemon

    def _record_crash(self, dead: RealDaemon) -> None:
        status = dead.wait()
        assert self._armed and status == -signal.SIGKILL, f"{self._plan}: {status}, {dead.startup}\n{dead.log()}"
        self.reached.append(self._armed)

    # Checks.

    def check(self) -> None:
        """Check everything that must hold."""
        assert not self.left_over, f"processes left: {self.left_over}"
        self._check_jobs()
        self._check_record()
        check_journal(self.folder)
        self._check_recovered_states()

    def _check_jobs(self) -> None:
        expected = {"failing": "failed", "cancelled": "cancelled"}
        wrong = {
            job: (kind, self.ended.get(job))
            for job, kind in self.kinds.items()
            if job not in self.ended or self.ended[job].state != expected.get(kind, "finished")
        }
        assert not wrong, f"{self._plan}: {wrong}\n{self.record.read_text()}\n{self._current_daemon().log()}"
        assert set(self.ended) == set(self.kinds), f"unexpected jobs: {set(self.ended) - set(self.kinds)}"

    def _check_record(self) -> None:
        lines = self.record.read_text().splitlines()
        clashes = [line for line in lines if line.startswith("clash")]
        assert not clashes, clashes
        times = Counter(tuple(line.split()[:4]) for line in lines)
        assert not {line for line, count in times.items() if count > 1}, "an instance was started twice"
        for job, kind in self.kinds.items():
            self._check_runs(self.ended[job], kind, times)

    def _check_runs(self, ended: JobStatus, kind: str, times: Counter[tuple[str, ...]]) -> None:
        def runs_with(word: str) -> set[tuple[int, int]]:
            return {(int(line[2]), int(line[3])) for line in times if line[:2] == (word, ended.id)}

        instances = (0, 1) if kind == "gang" else (0,)
        last = 2 if kind == "retried" else 1
        if kind == "cancelled":
            assert runs_with("start") <= {(1, 0)} and not runs_with("done")
            return
        whole = {(run, number) for run in range(1, last + 1) for number in instances}
        assert runs_with("start") == whole, f"{ended}: {runs_with('start')}"
        assert runs_with("done") == (set() if kind == "failing" else {(last, number) for number in instances})
        assert ended.runs == last

    def _check_recovered_states(self) -> None:
        """Check that each daemon recovered what the previous one wrote, and that a new epoch keeps the queue order."""
        written: dict[int, QueueState] = {}
        for line in self._states_file.read_bytes().splitlines():
            state = msgspec.json.decode(line, type=QueueState)
            if state.after == "read":
                assert state.same_as(written[state.entry]), (state, written[state.entry])
                continue
            if state.after == "epoch" and state.entry > 1:
                last = written[state.entry - 1]
                expected_queue = [job for job in last.waiting if job not in state.started]
                assert state.waiting == expected_queue, f"the queue was {last.waiting}, and is {state.waiting}"
                assert set(last.running) <= set(state.running)
            written[state.entry] = state


def check_journal(folder: Path) -> None:
    """Audit every epoch of a journal: no GPU is allocated twice, and so on."""
    connection = sqlite3.connect(f"file:{folder / FILE_NAME}?mode=ro", uri=True)
    epochs = connection.execute("SELECT header, first_entry FROM epochs ORDER BY first_entry").fetchall()
    ends = [first for _, first in epochs[1:]] + [2**62]
    for (header, first), end in zip(epochs, ends, strict=True):
        audit = Audit(msgspec.json.decode(header, type=Header).cluster)
        query = "SELECT number, entry FROM journal WHERE number >= ? AND number < ? ORDER BY number"
        for number, (found, entry) in enumerate(connection.execute(query, (first, end)), start=first):
            assert found == number, f"entry {number} is missing"
            audit.write(msgspec.json.decode(entry, type=Entry))
    connection.close()


def survive_crashes(folder: Path, seed: int, points: Sequence[str]) -> list[str]:
    """Run and check a setup; return the points at which daemons were killed. Raises AssertionError on failure."""
    setup = CrashSetup(folder, make_plan(seed, points))
    try:
        setup.run()
    except RefoldError as error:
        raise AssertionError(f"{make_plan(seed, points)}: {error}") from error
    setup.check()
    return setup.reached
