"""Deep copies of a scheduler that share only immutable values, to continue from one state several times.

The copies are made with pickle in memory, which is fast and covers almost every type. In addition to what pickle
supports, functions are copied with their closures (a policy may store a lambda that refers to itself), while frozen
structs, classes and code are shared. No pickled data leaves the process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from refold.predict import FrozenPredictor, Predictor

T = TypeVar("T")

_IMMUTABLE = (type, CodeType, ModuleType)


class CannotCopy(Exception):
    """The object contains something that cannot be copied, such as a generator."""


class Fork(Generic[T]):
    """The state of an object at the time of construction, from which copies are made."""

    def __init__(self, value: T, *, learns: bool = True) -> None:
        """`learns`: whether predictors are copied too. Else the copies share them, which is valid until they learn."""
        self._shared: list[object] = []
        file = _MemoryFile()
        try:
            _ForkWriter(file, self._shared, learns).dump(value)
        except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CannotCopy(str(error)) from error
        self._bytes = bytes(file.buffer)

    def copy(self) -> T:
        copied: T = _ForkReader(_MemoryFile(self._bytes), self._shared).load()
        return copied


class _MemoryFile:
    """A minimal in-memory file for the pickler."""

    def __init__(self, buffer: bytes = b"") -> None:
        self.buffer = bytearray(buffer)
        self._position = 0

    def write(self, chunk: bytes | pickle.PickleBuffer) -> int:
        """Append bytes. For large arrays, the pickler passes a PickleBuffer."""
        before = len(self.buffer)
        self.buffer += chunk
        return len(self.buffer) - before

    def read(self, size: int = -1) -> bytes:
        end = len(self.buffer) if size < 0 else self._position + size
        return self._read_until(end)

    def readline(self) -> bytes:
        end = self.buffer.find(b"\n", self._position) + 1
        return self._read_until(end or len(self.buffer))

    def _read_until(self, end: int) -> bytes:
        chunk = bytes(self.buffer[self._position : end])
        self._position = end
        return chunk


class _ForkWriter(pickle.Pickler):
    """A pickler that stores shared values in a list, and writes only their indices."""

    def __init__(self, file: _MemoryFile, shared: list[object], learns: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._shared, self._learns = shared, learns
        self._indices: dict[int, int] = {}

    def persistent_id(self, value: object) -> int | None:
        is_frozen = not self._learns and isinstance(value, Predictor)
        if not (is_frozen or _is_shared(value)):
            return None
        index = self._indices.get(id(value))
        if index is None:
            index = self._indices[id(value)] = len(self._shared)
            self._shared.append(FrozenPredictor(value) if is_frozen and isinstance(value, Predictor) else value)
        return index

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return _reduce_function(value)
        if isinstance(value, CellType):
            return _empty_cell, (), value.cell_contents, None, None, _fill_cell
        if isinstance(value, MappingProxyType):
            return MappingProxyType, (_proxied_dict(value),)
        return NotImplemented


class _ForkReader(pickle.Unpickler):
    """An unpickler that resolves the indices of shared values."""

    def __init__(self, file: _MemoryFile, shared: list[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, index: int) -> object:
        return self._shared[index]


def _is_shared(value: object) -> bool:
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    if isinstance(value, FunctionType):
        return not value.__closure__
    if isinstance(value, _IMMUTABLE):
        return True
    return isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type(None))


def _reduce_function(function: FunctionType) -> Any:
    """Reduce a function to its code and closure cells. Cells are filled last, because they may refer back to it."""
    return _rebuild_function, (_FunctionRef(function), function.__closure__)


class _FunctionRef(msgspec.Struct, frozen=True):
    """A frozen, hence shared, reference to the original function."""

    function: Any


def _rebuild_function(reference: _FunctionRef, closure: tuple[CellType, ...]) -> Callable[..., Any]:
    function: FunctionType = reference.function
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _empty_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, contents: object) -> None:
    cell.cell_contents = contents


def _proxied_dict(proxy: MappingProxyType[Any, Any]) -> Any:
    """Return the dict behind a proxy, so that in the copy the proxy again shows the dict's copy."""
    from gc import get_referents

    return get_referents(proxy)[0]
