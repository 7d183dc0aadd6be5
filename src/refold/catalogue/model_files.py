"""A model by name or from a file of one's own: shapes in YAML, or a config.json of Hugging Face."""

from __future__ import annotations

from pathlib import Path

from refold.catalogue.builtin import find_model, known_model
from refold.catalogue.hugging_face import shape_from_config
from refold.documents import as_struct, from_json, from_yaml, shown, text_of
from refold.errors import BadFile, BadValue
from refold.perf import ModelShape

SUFFIXES = {".json", ".yaml", ".yml"}


def read_model(path_or_name: str | Path) -> ModelShape:
    """A model of the catalogue by its name, or one that a file or the folder of a checkpoint describes."""
    given, path = str(path_or_name), Path(path_or_name)
    if isinstance(path_or_name, str) and (known := known_model(given)):
        return known
    if given and _is_there(path):
        return _from_path(path)
    if isinstance(path_or_name, Path) or _looks_like_a_path(given):
        raise BadFile(given, f"is not there; {_instead(path.name)}")
    return find_model(given)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _looks_like_a_path(given: str) -> bool:
    return "/" in given or "\\" in given or Path(given).suffix.lower() in SUFFIXES


def _instead(name: str) -> str:
    """What would do: perhaps someone wrote 'meta-llama/Llama-2-7b-hf' for a model that the catalogue has."""
    if known := known_model(name):
        return f"the catalogue has {known.name!r}"
    return "expected a file of shapes, a config.json, the folder of one, or a name that `refold models` lists"


def _from_path(path: Path) -> ModelShape:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadFile(path, "is a folder without a config.json")
        path = path / "config.json"
    text = text_of(path)
    if path.suffix.lower() == ".json":
        return _from_config(path, from_json(path, text))
    return _from_shapes(path, from_yaml(path, text))


def _from_config(path: Path, document: object) -> ModelShape:
    if not isinstance(document, dict):
        raise BadFile(path, f"is {shown(document)}, expected the configuration of a model")
    try:
        return shape_from_config(document, _name_of(path))
    except BadValue as error:
        raise BadFile(path, str(error)) from None


def _from_shapes(path: Path, document: object) -> ModelShape:
    named = {"name": path.stem, **document} if isinstance(document, dict) else document
    return as_struct(path, named, ModelShape)


def _name_of(path: Path) -> str:
    """'mine' of mine.json, and of mine/config.json; in the cache of Hugging Face, the name of the model."""
    if path.name != "config.json":
        return path.stem
    folder = path.resolve().parent
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or "model"
