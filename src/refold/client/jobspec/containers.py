"""A container of a Kubernetes manifest, converted to a command that runs directly on the node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from refold.client.api import MAX_COMMAND_CHARS
from refold.client.jobspec.builder import LocatedFields, SpecBuilder
from refold.client.jobspec.quantities import EXPECTED_QUANTITY, parse_quantity
from refold.model.documents import Part

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
IMAGE_NOTE = "image is ignored: the command runs directly on the node"

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_CONTAINER_FIELDS = ("name", "image", "imagePullPolicy", "command", "args", "env", "workingDir")


def read_container(builder: SpecBuilder, part: Part, resources: str, read_elsewhere: Iterable[str]) -> LocatedFields:
    """Read a container. `resources`: the key of its resources; `read_elsewhere`: keys that the caller reads."""
    container = LocatedFields()
    parts = part.fields()
    for key, inner in parts.items():
        if key == "image":
            builder.note(inner, IMAGE_NOTE)
        elif key not in (*_CONTAINER_FIELDS, resources, *read_elsewhere):
            builder.note(inner, f"{inner.path} is ignored")
    if "env" in parts:
        container.put("environment", _variables(builder, parts["env"]), parts["env"])
    _put_command(container, part)
    if "workingDir" in parts:
        container.put("folder", builder.source.folder_at(parts["workingDir"]), parts["workingDir"])
    _put_resources(builder, container, part, parts.get(resources))
    return container


def _variables(builder: SpecBuilder, part: Part) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in part.entries("a list of names and values"):
        fields = entry.fields()
        if "name" not in fields:
            raise entry.error("name is missing, expected a variable name")
        name = fields["name"].text("a variable name")
        if "valueFrom" in fields:
            builder.note(entry, f"{entry.path}: {name[:64]} is not set: valueFrom is not supported")
        elif "value" in fields:
            if not isinstance(fields["value"].value, str):  # Kubernetes rejects `value: 8` too
                raise fields["value"].unexpected("text; quote numbers and booleans")
            variables[name] = expand_references(fields["value"].written, variables)
        else:
            variables[name] = ""
    return variables


def expand_references(text: str, variables: dict[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown variables are left as they are, and `$$` is a literal `$`."""

    def value_of(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value_of, text)


def _put_command(container: LocatedFields, part: Part) -> None:
    parts = part.fields()
    arguments: list[str] = []
    for key in ("command", "args"):
        if key in parts:
            arguments += [_read_argument(entry) for entry in parts[key].entries("a list of arguments")]
    if not parts.get("command") or not arguments:
        raise part.error("command is missing, expected a list of arguments; the command of the image is unknown")
    variables = container.fields.get("environment", {})
    container.put("command", [expand_references(argument, variables) for argument in arguments], parts["command"])


def _read_argument(part: Part) -> str:
    return "" if part.value == "" else part.text("an argument", MAX_COMMAND_CHARS)


def _put_resources(builder: SpecBuilder, container: LocatedFields, whole: Part, part: Part | None) -> None:
    """Set GPUs from the limits; CPUs and memory from the requests, as Kubernetes schedules, else from the limits."""
    container.put("gpus", 0, part or whole)
    if part is None:
        return
    groups = part.fields(("limits", "requests", "claims"))
    if "claims" in groups:
        builder.note(groups["claims"], f"{groups['claims'].path} is ignored")
    amounts = {
        key: amount for group in ("limits", "requests") if group in groups for key, amount in _amounts(groups[group])
    }
    for key, amount in amounts.items():
        if key in GPU_RESOURCES:
            container.put("gpus", _read_integer(amount), amount)
        elif key in _FIELDS:
            name, convert = _FIELDS[key]
            container.put(name, convert(_read_quantity(amount)), amount)
        else:
            builder.note(amount, f"{amount.path} is ignored")


def _amounts(part: Part) -> Iterable[tuple[str, Part]]:
    return part.fields(expected="resources and their quantities").items()


_FIELDS: dict[str, tuple[str, Callable[[float], float]]] = {
    "cpu": ("cpus", lambda cpus: cpus),
    "memory": ("memory_gib", lambda size: size / 2**30),
}


def _read_quantity(part: Part) -> float:
    quantity = part.quantity(parse_quantity, EXPECTED_QUANTITY)
    if quantity < 0:
        raise part.unexpected(EXPECTED_QUANTITY)
    return quantity


def _read_integer(part: Part) -> int:
    quantity = _read_quantity(part)
    if quantity != int(quantity):
        raise part.unexpected("a whole number of GPUs")
    return int(quantity)
