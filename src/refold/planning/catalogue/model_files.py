"""Read a model by name or from a file: shapes in YAML, or a Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path

from refold.errors import BadFile
from refold.model.documents import Part, convert, load_yaml, read_text
from refold.planning.catalogue.builtin import find_model, known_model
from refold.planning.catalogue.hugging_face import shape_from_config
from refold.planning.perf import ModelShape

SUFFIXES = {".json", ".yaml", ".yml"}


def read_model(path_or_name: str | Path) -> ModelShape:
    """Return a model of the catalogue by name, or read it from a file or a checkpoint folder."""
    text, path = str(path_or_name), Path(path_or_name)
    if isinstance(path_or_name, str) and (known := known_model(text)):
        return known
    if text and _exists(path):
        return _read_path(path)
    if isinstance(path_or_name, Path) or _looks_like_path(text):
        raise BadFile(text, f"does not exist; {_suggestion(path.name)}")
    return find_model(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or Path(text).suffix.lower() in SUFFIXES


def _suggestion(name: str) -> str:
    """Suggest a fix: the text may be a Hugging Face ID, 'meta-llama/Llama-2-7b-hf', of a model in the catalogue."""
    if known := known_model(name):
        return f"the catalogue has {known.name!r}"
    return "expected a file of shapes, a config.json or its folder, or a name listed by `refold models`"


def _read_path(path: Path) -> ModelShape:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadFile(path, "is a folder without a config.json")
        path = path / "config.json"
    document = load_yaml(read_text(path), str(path))
    if path.suffix.lower() == ".json":
        return shape_from_config(document, _model_name(path))
    document.fields().setdefault("name", Part(document.where, 1, path.stem, path.stem, document, "name"))
    return convert(document, ModelShape)


def _model_name(path: Path) -> str:
    """Return 'mine' for mine.json and mine/config.json; in the Hugging Face cache, the name of the model."""
    if path.name != "config.json":
        return path.stem
    folder = path.resolve().parent
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or "model"
