"""Models from files: shapes in YAML, configurations in JSON, folders; and error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadFile, RefoldError, UnknownName
from refold.model.documents import parse
from refold.planning.catalogue import find_model, read_model
from refold.planning.catalogue.model_files import FAMILIES
from refold.planning.perf.shapes import ModelShape

PAGE = Path(__file__).parents[3] / "docs" / "catalogue.md"

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
    "vocab_size": 100,
}


def test_a_name_of_the_catalogue() -> None:
    assert read_model("GPT3-13B") == find_model("gpt3-13b")


def test_shapes_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("{layers: 2, hidden: 64, heads: 4, vocabulary: 1_000, sequence: 128}")
    assert read_model(path) == ModelShape("tiny", layers=2, hidden=64, heads=4, vocabulary=1000, sequence=128)
    assert read_model(str(path)) == read_model(path)


def test_an_opaque_model_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "any.yml"
    path.write_text("{name: net, kind: opaque, parameters_stated: 1000000, sample_gflop: 2, sample_mib: 3.5}")
    assert read_model(path).parameters == 1_000_000


def test_a_configuration_by_its_file_and_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "other.json").write_text(json.dumps(CONFIG))
    assert read_model(folder) == read_model(folder / "config.json")
    assert (read_model(folder).name, read_model(tmp_path / "other.json").name) == ("mine", "other")


def test_a_model_in_the_hugging_face_cache_has_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "models--someone--tiny-llama" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert read_model(folder).name == "tiny-llama"


def test_a_name_takes_precedence_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert-base").write_text("{hidden: 64, heads: 4}")
    monkeypatch.chdir(tmp_path)
    assert read_model("bert-base") == find_model("bert-base")
    assert read_model("./bert-base").hidden == read_model(Path("bert-base")).hidden == 64


@pytest.mark.parametrize("given", ["nowhere.yaml", "nowhere.json", "some/where", "./x", "/no/such/folder/"])
def test_a_missing_path_is_rejected(given: str) -> None:
    with pytest.raises(BadFile, match="does not exist; expected a file of shapes"):
        read_model(given)


def test_a_hugging_face_id_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(BadFile, match="meta-llama/Llama-2-7b-hf: does not exist; the catalogue has 'llama-2-7b'"):
        read_model("meta-llama/Llama-2-7b-hf")


@pytest.mark.parametrize("given", ["", " ", "lama-2-7b", "no such model", "x" * 5000, "\0"])
def test_an_unknown_name_is_rejected(given: str) -> None:
    with pytest.raises(UnknownName):
        read_model(given)


def test_a_folder_without_a_configuration_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"is a folder without a config\.json"):
        read_model(tmp_path)


SHAPES = [
    ("", "line 1: the file is empty, expected keys and their values"),
    ("- 1", "line 1: the file is a list, expected keys"),
    ("tiny", "line 1: the file is 'tiny', expected keys"),
    ("{a: [}", "line 1: is not YAML: "),
    ("[" * 5000, "line 1: is nested too deeply"),
    ("{hiden: 64}", "line 1: unknown field 'hiden'; did you mean 'hidden'?"),
    ("{1: 64}", "unknown field '1'"),
    ("{hidden: 0}", "hidden is 0, expected a number ≥ 1"),
    ("{hidden: -64}", "hidden is -64, expected a number ≥ 1"),
    ("{hidden: .nan}", "hidden is .nan, expected a whole number$"),
    ("\n{sample_gflop: .nan}", "line 2: sample_gflop is .nan, expected a number"),
    ("{sample_gflop: .inf}", r"sample_gflop is .inf, expected a number, at most 1e\+15"),
    ("{hidden: 1" + "0" * 40 + "}", r"hidden is 1000.*000, expected a whole number, at most"),
    ("{hidden: 1" + "0" * 5000 + "}", "a number has 5,001 digits, expected at most 100"),
    ("{hidden: 0x" + "f" * 5000 + "}", "hidden is 0xfff.*f…, expected a whole number"),
    ("{hidden: 4k}", "hidden is '4k', expected a whole number"),
    ("{hidden: 1.5}", "hidden is 1.5, expected a whole number"),
    ("{hidden: [64]}", "hidden is a list, expected a whole number"),
    ("{hidden: }", "hidden is empty, expected a whole number"),
    ("{hidden: true}", "hidden is true, expected a whole number"),
    ("{hidden: 2020-01-01}", "hidden is '2020-01-01', expected a whole number"),
    ("{sample_mib: much}", "sample_mib is 'much', expected a number"),
    ("{gated: 3}", "gated is 3, expected true or false"),
    ("{name: yes}", "name is yes, expected text; quote it"),
    ("{kind: decodr}", "kind is 'decodr', expected one of decoder, encoder, "),
    ("{hidden: 64, heads: 5}", "hidden 64 is not divisible by 5 heads"),
    ("{hidden: 64, heads: 4, kv_heads: 3}", "4 heads are not divisible by 3 kv_heads"),
    ("{experts: 2, experts_per_token: 3}", "experts_per_token is 3, expected ≤ 2"),
    ("{encoder_layers: 2}", "encoder_layers is required for kind 'encoder-decoder'"),
    ("{kind: opaque}", "needs parameters_stated and sample_gflop"),
    ("hidden: &a [*a, *a]", "line 1: the alias 'a' contains itself"),
]


@pytest.mark.parametrize(("text", "words"), SHAPES, ids=lambda value: value[:30])
def test_invalid_shapes_are_rejected_with_file_and_field(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RefoldError, match=words) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path} line ")
    assert len(str(caught.value)) < 1000


CONFIGS = [
    ("", "line 1: the file is empty, expected the configuration of a model"),
    ("{", "line 2: is not JSON: "),
    ("[" * 100_000, "is nested too deeply"),
    ("null", "line 1: the file is empty, expected the configuration of a model"),
    ("[1, 2]", "line 1: the file is a list, expected the configuration of a model"),
    ("{}", r"num_attention_heads \(or n_head, n_heads, num_heads\) is missing, expected a whole number ≥ 1"),
    ('{"model_type": "mamba", "d_model": 64}', "num_attention_heads .* is missing"),
    (json.dumps(CONFIG | {"hidden_size": "64"}), "hidden_size is '64', expected a whole number"),
    (json.dumps(CONFIG | {"hidden_size": float("nan")}), "hidden_size is 'NaN', expected a whole number"),
    (json.dumps(CONFIG | {"num_attention_heads": 5}), "hidden 64 is not divisible by 5 heads"),
]


@pytest.mark.parametrize(("text", "words"), CONFIGS, ids=lambda value: value[:30])
def test_invalid_configurations_are_rejected_with_file_and_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(RefoldError, match=words) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path} line ")


def test_files_that_are_not_descriptions_are_rejected(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\0" * (2**20 + 1))
    with pytest.raises(BadFile, match="has 1,048,577 bytes, expected at most 1,048,576"):
        read_model(weights)
    weights.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="is not text"):
        read_model(weights)
    with pytest.raises(BadFile, match="no such file"):
        read_model("/dev/null")


@given(st.text(max_size=200))
def test_any_text_is_read_or_rejected(text: str) -> None:
    try:
        parse(text, ModelShape, "mine")
    except RefoldError as raised:
        assert str(raised).startswith("mine line ")


def test_the_page_documents_every_field_and_type() -> None:
    page = PAGE.read_text(encoding="utf-8")
    words = {*ModelShape.__struct_fields__, *FAMILIES}
    assert {word for word in words if f"`{word}`" not in page} == set()


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    shapes = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    Path("mine.yaml").write_text(shapes[0])
    assert read_model("mine.yaml").parameters == 1_235_812_352
    for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(text, PAGE.name, "exec"), {})
