"""`refold models`, `refold gpus` and `refold engines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold.planning.catalogue import engines, gpu_names, model_names

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

NAMES = {
    "models": model_names(),
    "gpus": gpu_names(),
    "engines": tuple(engine.name for engine in engines()),
}


@pytest.mark.parametrize("command", NAMES)
def test_every_entry_is_listed_with_its_source(command: str, stdout_of: TextOf, json_of: JsonOf) -> None:
    printed, document = stdout_of(command), json_of(command)
    assert tuple(entry["name"] for entry in document) == NAMES[command]
    for entry in document:
        assert entry["source"]
        assert any(line.startswith(entry["name"]) for line in printed.splitlines())


def test_important_figures_are_shown(stdout_of: TextOf) -> None:
    mixtral = next(line for line in stdout_of("models").splitlines() if line.startswith("mixtral-8x7b"))
    assert mixtral.split()[:9] == ["mixtral-8x7b", "46.7", "B", "decoder", "32", "4,096", "32", "/", "8"]
    assert "2 of 8" in mixtral
    a100 = next(line for line in stdout_of("gpus").splitlines() if line.startswith("A100-80GB"))
    assert a100.split()[1:3] == ["79", "312"]
    assert "nvlink 300" in a100


def test_json_contains_aliases(json_of: JsonOf) -> None:
    gpu = next(entry for entry in json_of("gpus") if entry["name"] == "A100-80GB")
    assert "A100" in gpu["aliases"]
    assert any(entry["aliases"] for entry in json_of("models"))
    assert all(entry["parameters"] > 0 for entry in json_of("models"))


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_narrow_screens(
    command: str, width: int, stdout_of: TextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = [line for line in stdout_of(command).splitlines() if ":" not in line]
    assert max(map(len, table)) <= width
