"""Sequences of jobs and allocations in little memory: values of which many are equal are kept once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import isnan
from typing import Any, TypeVar, overload

import msgspec
import numpy as np
from msgspec.structs import replace

from refold.model import Allocation, Job
from refold.placement import Floats, Ints

CACHED_VALUES = 1 << 12

T = TypeVar("T")


class GrowingColumn:
    """An array that grows in place."""

    def __init__(self, dtype: Any) -> None:
        self._values: Any = np.empty(0, dtype)
        self.length = 0

    def resize(self, length: int) -> None:
        """Change the number of rows; the values of new ones are undefined."""
        if length > len(self._values):
            self._values.resize(length + length // 8, refcheck=False)
        self.length = length

    @property
    def values(self) -> Any:
        return self._values[: self.length]


class _Packed(Sequence[T]):
    """A sequence whose items are built when they are read."""

    def _item(self, index: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._item(at) for at in range(*index.indices(len(self)))]
        return self._item(range(len(self))[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._item, range(len(self)))


class DistinctValues(_Packed[T]):
    """Values of which many are equal: each is kept once, encoded, and known by a number."""

    def __init__(self, kind: type[T]) -> None:
        self._number_of: dict[bytes, int] = {}
        self._encoded: list[bytes] = []
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind)
        self._decode = lru_cache(CACHED_VALUES)(self._decode_value)

    def number(self, value: T) -> int:
        encoded = self._encoder.encode(value)
        number = self._number_of.setdefault(encoded, len(self._encoded))
        if number == len(self._encoded):
            self._encoded.append(encoded)
        return number

    def __len__(self) -> int:
        return len(self._encoded)

    def _item(self, index: int) -> T:
        return self._decode(index)

    def _decode_value(self, number: int) -> T:
        return self._decoder.decode(self._encoded[number])


class PackedAllocations(_Packed[Allocation]):
    """Allocations, of which equal ones are kept once."""

    def __init__(self, distinct: DistinctValues[Allocation], number: Ints) -> None:
        self.distinct, self.number = distinct, number

    def __len__(self) -> int:
        return len(self.number)

    def _item(self, index: int) -> Allocation:
        return self.distinct[int(self.number[index])]


class PackedJobs(_Packed[Job]):
    """Jobs as numbers of their kinds (jobs without id, submission time and work), and columns with what is missing.

    `ids`: all ids one after another, in UTF-8; `id_ends`: where each ends.
    """

    def __init__(
        self, kinds: DistinctValues[Job], kind: Ints, ids: bytearray, id_ends: Ints, submitted: Floats, work: Floats
    ) -> None:
        self._kinds, self._kind = kinds, kind
        self._ids, self._id_ends = ids, id_ends
        self._submitted, self._work = submitted, work

    @staticmethod
    def kind(job: Job) -> Job:
        return replace(job, id="-", submitted=0.0, work=None)

    def __len__(self) -> int:
        return len(self._kind)

    def _item(self, index: int) -> Job:
        begin = int(self._id_ends[index - 1]) if index else 0
        work = float(self._work[index])
        return replace(
            self._kinds[int(self._kind[index])],
            id=self._ids[begin : int(self._id_ends[index])].decode(),
            submitted=float(self._submitted[index]),
            work=None if isnan(work) else work,
        )

    def by_kind(self, value: Callable[[Job], int]) -> Ints:
        """Return a value per job that depends on its kind only."""
        values: Ints = np.array([value(kind) for kind in self._kinds], dtype=np.int64)
        return values[self._kind]
