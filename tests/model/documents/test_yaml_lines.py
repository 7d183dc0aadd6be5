"""The YAML parser reports lines and paths, and rejects any invalid text quickly and with a line number."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from refold.errors import BadFile, BadLine, BadRow, RefoldError
from refold.model.documents import Limits
from refold.model.documents.parts import Part
from refold.model.documents.yaml_lines import load_yaml, load_yaml_documents, read_text


def scalars(part: Part) -> list[tuple[int, str, object]]:
    """Return line, path and value of every scalar, in document order."""
    if isinstance(part.value, dict):
        return [line for inner in part.value.values() for line in scalars(inner)]
    if isinstance(part.value, list):
        return [line for inner in part.value for line in scalars(inner)]
    return [(part.line, part.path, part.value)]


def test_every_part_has_its_line_and_path() -> None:
    text = "name: a\nresources:\n  gpus: 2\n  types:\n    - H100\n    - {memory: 80}\nrun: |\n  one\n  two\n"
    assert scalars(load_yaml(text, "job.yaml")) == [
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
def test_unquoted_scalars_are_resolved(written: str, value: object) -> None:
    found = load_yaml(f"key: {written}\n", "f").fields()["key"].value
    assert (found, type(found)) == (value, type(value))


def test_a_scalar_keeps_its_original_text() -> None:
    parts = load_yaml("{a: 010, b: yes, on: 'x y'}", "f").fields()
    assert {key: part.written for key, part in parts.items()} == {"a": "010", "b": "yes", "on": "x y"}


def test_an_alias_has_its_own_path_and_the_line_of_its_anchor() -> None:
    part = load_yaml("base: &base\n  gpus: 2\njob:\n  <<: *base\n  name: a\nother: *base\n", "f")
    assert scalars(part) == [(2, "base.gpus", 2), (5, "job.name", "a"), (2, "job.gpus", 2), (2, "other.gpus", 2)]


def test_own_keys_override_merged_keys() -> None:
    part = load_yaml("a: &a {x: 1, y: 1}\nb: {<<: [*a, {z: 3}], x: 2}\n", "f")
    assert part.fields()["b"].to_plain() == {"x": 2, "y": 1, "z": 3}


def test_documents_are_separated() -> None:
    assert [part.to_plain() for part in load_yaml_documents("a: 1\n---\nb: 2\n", "f")] == [{"a": 1}, {"b": 2}]
    assert load_yaml("", "f").value is None


def test_an_anchor_is_local_to_its_document() -> None:
    with pytest.raises(BadLine, match="f line 3: the alias 'x' has no anchor before it"):
        load_yaml_documents("a: &x 1\n---\nb: *x\n", "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f line 3: duplicate key 'a'"),
        ("a:\n  - [1\n", "f line 3: is not YAML: did not find expected ',' or ']'"),
        ("a: &a [*a]\n", "f line 1: the alias 'a' contains itself"),
        ("a: 1\nb: *c\n", "f line 2: the alias 'c' has no anchor before it"),
        ("? [a]\n: 1\n", "f line 1: a key is a list, a mapping or an alias, expected text"),
        ("a: !!python/name:os.system x\n", "f line 1: the tag 'python/name:os.system' is not supported"),
        ("a: !mine {}\n", "f line 1: the tag '!mine' is not supported"),
        ("[" * 40, "f line 1: is nested too deeply, expected at most 32 levels"),
        ("a: " + "9" * 200, "f line 1: a number has 200 digits, expected at most 100"),
        ("- 1\n" * 20_001, "f line 20000: has more than 20,000 parts, counting each alias as a copy"),
        ("a: 1\n---\nb: 2\n", "f line 3: a second document begins, expected one"),
        ("a: 1\n<<: 3\n", "f line 2: << is 3, expected a mapping to merge, or a list of mappings"),
    ],
)
def test_an_invalid_text_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises((BadLine, BadRow)) as error:
        load_yaml(text, "f")
    assert str(error.value) == message


def test_a_text_that_is_too_long_is_rejected_before_it_is_parsed() -> None:
    assert load_yaml("a: 1", "f", Limits(max_bytes=4)).fields()["a"].value == 1
    with pytest.raises(BadFile, match="has 5 characters, expected at most 4"):
        load_yaml("a: 12", "f", Limits(max_bytes=4))


def test_an_alias_counts_as_a_full_copy() -> None:
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    text += "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    with pytest.raises(BadLine, match=r"f line 5: has more than 20,000 parts"):
        load_yaml(text, "f")


def test_aliases_cannot_exceed_the_depth_limit() -> None:
    text = "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(40))
    with pytest.raises(BadLine, match="line 32: is nested too deeply"):
        load_yaml(text, "f")


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (Part.boolean, "f line 2: b.c is 'x', expected true or false"),
        (Part.integer, "f line 2: b.c is 'x', expected a whole number ≥ 0"),
        (Part.number, "f line 2: b.c is 'x', expected a number ≥ 0"),
        (Part.duration, "f line 2: b.c is 'x', expected a duration such as 90s, 15m or 1h30m"),
        (Part.entries, "f line 2: b.c is 'x', expected a list"),
        (Part.fields, "f line 2: b.c is 'x', expected keys and their values"),
    ],
)
def test_a_value_of_another_type_is_rejected_with_line_path_and_expected_type(reader: object, message: str) -> None:
    part = load_yaml("a: 1\nb: {c: x}\n", "f").fields()["b"].fields()["c"]
    with pytest.raises(BadRow) as error:
        reader(part)  # type: ignore[operator]
    assert str(error.value) == message


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e999", "-1", "true", "'1'", "", "[1]"])
def test_a_number_must_be_finite_and_not_negative(number: str) -> None:
    with pytest.raises(BadRow, match=r"f line 1: a is .+, expected a number ≥ 0"):
        load_yaml(f"a: {number}\n", "f").fields()["a"].number()


def test_the_error_for_an_unknown_key_suggests_a_known_one() -> None:
    with pytest.raises(BadLine) as error:
        load_yaml("a:\n  gpu: 1\n", "f").fields()["a"].fields({"gpus": 1, "cpus": 1})
    assert str(error.value) == "f line 2: a: unknown field 'gpu'; did you mean 'gpus'? (known: cpus, gpus)"


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(BadRow) as error:
        load_yaml("a: " + "x" * 10_000, "f").fields()["a"].boolean()
    assert len(str(error.value)) < 150


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
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
def test_dumped_yaml_loads_unchanged(tree: object) -> None:
    assert load_yaml(yaml.safe_dump(tree), "f").to_plain() == tree


@settings(deadline=None, max_examples=200)
@example("---")
@given(st.text(alphabet=st.sampled_from("ab01: -?[]{}&*!|>'\"#%@,~<\\\n\t\u00e9\ud800\x00\u2028"), max_size=80))
def test_any_text_gives_a_tree_or_an_error_with_a_line(text: str) -> None:
    try:
        documents = load_yaml_documents(text, "f")
    except RefoldError as error:
        assert str(error).startswith("f line ")
    else:
        lines = text.count("\n") + text.count("\u2028") + 1
        assert all(1 <= line <= lines for document in documents for line, _, _ in scalars(document))
