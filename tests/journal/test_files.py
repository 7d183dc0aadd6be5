"""Journal files: reading and writing, replay, and errors for damaged files."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core import Entry, Header, Journals, ListJournal
from refold.errors import BadFile, BadJournal
from refold.journal.files import JournalFile, check_replay, read_journal
from refold.planning.plans.speeds import Speeds
from refold.simulator import Costs, Fault, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.simulator.registry import default_settings, make_policy
from refold.testing import make_cluster, reshapable_workload, seeded_workload


def write_journal(path: Path, policy: str = "fifo", durable: bool = False) -> ListJournal:
    """Simulate a workload; write its journal to a file, and return the same journal in memory."""
    jobs, cluster = seeded_workload(5)
    memory = ListJournal()
    known = default_settings(policy)
    settings = {name: value for name, value in {"placement": "round-robin", "seed": 3}.items() if name in known}
    with JournalFile(path, Header(cluster, policy, settings), durable) as file:
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
def test_a_journal_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    memory = write_journal(tmp_path / name)
    header, entries = read_journal(tmp_path / name)
    assert header.settings == {"placement": "round-robin", "seed": 3}
    assert list(entries) == memory.entries


@pytest.mark.parametrize("policy", ["fifo", "las", "easy", "refold", "rubick", "sia"])
def test_a_journal_replays_to_its_own_orders(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "journal.jsonl"
    memory = write_journal(path, policy, durable=policy == "fifo")
    header, entries = read_journal(path)
    assert check_replay(header, entries, make_policy(header.policy, header.settings)) == len(memory.entries)


@pytest.mark.parametrize(("durable", "synced"), [(True, ["file", "folder", "file"]), (False, [])])
def test_a_durable_journal_and_its_name_in_the_folder_are_on_disk_before_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda file: found.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
    )
    journal = JournalFile(tmp_path / "journal.jsonl", Header(make_cluster(1), "fifo", {}), durable)
    journal.write(Entry(0.0, (), ()))
    assert found == synced
    journal.close()


def test_a_replay_with_another_policy_reports_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    header, entries = read_journal(path)
    with pytest.raises(BadJournal, match=r"entry \d+ at [\d.]+ s: the journal has"):
        check_replay(header, entries, make_policy("fifo", {"placement": "worst-fit"}))


def test_an_older_journal_without_the_next_allocation_of_a_reshape_replays(tmp_path: Path) -> None:
    jobs, cluster = reshapable_workload(7, jobs=40)
    memory, header = ListJournal(), Header(cluster, "rubick")
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy("rubick", {}), journal=memory, charge=charge, costs=Costs(1.0, 2.0, 3.0))
    lines = msgspec.json.Encoder().encode_lines([header, *memory.entries])
    older = b"".join(
        msgspec.json.encode(without_next(msgspec.json.decode(line))) + b"\n" for line in lines.splitlines()
    )
    assert older != lines
    path = tmp_path / "journal.jsonl"
    path.write_bytes(older)
    header, entries = read_journal(path)
    assert check_replay(header, entries, make_policy("rubick", {})) == len(memory.entries)


def without_next(line: dict[str, Any]) -> dict[str, Any]:
    for order in line.get("orders", ()):
        order.pop("next", None)
    return line


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    memory = write_journal(path)
    path.write_bytes(path.read_bytes()[:-7])
    assert list(read_journal(path)[1]) == memory.entries[:-1]


def test_a_truncated_compressed_journal_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl.gz"
    memory = write_journal(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    entries_read = list(read_journal(path)[1])
    assert 0 < len(entries_read) < len(memory.entries)
    assert entries_read == memory.entries[: len(entries_read)]
    path.write_bytes(b"\x1f\x8b garbage")
    with pytest.raises(BadFile, match="cannot be read"):
        read_journal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a journal"),
        (b"{}\n", "is not a journal: Object missing required field `cluster`"),
        (b"\x00\xff\x13garbage\n", "is not a journal"),
        (b'{"cluster":{"nodes":[]},"policy":"fifo"}\n', "is not a journal: a cluster needs at least one node"),
        (b'{"cluster":{"nodes":[{"name":"a"}]},"policy":"fifo","version":9,"new":1}\n', "version 9, expected 2"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=message):
        read_journal(path)


def test_the_error_for_a_damaged_entry_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"now": "soon"}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadFile, match=r"journal.jsonl: line 4 is not an entry"):
        list(read_journal(path)[1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"now":-1e300}', "line 5 is at -1e\\+300 s, expected a time from"),
        (b'{"now":1e9,"events":[{"type":"NodeLost","node":999}]}', "line 5 has node 999, but the cluster has 4 nodes"),
        (b'{"now":1e9,"events":[{"type":"GpuLost","node":999,"gpu":0}]}', "line 5 has node 999"),
        (b'{"now":1e9,"events":[{"type":"GpuReturned","node":0,"gpu":-1}]}', "line 5 has GPU -1 of a node with"),
        (
            b'{"now":1e9,"orders":[{"type":"StartRun","job":"a","run":1,"allocation":{"placement":[{"node":-1}]}}]}',
            "line 5 has node -1",
        ),
        (
            b'{"now":1e9,"orders":[{"type":"StartRun","job":"a","run":1,'
            b'"allocation":{"placement":[{"node":0,"gpus":[77]}]}}]}',
            "line 5 has GPUs \\(77,\\) of a node with 4 GPUs",
        ),
    ],
)
def test_the_error_for_an_invalid_entry_names_its_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + line + b"\n")
    with pytest.raises(BadFile, match=message):
        list(read_journal(path)[1])


def test_the_error_for_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nowhere\.jsonl: cannot be read"):
        read_journal(tmp_path / "nowhere.jsonl")


def test_optional_fields_have_defaults() -> None:
    assert Entry(1.5) == Entry(1.5, (), (), (), (), None, "")
    assert Header(make_cluster(1), "fifo").settings == {}
