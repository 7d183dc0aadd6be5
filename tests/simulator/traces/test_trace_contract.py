"""Every built-in trace reader passes the public contract suite."""

from pathlib import Path

from refold.testing import TraceContract

FIXTURES = Path(__file__).parent / "fixtures"


class TestCommon(TraceContract):
    file, format, jobs = FIXTURES / "common.csv", "common", 6


class TestHelios(TraceContract):
    file, format, jobs = FIXTURES / "helios.csv", "helios", 3


class TestOpenb(TraceContract):
    file, format, jobs = FIXTURES / "openb.csv", "openb", 3


class TestPai(TraceContract):
    file, format, jobs = FIXTURES / "pai_task_table.csv", "pai", 3


class TestPhilly(TraceContract):
    file, format, jobs = FIXTURES / "philly.json", "philly", 2


class TestRubick(TraceContract):
    file, format, jobs = FIXTURES / "rubick.csv", "rubick", 5


class TestSacct(TraceContract):
    file, format, jobs = FIXTURES / "sacct.txt", "sacct", 3
