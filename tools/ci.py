"""Run all test suites one after the other; print a table of their times and tests, and why tests were skipped.

    python tools/ci.py [SUITE ...]

A suite is a target of the Makefile. It writes its results to build/tests/SUITE.xml; a suite without results could not
run here, and its last line of output says why.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "tests"
SUITES = ("test", "test-seeds", "test-install", "test-train", "test-kubernetes", "test-slurm", "test-ray", "test-web")
BUILD_MINUTES = "25"
"""How long the Kubernetes servers may be built, unless REFOLD_BUILD_MINUTES says otherwise."""

NOT_APPLICABLE = "does not apply"
"""How the reason begins if a case of a contract suite is not meant for what is tested: nothing is missing here."""


class Outcome(NamedTuple):
    """What came of a suite: its exit status, duration, CPU time, counts of tests, and its last line of output.

    `cpu_seconds`: of processes whose end the suite waited for. `repeated` tests failed at first and passed when run
    once more, alone. `not_applicable` are cases of contract suites that are not meant for what is tested.
    """

    suite: str
    status: int
    seconds: float
    cpu_seconds: float
    last_line: str
    skipped: Mapping[str, int]
    passed: int = 0
    failed: int = 0
    repeated: int = 0
    not_applicable: int = 0

    @property
    def ran(self) -> bool:
        """Whether any test ran."""
        return self.passed + self.failed + self.repeated > 0

    @property
    def note(self) -> str:
        """What the counts do not show."""
        if not self.ran:
            return f"not tested: {self.last_line}"
        return f"exit status {self.status}" if self.status else ""


def run_suite(suite: str) -> Outcome:
    """Run a suite with its output shown, and read its results."""
    results = RESULTS / f"{suite}.xml"
    results.unlink(missing_ok=True)
    environment = {"REFOLD_BUILD_MINUTES": BUILD_MINUTES, **os.environ}
    started, cpu_started, last_line = time.monotonic(), _cpu_seconds(), ""
    print(f"--- make {suite}", flush=True)
    command = ["make", "--no-print-directory", suite]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
    seconds, cpu_seconds = time.monotonic() - started, _cpu_seconds() - cpu_started
    return with_counts(Outcome(suite, process.returncode, seconds, cpu_seconds, last_line, {}), results)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_counts(outcome: Outcome, results: Path) -> Outcome:
    """Return the outcome with the numbers of tests in its results."""
    if not results.exists():
        return outcome
    cases = list(ElementTree.parse(results).iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = Counter(found.get("message", "") for case in cases if (found := case.find("skipped")) is not None)
    passed = len(cases) - failed - skipped.total()
    reasons = {reason: count for reason, count in skipped.items() if not reason.startswith(NOT_APPLICABLE)}
    counted = outcome._replace(passed=passed, skipped=reasons, not_applicable=skipped.total() - sum(reasons.values()))
    return counted._replace(failed=failed) if outcome.status else counted._replace(repeated=failed)


def print_table(outcomes: list[Outcome]) -> None:
    """Print one line per suite, then the reasons for skipped tests, then the sum."""
    print(f"\n{'suite':18}{'seconds':>9}{'CPU s':>9}{'passed':>9}{'repeated':>9}{'failed':>9}{'skipped':>9}{'n/a':>9}")
    for each in outcomes:
        counts = (each.passed, each.repeated, each.failed, sum(each.skipped.values()), each.not_applicable)
        line = f"{each.suite:18}{each.seconds:9.0f}{each.cpu_seconds:9.0f}" + "".join(f"{count:9}" for count in counts)
        print(f"{line}  {each.note}".rstrip())
    cpu_seconds = sum(each.cpu_seconds for each in outcomes)
    print(f"{'all':18}{sum(each.seconds for each in outcomes):9.0f}{cpu_seconds:9.0f}")
    if any(each.skipped for each in outcomes):
        print("\nskipped tests:")
    for each in outcomes:
        for reason, count in sorted(each.skipped.items(), key=lambda item: -item[1]):
            print(f"{each.suite:18}{count:9}  {' '.join(reason.split())}")
    passed, failed = sum(each.passed + each.repeated for each in outcomes), sum(each.failed for each in outcomes)
    skipped = sum(sum(each.skipped.values()) for each in outcomes)
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)


def main(suites: list[str]) -> int:
    """Run the suites; return 1 if one has failed."""
    outcomes = [run_suite(suite) for suite in suites or SUITES]
    print_table(outcomes)
    return int(any(each.status for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
