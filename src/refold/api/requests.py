"""What is asked by a request: its body and its parameters, as the structs of the table."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec

from refold.api.field_errors import bad_field
from refold.errors import BadField

MOST_PARAMETERS = 64


class Parameters:
    """Reads the parameters of one call, each as its type and within its limits."""

    def __init__(self, kind: type[msgspec.Struct] | None) -> None:
        self._kind = kind
        fields = msgspec.inspect.type_info(kind).fields if kind else ()  # type: ignore[attr-defined]
        self._lists = {field.name for field in fields if _has(field.type, msgspec.inspect.ListType)}
        self._texts = self._lists | {field.name for field in fields if _has(field.type, msgspec.inspect.StrType)}

    def read(self, query: bytes) -> dict[str, Any]:
        """The arguments, with those that were not given."""
        given: dict[str, Any] = {}
        for name, text in _pairs(query):
            if name in self._lists:
                given.setdefault(name, []).append(text)
            elif name in given:
                raise BadField(f"{name} is there twice, expected it once", name)
            else:
                given[name] = text if name in self._texts else _plain(text)
        if self._kind is None:
            for name in given:
                raise BadField(f"there is no parameter {name!r}: this call has none", name)
            return {}
        try:
            return msgspec.structs.asdict(msgspec.convert(given, self._kind))
        except msgspec.ValidationError as error:
            raise bad_field(error) from None


def read_json(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """A body as what the call takes."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise bad_field(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadField(f"the body is not JSON: {error}") from None


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise BadField("the parameters cannot be read: they are too many, or not in UTF-8") from None


def _plain(text: str) -> Any:
    """A number or a truth value as JSON writes it; anything else is left for the check of its type to refuse."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return text if value is None else value


def _has(kind: msgspec.inspect.Type, wanted: type[msgspec.inspect.Type]) -> bool:
    kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return any(isinstance(one, wanted) for one in kinds)
