"""The study file: results of simulations, so that a search that was stopped continues, and no simulation is repeated.

The first line names the inputs; each further line is the result of a policy with its settings on a part of the history.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refold.errors import BadFile
from refold.placement import Floats
from refold.simulator.results import JobMeasures
from refold.simulator.tuning.tuner import HistoryPart, PartRun

FORMAT = 1


class StudyInputs(msgspec.Struct, frozen=True):
    """What results depend on, besides the policy, its settings and the part: checksums or versions by name."""

    values: dict[str, str]
    format: int = FORMAT


class _Line(msgspec.Struct, frozen=True):
    policy: str
    settings: dict[str, Any]
    part: HistoryPart
    delay: str
    fairness: str
    preemptions: str


class Study:
    """The results so far, by policy, settings and part."""

    def __init__(self, path: Path, inputs: StudyInputs) -> None:
        """Read the file, or create it. Raises if it was made with other inputs."""
        self._path = path
        self._results: dict[str, JobMeasures] = {}
        try:
            if path.exists():
                self._read(inputs)
            else:
                path.write_bytes(msgspec.json.encode(inputs) + b"\n")
        except OSError as error:
            raise BadFile(path, f"cannot be used: {error.strerror or error}") from None

    def get(self, run: PartRun) -> JobMeasures | None:
        """Return a result; None: there is none yet."""
        return self._results.get(_key(run))

    def add(self, run: PartRun, result: JobMeasures) -> None:
        line = _Line(
            run.policy,
            dict(run.settings),
            run.part,
            _pack(result.delay),
            _pack(result.fairness),
            _pack(result.preemptions),
        )
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self._results[_key(run)] = _unpack(line)

    def _read(self, inputs: StudyInputs) -> None:
        first, *lines = self._path.read_bytes().split(b"\n")
        try:
            found = msgspec.json.decode(first, type=StudyInputs)
        except msgspec.DecodeError:
            raise BadFile(self._path, "is not a study file of refold tune; choose another --out") from None
        names = {*found.values, *inputs.values}
        other = sorted(name for name in names if found.values.get(name) != inputs.values.get(name))
        if other or found.format != inputs.format:
            what = ", ".join(other) or "format"
            raise BadFile(
                self._path, f"is a study of other inputs (differs in: {what}); remove it, or choose another --out"
            )
        for line in filter(None, lines):
            try:
                result = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:
                break  # the last line was being written when the command was killed
            self._results[_key(PartRun(result.policy, result.settings, result.part))] = _unpack(result)
        self._truncate()

    def _truncate(self) -> None:
        """Remove what follows the last complete line."""
        content = self._path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            with self._path.open("r+b") as file:
                file.truncate(end)


def _key(run: PartRun) -> str:
    return json.dumps(run, sort_keys=True)


def _pack(values: Floats) -> str:
    return base64.b64encode(zlib.compress(values.astype(np.float32).tobytes())).decode()


def _unpack(line: _Line) -> JobMeasures:
    """Return a result as it is read from the file: the search is the same whether it was interrupted or not."""
    return JobMeasures(*(_unpack_values(text) for text in (line.delay, line.fairness, line.preemptions)))


def _unpack_values(text: str) -> Floats:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.float32).astype(np.float64)
