"""Documents as typed values: what each type accepts, and what the errors say about bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Meta

from refold.errors import BadFile, BadLine, BadValue
from refold.model.documents import Duration, Limits, PositiveDuration, ReadBy, describe, parse, read


class Disk(msgspec.Struct, frozen=True):
    size: Annotated[int, Meta(ge=1, le=64)]
    fast: bool = False

    def __post_init__(self) -> None:
        if self.fast and self.size > 8:
            raise BadValue(f"a fast disk of size {self.size} does not exist")


class Machine(msgspec.Struct, frozen=True):
    HINTS: ClassVar = {"cores": "cpus"}

    name: str = "node"
    cpus: Annotated[float, Meta(gt=0)] = 1.0
    slots: int = 0
    timeout: Duration = 60.0
    lease: PositiveDuration | None = None
    mode: Literal["on", "off", "auto"] = "auto"
    disk: Disk | None = None
    disks: list[Disk] = []
    racks: dict[Annotated[str, Meta(max_length=3)], int] = {}
    span: tuple[int, int] = (0, 0)
    gpus: Annotated[Literal["all"] | list[int], Meta(description="all, or numbers such as [0, 1]")] = "all"
    shout: Annotated[str, ReadBy(lambda part: part.text().upper())] = ""
    port: Annotated[int, Meta(le=65535, description="a port")] = msgspec.field(default=0, name="listen")
    extra: Any = None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("{}", {}),
        ("name: 010", {"name": "010"}),
        ("name: 1e-4", {"name": "1e-4"}),
        ("name: 2026-01-01", {"name": "2026-01-01"}),
        ("name: ''", {"name": ""}),
        ("cpus: 2", {"cpus": 2.0}),
        ("slots: 010", {"slots": 10}),
        ("slots: 0x10", {"slots": 16}),
        ("slots: 1_000", {"slots": 1000}),
        ("timeout: 1h30m", {"timeout": 5400.0}),
        ("timeout: 90", {"timeout": 90.0}),
        ("lease: 5s", {"lease": 5.0}),
        ("lease: null", {"lease": None}),
        ("mode: off", {"mode": "off"}),
        ("mode: 'on'", {"mode": "on"}),
        ("disk: {size: 3}", {"disk": Disk(3)}),
        ("disk:", {"disk": None}),
        ("disks: [{size: 1}, {size: 2, fast: yes}]", {"disks": [Disk(1), Disk(2, True)]}),
        ("disks:", {}),
        ("racks: {a: 1}", {"racks": {"a": 1}}),
        ("racks:", {}),
        ("span: [1, 2]", {"span": (1, 2)}),
        ("gpus: all", {}),
        ("gpus: [0, 3]", {"gpus": [0, 3]}),
        ("shout: hey", {"shout": "HEY"}),
        ("listen: 80", {"port": 80}),
        ("extra: {a: [1, x]}", {"extra": {"a": [1, "x"]}}),
        ("a: &a {size: 2}", None),
        ("disk: &a {size: 2}\ndisks: [*a]", {"disk": Disk(2), "disks": [Disk(2)]}),
    ],
)
def test_values_are_converted_to_their_types(text: str, fields: dict[str, Any] | None) -> None:
    if fields is None:
        with pytest.raises(BadLine, match="unknown field 'a'"):
            parse(text, Machine, "f")
    else:
        assert parse(text, Machine, "f") == Machine(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "line 1: the file is a list, expected keys and their values"),
        ("just text", "line 1: the file is 'just text', expected keys and their values"),
        ("3", "line 1: the file is 3, expected keys and their values"),
        ("name: a\n\tslots: 1", "line 2: is not YAML: found a tab character that violates indentation"),
        ("name: a\nname: b", "line 2: duplicate key 'name'"),
        ("[" * 50, "line 1: is nested too deeply, expected at most 32 levels"),
        ("name: *x", "line 1: the alias 'x' has no anchor before it"),
        (
            "\nnam: a",
            "line 2: unknown field 'nam'; did you mean 'name'? (known: cpus, disk, ",
        ),
        ("cores: 4", "line 1: unknown field 'cores'; use cpus"),
        ("name: yes", "line 1: name is yes, expected text; quote it"),
        ("name:", "line 1: name is empty, expected text"),
        ("name: [a]", "line 1: name is a list, expected text"),
        ("slots: x", "line 1: slots is 'x', expected a whole number"),
        ("slots: 1.5", "line 1: slots is 1.5, expected a whole number"),
        ("slots: '1'", "line 1: slots is '1', expected a whole number"),
        ("slots: true", "line 1: slots is true, expected a whole number"),
        ("slots: 2026-01-01", "line 1: slots is '2026-01-01', expected a whole number"),
        (
            "slots: 1" + "0" * 30,
            "line 1: slots is 1000000000000000000000000000000, expected a whole number, at most 1e+15",
        ),
        ("slots: " + "9" * 5000, "line 1: a number has 5,000 digits, expected at most 100"),
        ("cpus: 0", "line 1: cpus is 0, expected a number > 0"),
        ("cpus: .nan", "line 1: cpus is .nan, expected a number > 0"),
        ("cpus: NaN", "line 1: cpus is 'NaN', expected a number > 0"),
        ("cpus: -.inf", "line 1: cpus is -.inf, expected a number > 0, at most 1e+15"),
        ("cpus: 1e999", "line 1: cpus is 1e999, expected a number > 0, at most 1e+15"),
        ("timeout: soon", "line 1: timeout is 'soon', expected a duration such as 90s, 15m or 1h30m"),
        ("timeout: -1", "line 1: timeout is -1, expected a duration such as 90s, 15m or 1h30m"),
        ("lease: 0s", "line 1: lease is '0s', expected a duration greater than 0, such as 15m"),
        ("mode: maybe", "line 1: mode is 'maybe', expected one of on, off, auto"),
        ("mode: [on]", "line 1: mode is a list, expected one of on, off, auto"),
        ("disk: 3", "line 1: disk is 3, expected keys and their values"),
        ("disk: {}", "line 1: disk: size is missing, expected a whole number from 1 to 64"),
        ("disk:\n  size: 65", "line 2: disk.size is 65, expected a whole number from 1 to 64"),
        ("disk: {size: 9, fast: true}", "line 1: disk: a fast disk of size 9 does not exist"),
        (
            "disks:\n- size: 1\n- siz: 2",
            "line 3: disks[1]: unknown field 'siz'; did you mean 'size'? (known: fast, size)",
        ),
        ("disks: {size: 1}", "line 1: disks is keys and their values, expected a list"),
        ("racks: {abcd: 1}", "line 1: racks.abcd: the key is 'abcd', expected text of length ≤ 3"),
        ("racks: {a: x}", "line 1: racks.a is 'x', expected a whole number"),
        ("span: [1]", "line 1: span is a list, expected a list of 2"),
        ("gpus: some", "line 1: gpus is 'some', expected all, or numbers such as [0, 1]"),
        ("gpus: [x]", "line 1: gpus[0] is 'x', expected a whole number"),
        ("listen: 70000", "line 1: listen is 70000, expected a port"),
        ("extra: .nan", "line 1: extra is .nan, expected a finite number"),
    ],
)
def test_errors_name_line_and_key_and_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(BadLine) as error:
        parse(text, Machine, "f")
    assert str(error.value).startswith(f"f {message}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "is not text (UTF-8)"),
        (b"name: \x00", "line 1: is not YAML: "),
        (b"\x7fELF\x02\x01", "line 1: is not YAML: "),
        (b"#" * 100, "has 100 bytes, expected at most 99"),
    ],
)
def test_files_that_are_not_documents_are_rejected(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "machine.yaml"
    path.write_bytes(content)
    with pytest.raises(BadFile) as error:
        read(path, Machine, Limits(max_bytes=99))
    assert problem in str(error.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_bytes(b"\xef\xbb\xbfslots: 2")
    assert read(tmp_path / "machine.yaml", Machine) == Machine(slots=2)


@pytest.mark.parametrize("indent", [None, 1, "\t"])
def test_json_is_read_like_yaml(indent: int | str | None) -> None:
    text = json.dumps({"name": "a/b \N{GRINNING FACE} é\n", "slots": 3, "racks": {"a": 1}, "disk": None}, indent=indent)
    assert "\\ud83d" in text
    assert parse(text, Machine, "f.json") == Machine("a/b \N{GRINNING FACE} é\n", slots=3, racks={"a": 1})
    with pytest.raises(BadLine, match=r"f.json line \d: is not JSON: "):
        parse(text[:-1], Machine, "f.json")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Annotated[int, Meta(ge=0)], "a whole number ≥ 0"),
        (Annotated[float, Meta(gt=0, lt=1)], "a number > 0 and < 1"),
        (int | None, "a whole number"),
        (bool | list[int], "true or false or a list"),
        (dict[str, int], "keys and their values"),
        (Literal["a", "b"], "one of a, b"),
    ],
)
def test_types_are_described(kind: Any, text: str) -> None:
    assert describe(kind) == text


KEYS = st.sampled_from([*Machine.__struct_fields__, "size", "fast", "listen"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["off", "90s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_any_tree_is_a_machine_or_an_error_with_a_line(tree: dict[str, object]) -> None:
    try:
        assert isinstance(parse(json.dumps(tree), Machine, "f"), Machine)
    except BadLine as error:
        assert str(error).startswith("f line 1: ")
