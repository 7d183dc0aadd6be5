"""Compile hot loops with Numba, cached on disk.

The cache is outside the package: `$REFOLD_CACHE_DIR`, else `~/.cache/refold` (`$XDG_CACHE_HOME`), else a private
temporary folder. It is keyed by the contents of the kernels' sources, not by paths or modification times: every
checkout and installed version with the same kernels shares it. Changing a kernel recompiles those of its folder, and
one of `packing`, `predict` or `policies.learned` all kernels, since Numba inlines these into each other. Kernels use
nothing else of other folders (`tests/test_layering.py` checks this): a change of it would not recompile them.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, datamodel, imputils, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.typing.templates import AttributeTemplate
from numba.experimental import structref
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, lower_setattr_generic

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_code, _ir, _models, _results, _structs = cast(tuple[Any, ...], (cgutils, ir, datamodel, imputils, structref))

_PACKAGE = Path(__file__).parent
SHARED_SOURCES = [
    *sorted(_PACKAGE.glob("packing/*.py")),
    *(_PACKAGE / "policies" / "learned" / f"{name}.py" for name in ("arrays", "placing", "round", "scores")),
    _PACKAGE / "model" / "units.py",
]
_KEY = sha256(b"".join(path.read_bytes() for path in SHARED_SOURCES)).hexdigest()


def compiled(function: F) -> F:
    """Compile with Numba at the first call, or load the compiled function from the cache."""
    return _cached(function, counts_references=True)


def compiled_without_references(function: F) -> F:
    """Compile as `compiled` does, without counting references: for functions that allocate no arrays.

    Numba counts the references to every array of every argument in each call, by atomic operations that take longer
    than a short function.
    """
    return _cached(function, counts_references=False)


def compiled_part(function: F) -> F:
    """Compile as `compiled_without_references` does, and into its callers: for the parts of a loop that share a state.

    Every array of a struct is passed as seven arguments, so calls with a large state take longer than short functions.
    """
    return _cached(function, counts_references=False, forceinline=True)


def _cached(function: F, counts_references: bool, **further_options: bool) -> F:
    # Numba's own name of the option. It has to be set in both cases: otherwise a function inherits it from its caller.
    options: dict[str, Any] = {"_nrt": counts_references, **further_options}
    dispatcher: Any = numba.njit(error_model="numpy", **options)(function)
    kernel_cache: Any = _KernelCache(function)  # type: ignore[no-untyped-call]
    kernel_cache._cache_file._load_index = _empty_if_unreadable(kernel_cache._cache_file._load_index)
    dispatcher._cache = kernel_cache
    return cast(F, dispatcher)


@cache
def kernel_folder() -> Path:
    """Return a writable folder for compiled kernels: in the cache, or else a temporary one."""
    name = f"kernels-{_KEY[:16]}"
    folder = _cache_folder() / name
    return folder if _is_writable(folder) else _temporary_folder() / name


class KernelNotCached(Exception):
    """A kernel is not in the cache, and would have to be compiled."""


_cached_only = ContextVar("cached_only", default=False)


@contextmanager
def cached_kernels_only() -> Iterator[None]:
    """Raise KernelNotCached instead of compiling, inside the context and in this thread."""
    token = _cached_only.set(True)
    try:
        yield
    finally:
        _cached_only.reset(token)


def _cache_folder() -> Path:
    if folder := os.environ.get("REFOLD_CACHE_DIR"):
        return Path(folder)
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent) / "refold"
    home = os.path.expanduser("~")  # noqa: PTH111
    return Path(home) / ".cache" / "refold" if home != "~" else _temporary_folder()  # the user has no home folder


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def _temporary_folder() -> Path:
    """Return a temporary folder that only this user can write: cached kernels are code, and /tmp is shared."""
    folder = Path(tempfile.gettempdir()) / f"refold-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if is_private and status.st_uid == os.getuid() and _is_writable(folder):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="refold-"))


class _KernelLocator:
    """Cache locator for Numba: where a compiled function is stored, and for which sources it is valid."""

    def __init__(self, source: Path, line: int) -> None:
        self._source, self._line = source, line

    @classmethod
    def from_function(cls, function: Any, source: str) -> _KernelLocator:
        return cls(Path(source), function.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        return str(kernel_folder())

    def ensure_cache_path(self) -> None:
        kernel_folder().mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return _contents(self._source.parent)

    def get_disambiguator(self) -> str:
        return str(self._line)


@cache
def _contents(folder: Path) -> str:
    """Return a hash of the sources in a folder on which its kernels may depend."""
    return sha256(b"".join(path.read_bytes() for path in kernel_sources(folder))).hexdigest()


def kernel_sources(folder: Path) -> list[Path]:
    """Return the sources in a folder on which its kernels may depend: those with kernels, or with arrays for them."""
    sources = {path: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    return [path for path, source in sources.items() if b"refold.jit" in source or b"refold.packing" in source]


class _KernelCacheFiles(CompileResultCacheImpl):
    _locator_classes = [_KernelLocator]  # noqa: RUF012


class _KernelCache(FunctionCache):
    _impl_class = _KernelCacheFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if overload is None and _cached_only.get():
            raise KernelNotCached
        return overload


def _empty_if_unreadable(load_index: Callable[[], Any]) -> Callable[[], Any]:
    """Treat a cache index as empty if it refers to classes that no longer exist under that name."""

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    return load


@dataclass_transform()
def struct(fields_of: type[T]) -> type[T]:
    """Make a class a dataclass that compiled functions can create, change and pass by reference.

    They do not accept its instances from Python, but can create one from the tuple that `values_of` returns. A state of
    many arrays as a tuple is passed by value: Numba passes each number of each array as an argument of its own, and
    takes minutes to compile functions with thousands of them. Functions that do not count references can read fields,
    but not set them; an array that they have read must not be used after it has been replaced.
    """
    made = dataclass(fields_of)
    name = f"{made.__name__}Type"
    struct_type: Any = type(name, (types.StructRef,), {"__module__": made.__module__, "preprocess_fields": _plain})
    setattr(sys.modules[made.__module__], name, struct_type)  # cached kernels refer to it by this name
    _models.default_manager.register(struct_type, _models.models.StructRefModel)
    _define_fields(struct_type)
    _structs.define_constructor(made, struct_type, [field.name for field in fields(cast(Any, made))])
    return made


def _plain(_self: Any, members: Any) -> Any:
    return tuple((name, cast(Any, types).unliteral(member)) for name, member in members)


def _define_fields(struct_type: Any) -> None:
    """Let compiled functions read and set the fields of a struct: as `structref.register`, but also without counts."""

    class Attributes(AttributeTemplate):
        key = struct_type

        def generic_resolve(self, typ: Any, attr: str) -> Any:  # type: ignore[override]
            return typ.field_dict.get(attr)

    def read(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
        found = getattr(_payload(context, builder, typ, value), attr)
        return _results.impl_ret_borrowed(context, builder, typ.field_dict[attr], found)

    def write(context: Any, builder: Any, signature: Any, arguments: Any, attr: str) -> None:
        (typ, value_type), (instance, value) = signature.args, arguments
        payload, field_type = _payload(context, builder, typ, instance), typ.field_dict[attr]
        new = context.cast(builder, value, value_type, field_type)
        old = getattr(payload, attr)
        context.nrt.incref(builder, field_type, new)
        context.nrt.decref(builder, field_type, old)
        setattr(payload, attr, new)

    infer_getattr(Attributes)  # type: ignore[no-untyped-call]
    lower_getattr_generic(struct_type)(read)  # type: ignore[no-untyped-call]
    lower_setattr_generic(struct_type)(write)  # type: ignore[no-untyped-call]


def _payload(context: Any, builder: Any, typ: Any, value: Any) -> Any:
    """Return the fields of a struct, from the reference to it."""
    reference = _code.create_struct_proxy(typ)(context, builder, value=value)
    word, pointer = _ir.IntType(64), _ir.PointerType(ir.IntType(8))
    counted = _ir.LiteralStructType([word, pointer, pointer, pointer, word])  # the fourth is the pointer to the data
    data = builder.load(_code.gep(builder, builder.bitcast(reference.meminfo, counted.as_pointer()), 0, 3))
    fields_type = typ.get_data_type()
    stored = context.data_model_manager[fields_type].get_value_type().as_pointer()
    return _code.create_struct_proxy(fields_type)(context, builder, ref=builder.bitcast(data, stored))


def values_of(instance: Any) -> tuple[Any, ...]:
    """Return the values of the fields of a struct, in order."""
    return tuple(getattr(instance, field.name) for field in fields(instance))


def inlined(function: F) -> F:
    """Compile into every caller: for short functions in inner loops, where a call would cost more than the body."""
    return cast(F, numba.njit(inline="always", error_model="numpy")(function))


def _trailing_zeros(_typing: Any, word: Any) -> Any:
    """Return the index of the lowest set bit of a nonzero uint64; one machine instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate if word == types.uint64 else None


def _count_ones(_typing: Any, word: Any) -> Any:
    """Return the number of set bits of a uint64; one machine instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate if word == types.uint64 else None


trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_trailing_zeros))
count_ones = cast(Callable[[np.uint64], int], intrinsic(_count_ones))
