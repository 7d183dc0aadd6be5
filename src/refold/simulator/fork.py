"""A scheduler that can go on from one moment several times: its copies share what never changes, and nothing else.

The copy is made by pickling within memory, since that knows how to copy almost everything, and fast. Beyond what
pickling can do, functions are copied together with what they hold on to (a policy may keep a lambda about itself),
and frozen values, classes and code are not copied at all. No bytes leave the program.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_NEVER_CHANGES = (type, CodeType, ModuleType)


class CannotCopy(Exception):
    """Something in it cannot be copied, such as a generator that has begun."""


class Fork(Generic[T]):
    """What a thing was when this was made."""

    def __init__(self, thing: T) -> None:
        self._shared: list[object] = []
        written = _InMemory()
        try:
            _ForkWriter(written, self._shared).dump(thing)
        except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CannotCopy(str(error)) from error
        self._bytes = bytes(written.written)

    def copy(self) -> T:
        """One more of it, that can change on its own."""
        copied: T = _ForkReader(_InMemory(self._bytes), self._shared).load()
        return copied


class _InMemory:
    """The bytes of a snapshot, to a pickler a file."""

    def __init__(self, written: bytes = b"") -> None:
        self.written = bytearray(written)
        self._read = 0

    def write(self, some: bytes | pickle.PickleBuffer) -> int:
        """Of a large array the pickler hands over the buffer itself."""
        before = len(self.written)
        self.written += some
        return len(self.written) - before

    def read(self, size: int = -1) -> bytes:
        end = len(self.written) if size < 0 else self._read + size
        return self._take(end)

    def readline(self) -> bytes:
        end = self.written.find(b"\n", self._read) + 1
        return self._take(end or len(self.written))

    def _take(self, end: int) -> bytes:
        some = bytes(self.written[self._read : end])
        self._read = end
        return some


class _ForkWriter(pickle.Pickler):
    """Writes a thing, but for what is shared: that is kept aside and written as its number."""

    def __init__(self, file: _InMemory, shared: list[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._shared = shared
        self._number: dict[int, int] = {}

    def persistent_id(self, thing: object) -> int | None:
        if not _is_shared(thing):
            return None
        number = self._number.get(id(thing))
        if number is None:
            number = self._number[id(thing)] = len(self._shared)
            self._shared.append(thing)
        return number

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType):
            return _function_written(thing)
        if isinstance(thing, CellType):
            return _empty_cell, (), thing.cell_contents, None, None, _fill_cell
        if isinstance(thing, MappingProxyType):
            return MappingProxyType, (_under(thing),)
        return NotImplemented


class _ForkReader(pickle.Unpickler):
    """Reads it again, as often as wanted."""

    def __init__(self, file: _InMemory, shared: list[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: int) -> object:
        return self._shared[number]


def _is_shared(thing: object) -> bool:
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_config__.frozen
    if isinstance(thing, FunctionType):
        return not thing.__closure__
    if isinstance(thing, _NEVER_CHANGES):
        return True
    if isinstance(thing, BuiltinFunctionType):
        return isinstance(thing.__self__, ModuleType | type(None))
    return callable(thing) and type(thing).__module__.startswith("numba.")


def _function_written(function: FunctionType) -> Any:
    """A function together with what it holds on to: its cells, which are filled last, since they may lead back."""
    return _function_read, (_Frame(function), function.__closure__)


class _Frame(msgspec.Struct, frozen=True):
    """What of a function never changes."""

    function: Any


def _function_read(frame: _Frame, closure: tuple[CellType, ...]) -> Callable[..., Any]:
    function: FunctionType = frame.function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _empty_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, contents: object) -> None:
    cell.cell_contents = contents


def _under(proxy: MappingProxyType[Any, Any]) -> Any:
    """The dict that a proxy shows: the same one, so that the copies belong together as well."""
    from gc import get_referents

    return get_referents(proxy)[0]
