"""Journals as files: what is written is read, a journal replays to its own orders, and damage is named."""

from pathlib import Path

import pytest

from refold.core import Entry, Header, Journals, ListJournal
from refold.errors import BadFile, BadJournal
from refold.journal.files import JournalFile, check_replay, read_journal
from refold.policies.table import POLICIES
from refold.registry import make_policy, settings_of
from refold.simulator import Costs, Fault, simulate
from refold.testing import make_cluster, seeded_workload


def written(path: Path, policy: str = "fifo", safe: bool = False) -> ListJournal:
    """A simulation's journal in a file, and in memory."""
    jobs, cluster = seeded_workload(5)
    memory = ListJournal()
    known = settings_of(policy)
    settings = {name: value for name, value in {"placement": "round-robin", "seed": 3}.items() if name in known}
    with JournalFile(path, Header(cluster, policy, settings), safe) as file:
        simulate(
            jobs,
            cluster,
            make_policy(policy, settings),
            journal=Journals(file, memory),
            costs=Costs(1.0, 2.0, 3.0),
            faults=[Fault(1, 50.0, 90.0)],
        )
    return memory


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    memory = written(tmp_path / name)
    header, entries = read_journal(tmp_path / name)
    assert header.settings == {"placement": "round-robin", "seed": 3}
    assert list(entries) == memory.entries


@pytest.mark.parametrize("policy", POLICIES)
def test_a_journal_replays_to_its_own_orders(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "journal.jsonl"
    memory = written(path, policy, safe=policy == "fifo")
    header, entries = read_journal(path)
    assert check_replay(header, entries, make_policy(header.policy, header.settings)) == len(memory.entries)


def test_another_policy_gives_other_orders_and_the_difference_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    header, entries = read_journal(path)
    with pytest.raises(BadJournal, match=r"entry \d+ at [\d.]+ s: the journal has"):
        check_replay(header, entries, make_policy("fifo", {"placement": "worst-fit"}))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    memory = written(path)
    path.write_bytes(path.read_bytes()[:-7])
    assert list(read_journal(path)[1]) == memory.entries[:-1]


def test_a_compressed_journal_that_was_cut_off_or_damaged_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl.gz"
    memory = written(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    some = list(read_journal(path)[1])
    assert 0 < len(some) < len(memory.entries)
    assert some == memory.entries[: len(some)]
    path.write_bytes(b"\x1f\x8b garbage")
    with pytest.raises(BadFile, match="cannot be read"):
        read_journal(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a journal"),
        (b"{}\n", "is not a journal: Object missing required field `cluster`"),
        (b"\x00\xff\x13garbage\n", "is not a journal"),
        (b'{"cluster":{"nodes":[]},"policy":"fifo"}\n', "is not a journal: a cluster needs at least one node"),
        (b'{"cluster":{"nodes":[{"name":"a"}]},"policy":"fifo","version":9,"new":1}\n', "version 9, expected 1"),
    ],
)
def test_what_is_no_journal_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=words):
        read_journal(path)


def test_a_damaged_entry_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"now": "soon"}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadFile, match=r"journal.jsonl: line 4 is not an entry"):
        list(read_journal(path)[1])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"now":-1e300}', "line 5 is at -1e\\+300 s, after one at"),
        (b'{"now":1e9,"events":[{"type":"NodeLost","node":999}]}', "line 5 names node 999, the cluster has 4"),
        (
            b'{"now":1e9,"orders":[{"type":"StartRun","job":"a","run":1,"allocation":{"placement":[{"node":-1}]}}]}',
            "line 5 names node -1",
        ),
        (
            b'{"now":1e9,"orders":[{"type":"StartRun","job":"a","run":1,'
            b'"allocation":{"placement":[{"node":0,"gpus":[77]}]}}]}',
            "line 5 names GPUs \\(77,\\) of a node that has 4",
        ),
    ],
)
def test_an_entry_that_cannot_be_is_named_by_its_line(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + line + b"\n")
    with pytest.raises(BadFile, match=words):
        list(read_journal(path)[1])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nowhere\.jsonl: cannot be read"):
        read_journal(tmp_path / "nowhere.jsonl")


def test_an_entry_with_nothing_to_say_is_short() -> None:
    assert Entry(1.5) == Entry(1.5, (), (), (), (), None, "")
    assert Header(make_cluster(1), "fifo").settings == {}
