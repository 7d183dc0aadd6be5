"""Worlds in which daemons are killed, what their clients were promised, and what must then be so."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
from crash_points import AT_THE_START, POINTS, Stand
from real_daemon import RealDaemon, end_runs, runs_alive

from refold.api.wire import JobStatus, Submission
from refold.client.client import Client
from refold.core import Entry, Header
from refold.errors import Conflict, NoDaemon, RefoldError, Unavailable
from refold.server.store import store
from refold.testing import Audit

Answer = TypeVar("Answer")

LONGEST = 45.0
"""Seconds after which a world that has not come to rest is a failure."""


class Plan(msgspec.Struct, frozen=True):
    """Where the daemons of a world die, one after the other; the last one lives."""

    seed: int
    crashes: list[tuple[str, int]]
    epochs: bool


def plan_of(seed: int, point: str) -> Plan:
    """One to three deaths, of which the first is at this point; every third world begins epochs at each start."""
    chance = Random(seed)
    points = list(POINTS)
    crashes = [(point, _nth(chance, point))]
    while len(crashes) < 3 and chance.random() < 0.5:
        again = point if point in AT_THE_START else chance.choice(points)
        crashes.append((again, _nth(chance, again)))
    if point in AT_THE_START:  # there has to be something to be recovered
        crashes.insert(0, ("after a commit", chance.randint(2, 12)))
    return Plan(seed, crashes, "epoch" in point or seed % 3 == 0)


def _nth(chance: Random, point: str) -> int:
    if point in AT_THE_START:
        return 1
    most = {"between two statements of a commit": 60, "while stopping": 2}.get(point, 8)
    return chance.randint(1, most)


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

KINDS = ("plain", "plain", "plain", "wide", "gang", "stubborn", "retried", "failing", "held", "cancelled", "cancelled")


class World:
    """One folder, daemons that die over it, a client that remembers what it was promised."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder / "state"
        self.record = folder / "record"
        self.record.touch()
        self._witness = folder / "witness"
        self._locks = folder / "locks"
        self._locks.mkdir()
        self._plan = plan
        self._chance = Random(plan.seed)
        self._left = list(plan.crashes)
        self._until = time.monotonic() + LONGEST
        self.reached: list[str] = []
        self.kinds: dict[str, str] = {}
        """The kind of every job that was acknowledged."""
        self.cancelled: set[str] = set()
        self._client: Client | None = None
        self._armed = ""
        self._daemon: RealDaemon | None = None

    def live(self) -> None:
        """Ask for this and that; then wait until all is over, and end."""
        self._daemon = self._next_daemon()
        try:
            for number in range(12):
                self._submit(number)
                self._change_something()
                time.sleep(self._chance.choice((0.0, 0.0, 0.02, 0.05)))
            for job, kind in self.kinds.items():
                if kind == "held":
                    self._release(job)
                if kind == "cancelled":
                    self._cancel(job)
            while self._insist(lambda client: client.jobs(limit=1)).total:
                time.sleep(0.02)
            self.ended = {job.id: job for job in self._insist(lambda client: list(client.history()))}
            status = self._alive().end()
            assert status == 0, f"the daemon ended with {status}:\n{self._alive().log()}"
            self.left_over = runs_alive(self.folder)
        finally:
            self._alive().kill()
            end_runs(self.folder)

    def _submit(self, number: int) -> None:
        kind = self._chance.choice(KINDS)
        work = 20.0 if kind == "cancelled" else self._chance.choice((0.0, 0.05, 0.2))
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
            after=before[-1:] if kind == "plain" and self._chance.random() < 0.3 else [],
            request=f"{self._plan.seed}-{number}",
        )
        self.kinds[self._insist(lambda client: client.submit(submission)).id] = kind

    def _change_something(self) -> None:
        job, kind = self._chance.choice(list(self.kinds.items()))
        match self._chance.randrange(6):
            case 0 if kind == "cancelled":
                self._cancel(job)
            case 1 if kind == "held":
                self._release(job)
            case 2 | 3 if kind in ("plain", "wide"):
                self._insist(lambda client: client.hold(job))
                self._release(job)

    def _release(self, job: str) -> None:
        self._insist(lambda client: client.release(job))

    def _cancel(self, job: str) -> None:
        self.cancelled.add(job)
        self._insist(lambda client: client.cancel(job))

    def _insist(self, ask: Callable[[Client], Answer]) -> Answer:
        """Ask until there is an answer, whoever dies meanwhile. That there is nothing to do any more is one."""
        while True:
            assert time.monotonic() < self._until, f"{self._plan} does not come to rest:\n{self._alive().log()}"
            self._client = self._client or self._alive().client(timeout=15.0)
            try:
                return ask(self._client)
            except Conflict:
                return None  # type: ignore[return-value]  # only where the answer does not matter
            except (NoDaemon, Unavailable):
                self._client = None
                self._daemon = self._next_daemon()

    def _next_daemon(self) -> RealDaemon:
        """The daemon, if it lives; else the next one that serves."""
        if self._daemon is not None and self._daemon.lives():
            time.sleep(0.01)
            return self._daemon
        if self._daemon is not None:
            self._note_death(self._daemon)
        while True:
            point, nth = self._left.pop(0) if self._left else ("", 0)
            arguments = {"point": point, "nth": nth, "witness": str(self._witness), "epochs": self._plan.epochs}
            began = RealDaemon(self.folder, prepare="crash_points:arm", arguments=arguments)
            self._armed = point
            if began.told.address:
                return began
            self._note_death(began)

    def _alive(self) -> RealDaemon:
        assert self._daemon is not None
        return self._daemon

    def _note_death(self, dead: RealDaemon) -> None:
        status = dead.wait()
        assert self._armed and status == -signal.SIGKILL, f"{self._plan}: {status}, {dead.told}\n{dead.log()}"
        self.reached.append(self._armed)

    # What must be so.

    def check(self) -> None:
        """Everything that was promised."""
        assert not self.left_over, f"processes are left: {self.left_over}"
        self._check_jobs()
        self._check_record()
        check_books(self.folder)
        self._check_witness()

    def _check_jobs(self) -> None:
        expected = {"failing": "failed", "cancelled": "cancelled"}
        wrong = {
            job: (kind, self.ended.get(job))
            for job, kind in self.kinds.items()
            if job not in self.ended or self.ended[job].state != expected.get(kind, "finished")
        }
        assert not wrong, f"{self._plan}: {wrong}\n{self.record.read_text()}\n{self._alive().log()}"
        assert set(self.ended) == set(self.kinds), f"there are others: {set(self.ended) - set(self.kinds)}"

    def _check_record(self) -> None:
        lines = self.record.read_text().splitlines()
        clashes = [line for line in lines if line.startswith("clash")]
        assert not clashes, clashes
        times = Counter(tuple(line.split()[:4]) for line in lines)
        assert not {line for line, count in times.items() if count > 1}, "something was started twice"
        for job, kind in self.kinds.items():
            self._check_runs(self.ended[job], kind, times)

    def _check_runs(self, ended: JobStatus, kind: str, times: Counter[tuple[str, ...]]) -> None:
        def of(word: str) -> set[tuple[int, int]]:
            return {(int(line[2]), int(line[3])) for line in times if line[:2] == (word, ended.id)}

        instances = (0, 1) if kind == "gang" else (0,)
        last = 2 if kind == "retried" else 1
        if kind == "cancelled":
            assert of("start") <= {(1, 0)} and not of("done")
            return
        whole = {(run, number) for run in range(1, last + 1) for number in instances}
        assert of("start") == whole, f"{ended}: {of('start')}"
        assert of("done") == (set() if kind == "failing" else {(last, number) for number in instances})
        assert ended.runs == last

    def _check_witness(self) -> None:
        """What each daemon recovered is what the one before had written, and a new epoch keeps the queue's order."""
        written: dict[int, Stand] = {}
        for line in self._witness.read_bytes().splitlines():
            stand = msgspec.json.decode(line, type=Stand)
            if stand.after == "read":
                assert stand.same_as(written[stand.entry]), (stand, written[stand.entry])
                continue
            if stand.after == "epoch" and stand.entry > 1:
                last = written[stand.entry - 1]
                kept = [job for job in last.waiting if job not in stand.started]
                assert stand.waiting == kept, f"the queue was {last.waiting}, and is {stand.waiting}"
                assert set(last.running) <= set(stand.running)
            written[stand.entry] = stand


def check_books(folder: Path) -> None:
    """No GPU is given twice, and all else that an audit holds, in every epoch of a journal."""
    connection = sqlite3.connect(f"file:{folder / store.NAME}?mode=ro", uri=True)
    epochs = connection.execute("SELECT header, first FROM epochs ORDER BY first").fetchall()
    ends = [first for _, first in epochs[1:]] + [2**62]
    for (header, first), end in zip(epochs, ends, strict=True):
        audit = Audit(msgspec.json.decode(header, type=Header).cluster)
        query = "SELECT number, entry FROM journal WHERE number >= ? AND number < ? ORDER BY number"
        for number, (found, entry) in enumerate(connection.execute(query, (first, end)), start=first):
            assert found == number, f"entry {number} is missing"
            audit.write(msgspec.json.decode(entry, type=Entry))
    connection.close()


def survived(folder: Path, seed: int, point: str) -> list[str]:
    """Live through a world; at which points its daemons died. AssertionError: a promise was broken."""
    world = World(folder, plan_of(seed, point))
    try:
        world.live()
    except RefoldError as error:
        raise AssertionError(f"{plan_of(seed, point)}: {error}") from error
    world.check()
    return world.reached
