"""`import refold` offers the public API, lazily."""

import re
import subprocess
import sys

import pytest

import refold
from refold.journal import HistoryJournal
from refold.policies.queueing import Fifo
from refold.simulator.results import measure
from refold.testing import make_cluster, make_job

PUBLIC = [
    "Client",
    "Cluster",
    "Decision",
    "Job",
    "Policy",
    "Predictor",
    "View",
    "best_plans",
    "compare",
    "make_policy",
    "read_cluster",
    "read_trace",
    "simulate",
]


def test_the_public_names_are_listed_and_can_be_imported() -> None:
    assert sorted(dir(refold)) == PUBLIC
    for name in PUBLIC:
        assert getattr(refold, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Clint"):
        getattr(refold, "Clint")  # noqa: B009


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "msgspec", "yaml", "rich", "typer", "asyncio")
    program = f"import sys, refold; print(sorted({set(heavy)!r} & sys.modules.keys()))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "refold", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"refold {re.escape(refold.__version__)}( \(commit [0-9a-f]+\))?\n", printed)


def test_compare_measures_each_policy_by_name() -> None:
    cluster = make_cluster(2)
    jobs = [
        make_job("a", gpus=2, work=100.0),
        make_job("b", at=1.0, gpus=2, work=10.0),
        make_job("c", at=2.0, work=5.0),
    ]
    journal = HistoryJournal()
    refold.simulate(jobs, cluster, Fifo(), journal=journal)
    measures = refold.compare(jobs, cluster, ["fifo", refold.make_policy("srtf")])
    assert list(measures) == ["fifo", "srtf"]
    assert measures["fifo"] == measure(journal.history(cluster))
    assert measures["srtf"].completion.mean is not None
    assert measures["fifo"].completion.mean is not None
    assert measures["srtf"].completion.mean < measures["fifo"].completion.mean


def test_earlier_names_of_folders_still_work() -> None:
    program = "from refold.packing import Placer; import refold.placement as new; assert new.Placer is Placer"
    found = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)
    assert "DeprecationWarning: refold.packing is refold.placement now" in found.stderr
