"""YAML with lines: every part knows where it stands, and no text, however odd, takes long or ends in a traceback."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from refold.documents.parts import BadLine, Part
from refold.documents.yaml_lines import load, load_all, read_text
from refold.errors import BadFile, BadRow, RefoldError


def told(part: Part) -> list[tuple[int, str, object]]:
    """Line, name and value of every scalar, in the order of the text."""
    if isinstance(part.value, dict):
        return [line for inner in part.value.values() for line in told(inner)]
    if isinstance(part.value, list):
        return [line for inner in part.value for line in told(inner)]
    return [(part.line, part.path, part.value)]


def test_every_part_knows_its_line_and_its_name() -> None:
    text = "name: a\nresources:\n  gpus: 2\n  types:\n    - H100\n    - {memory: 80}\nrun: |\n  one\n  two\n"
    assert told(load(text, "job.yaml")) == [
        (1, "name", "a"),
        (3, "resources.gpus", 2),
        (5, "resources.types[0]", "H100"),
        (6, "resources.types[1].memory", 80),
        (7, "run", "one\ntwo\n"),
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("1_000", 1000),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("No", False),
        ("off", False),
        ("oFf", "oFf"),
        ("~", None),
        ("", None),
        ("1:30:00", "1:30:00"),
        ("2026-11-15", "2026-11-15"),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("a:b", "a:b"),
    ],
)
def test_plain_text_is_what_people_mean_by_it(written: str, value: object) -> None:
    found = load(f"key: {written}\n", "f").fields()["key"].value
    assert (found, type(found)) == (value, type(value))


def test_a_scalar_is_also_there_as_it_was_written() -> None:
    parts = load("{a: 010, b: yes, on: 'x y'}", "f").fields()
    assert {key: part.written for key, part in parts.items()} == {"a": "010", "b": "yes", "on": "x y"}


def test_what_an_alias_repeats_has_its_own_name_and_the_line_where_it_was_written() -> None:
    part = load("usual: &usual\n  gpus: 2\njob:\n  <<: *usual\n  name: a\nother: *usual\n", "f")
    assert told(part) == [(2, "usual.gpus", 2), (5, "job.name", "a"), (2, "job.gpus", 2), (2, "other.gpus", 2)]


def test_ones_own_keys_win_over_merged_ones() -> None:
    part = load("a: &a {x: 1, y: 1}\nb: {<<: [*a, {z: 3}], x: 2}\n", "f")
    assert part.fields()["b"].plain() == {"x": 2, "y": 1, "z": 3}


def test_documents_are_told_apart() -> None:
    assert [part.plain() for part in load_all("a: 1\n---\nb: 2\n", "f")] == [{"a": 1}, {"b": 2}]
    assert load("", "f").value is None


def test_an_anchor_ends_with_its_document() -> None:
    with pytest.raises(BadLine, match="f line 3: the alias 'x' names nothing before it"):
        load_all("a: &x 1\n---\nb: *x\n", "f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "f line 3: the key 'a' is there twice, expected each once"),
        ("a:\n  - [1\n", "f line 3: is not YAML: did not find expected ',' or ']'"),
        ("a: &a [*a]\n", "f line 1: the alias 'a' holds itself"),
        ("a: 1\nb: *c\n", "f line 2: the alias 'c' names nothing before it"),
        ("? [a]\n: 1\n", "f line 1: a key is a list, a mapping or an alias, expected text"),
        ("a: !!python/name:os.system x\n", "f line 1: the tag 'python/name:os.system' is not understood"),
        ("a: !mine {}\n", "f line 1: the tag '!mine' is not understood"),
        ("[" * 40, "f line 1: is nested too deeply, expected at most 32 levels"),
        ("a: " + "9" * 200, "f line 1: a number has 200 digits, expected at most 100"),
        ("- 1\n" * 20_001, "f line 20000: has more than 20,000 parts, aliases counted where they are used"),
        ("a: 1\n---\nb: 2\n", "f line 3: a second document begins, expected one"),
        ("a: 1\n<<: 3\n", "f line 2: << is 3, expected a mapping to merge, or a list of such"),
    ],
)
def test_what_is_wrong_with_a_text_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises((BadLine, BadRow)) as error:
        load(text, "f")
    assert str(error.value) == said


def test_aliases_of_aliases_are_counted_where_they_are_used() -> None:
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    text += "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    with pytest.raises(BadLine, match=r"f line 5: has more than 20,000 parts"):
        load(text, "f")


def test_aliases_cannot_make_a_text_deeper_than_it_may_be() -> None:
    text = "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(40))
    with pytest.raises(BadLine, match="line 32: is nested too deeply"):
        load(text, "f")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (Part.truth, "f line 2: b.c is 'x', expected true or false"),
        (Part.whole, "f line 2: b.c is 'x', expected a whole number ≥ 0"),
        (Part.number, "f line 2: b.c is 'x', expected a number ≥ 0"),
        (Part.seconds, "f line 2: b.c is 'x', expected how long, such as 90s, 15m or 1h30m"),
        (Part.entries, "f line 2: b.c is 'x', expected a list"),
        (Part.fields, "f line 2: b.c is 'x', expected keys and their values"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_line_name_and_what_would_do(reader: object, said: str) -> None:
    part = load("a: 1\nb: {c: x}\n", "f").fields()["b"].fields()["c"]
    with pytest.raises(BadRow) as error:
        reader(part)  # type: ignore[operator]
    assert str(error.value) == said


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e999", "-1", "true", "'1'", "", "[1]"])
def test_a_number_is_finite_and_not_negative(number: str) -> None:
    with pytest.raises(BadRow, match=r"f line 1: a is .+, expected a number ≥ 0"):
        load(f"a: {number}\n", "f").fields()["a"].number()


def test_an_unknown_key_is_told_with_the_nearest_that_there_is() -> None:
    with pytest.raises(BadLine) as error:
        load("a:\n  gpu: 1\n", "f").fields()["a"].fields({"gpus": 1, "cpus": 1})
    assert str(error.value) == "f line 2: no key of a 'gpu'; did you mean 'gpus'? (cpus, gpus)"


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(BadRow) as error:
        load("a: " + "x" * 10_000, "f").fields()["a"].truth()
    assert len(str(error.value)) < 150


def test_files_that_cannot_be_read_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa: 1")
    for name, problem in {
        "large": "1,048,577 bytes",
        "binary": "not text",
        "absent": "no such file",
        ".": "folder",
    }.items():
        with pytest.raises(BadFile, match=problem):
            read_text(tmp_path / name)
    assert read_text(tmp_path / "bom") == "a: 1"


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(string.printable, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(string.ascii_letters, min_size=1), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=100)
@given(TREES)
def test_what_is_written_as_yaml_is_read_as_it_was(tree: object) -> None:
    assert load(yaml.safe_dump(tree), "f").plain() == tree


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=st.sampled_from("ab01: -?[]{}&*!|>'\"#%@,~<\\\n\t\u00e9\ud800\x00\u2028"), max_size=80))
def test_any_text_is_a_tree_or_an_error_with_a_line(text: str) -> None:
    try:
        documents = load_all(text, "f")
    except RefoldError as error:
        assert str(error).startswith("f line ")
    else:
        lines = text.count("\n") + text.count("\u2028") + 1
        assert all(1 <= line <= lines for document in documents for line, _, _ in told(document))
