"""A container of Kubernetes as a command on the machine itself: what it runs, with what, and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from refold.api import LONGEST_COMMAND, LONGEST_TEXT
from refold.documents import Part
from refold.jobspec.builder import SpecBuilder
from refold.jobspec.quantities import QUANTITY, quantity

GPU = ("nvidia.com/gpu", "amd.com/gpu")
IMAGE = "images are not honoured: the command runs on the machine itself"

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_KNOWN = ("name", "image", "imagePullPolicy", "command", "args", "env", "workingDir")


@dataclass(slots=True)
class Container:
    """The fields of a submission that a container says, and where."""

    part: Part
    asked: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Part] = field(default_factory=dict)

    def put(self, name: str, value: Any, part: Part) -> None:
        """A field, and where it is said."""
        self.asked[name] = value
        self.said[name] = part


def container_at(draft: SpecBuilder, part: Part, resources: str, read_elsewhere: Iterable[str]) -> Container:
    """The container that a part describes, its resources under the key `resources`."""
    container = Container(part)
    said = part.fields()
    for key, inner in said.items():
        if key == "image":
            draft.note(inner, IMAGE)
        elif key not in (*_KNOWN, resources, *read_elsewhere):
            draft.note(inner, f"{inner.path} is not honoured")
    if "env" in said:
        container.put("environment", _variables(draft, said["env"]), said["env"])
    _put_command(container, said)
    if "workingDir" in said:
        container.put("folder", draft.source.folder_at(said["workingDir"]), said["workingDir"])
    _put_resources(draft, container, said.get(resources))
    return container


def _variables(draft: SpecBuilder, part: Part) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in part.entries("a list of names and values"):
        fields = entry.fields()
        if "name" not in fields:
            raise entry.refused("name is absent, expected the name of a variable")
        name = fields["name"].text("the name of a variable")
        if "valueFrom" in fields:
            draft.note(entry, f"{entry.path}: the value of {name[:64]} comes from the cluster, and is not set")
        elif "value" in fields:
            if not isinstance(fields["value"].value, str):  # as Kubernetes, which does not take `value: 8`
                raise fields["value"].wrong("text, in quotes where it looks like something else")
            variables[name] = expanded(fields["value"].written, variables)
        else:
            variables[name] = ""
    return variables


def expanded(text: str, variables: dict[str, str]) -> str:
    """Text in which `$(NAME)` stands for a variable, as in Kubernetes; unknown ones stay, and `$$` is a `$`."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def _put_command(container: Container, said: dict[str, Part]) -> None:
    words: list[str] = []
    for key in ("command", "args"):
        if key in said:
            words += [_word(word) for word in said[key].entries("a list of words")]
    if not said.get("command") or not words:
        raise container.part.refused("command is absent, expected a list of words: that of the image is not known here")
    variables = container.asked.get("environment", {})
    container.put("command", [expanded(word, variables) for word in words], said["command"])


def _word(part: Part) -> str:
    return "" if part.value == "" else part.text("a word", LONGEST_COMMAND)


def _put_resources(draft: SpecBuilder, container: Container, part: Part | None) -> None:
    """GPUs by their limit; CPUs and memory by their request, as Kubernetes places pods, or else by their limit."""
    container.put("gpus", 0, part or container.part)
    if part is None:
        return
    groups = part.fields(("limits", "requests", "claims"))
    if "claims" in groups:
        draft.note(groups["claims"], f"{groups['claims'].path} is not honoured")
    asked = {
        key: amount for group in ("limits", "requests") if group in groups for key, amount in _amounts(groups[group])
    }
    for key, amount in asked.items():
        if key in GPU:
            container.put("gpus", _whole(amount), amount)
        elif key in _FIELDS:
            name, in_units = _FIELDS[key]
            container.put(name, in_units(_quantity(amount)), amount)
        else:
            draft.note(amount, f"{amount.path} is not honoured")


def _amounts(part: Part) -> Iterable[tuple[str, Part]]:
    return part.fields(expected="resources and their quantities").items()


_FIELDS: dict[str, tuple[str, Callable[[float], float]]] = {
    "cpu": ("cpus", lambda cpus: cpus),
    "memory": ("memory_gib", lambda size: size / 2**30),
}


def _quantity(part: Part) -> float:
    try:
        found = quantity(part.text(QUANTITY, LONGEST_TEXT))
    except ValueError:
        raise part.wrong(QUANTITY) from None
    if found < 0:
        raise part.wrong(QUANTITY)
    return found


def _whole(part: Part) -> int:
    found = _quantity(part)
    if found != int(found):
        raise part.wrong("a whole number of GPUs")
    return int(found)
