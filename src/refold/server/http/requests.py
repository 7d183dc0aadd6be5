"""Request parsing: the JSON body and the query string, converted to the structs of the call."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from refold.client.api import MAX_QUOTED_CHARS, field_error
from refold.errors import BadField, UnknownName

MAX_PARAMETERS = 64


class QueryReader:
    """Parses the query string of one call into the struct of its parameters."""

    def __init__(self, kind: type[msgspec.Struct] | None) -> None:
        self._kind = kind
        fields = msgspec.inspect.type_info(kind).fields if kind else ()  # type: ignore[attr-defined]
        self._known = {field.name for field in fields}
        self._lists = {field.name for field in fields if _includes_type(field.type, msgspec.inspect.ListType)}
        self._texts = self._lists | {
            field.name for field in fields if _includes_type(field.type, msgspec.inspect.StrType)
        }

    def read(self, query: bytes) -> Any:
        """Return the struct of the call; None if it has no parameters. Unknown parameters are rejected."""
        arguments: dict[str, Any] = {}
        for name, text in _split_query(query):
            if name not in self._known:
                raise self._unknown(name[:MAX_QUOTED_CHARS])
            if name in self._lists:
                arguments.setdefault(name, []).append(text)
            elif name in arguments:
                raise BadField(f"{name} is given twice, expected once", name)
            else:
                arguments[name] = text if name in self._texts else _parse_scalar(text)
        if self._kind is None:
            return None
        try:
            return msgspec.convert(arguments, self._kind)
        except msgspec.ValidationError as error:
            raise field_error(error, self._kind) from None

    def _unknown(self, name: str) -> BadField:
        return BadField(str(UnknownName("parameter", name, self._known, key=str.lower)), name)


NO_PARAMETERS = QueryReader(None)


def read_json(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Decode a request body; `BadField` if it is not JSON, has a key twice, or does not match the type."""
    try:
        decoded = _decode(decoder, body)
        json.loads(body, object_pairs_hook=_reject_duplicates)  # a proxy that checks requests may read the other value
        return decoded
    except msgspec.ValidationError as error:
        raise field_error(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadField(f"the body is not JSON: {error}") from None


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Decode a body in which integers may be written as 2.0, which is one in JSON."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        try:
            parsed = json.loads(body, parse_float=_parse_number)
        except ValueError:
            raise error from None
        return decoder.decode(msgspec.json.encode(parsed))


def _parse_number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        name = next(name for number, name in enumerate(names) if name in names[:number])
        raise BadField(f"the key {name[:MAX_QUOTED_CHARS]!r} occurs twice in one object, expected once")


def _split_query(query: bytes) -> list[tuple[str, str]]:
    if not query:
        return []
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise BadField(f"the query string has more than {MAX_PARAMETERS} parameters or is not UTF-8") from None


def _parse_scalar(text: str) -> Any:
    """Parse a JSON number or boolean; any other text is returned as it is, for type validation to reject."""
    if text != text.strip():  # JSON may have spaces around it
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return text if value is None else value


def _includes_type(kind: msgspec.inspect.Type, wanted: type[msgspec.inspect.Type]) -> bool:
    members = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return any(isinstance(member, wanted) for member in members)
