"""GPUs as NVIDIA's driver tells of them: which there are, how busy they are, and what is wrong with them.

The only importer of pynvml. A machine without the library, the driver or a GPU has no GPUs, which is no error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec

from refold.backends.local.xids import meaning
from refold.catalogue import find_gpu
from refold.errors import UnknownName
from refold.model import MiB

VISIBLE = "CUDA_VISIBLE_DEVICES"
_MIB = 2**20
_MOST_EVENTS = 100
"""As many are taken at one look: a GPU in trouble repeats itself."""


class DetectedGpu(msgspec.Struct, frozen=True):
    """A GPU that we may use; `name` is the driver's, `gpu_type` the catalogue's where that knows it."""

    index: int
    uuid: str
    name: str
    gpu_type: str
    memory_mib: MiB | None = None


class GpuReading(msgspec.Struct, frozen=True):
    """A GPU at a moment; `load` is a percentage, `processes` are ids. What cannot be measured is None."""

    index: int
    memory_used_mib: MiB | None = None
    memory_mib: MiB | None = None
    load: float | None = None
    celsius: float | None = None
    watts: float | None = None
    processes: tuple[int, ...] | None = None


class GpuProblem(msgspec.Struct, frozen=True):
    """Something that is wrong with a GPU; `bad`: nothing should run on it."""

    gpu_index: int
    text: str
    bad: bool


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[DetectedGpu]:
    """The GPUs that we may use; none, where there is no driver or library."""
    driver = open_driver(environment)
    if driver is None:
        return []
    with driver:
        return driver.gpus


def open_driver(environment: Mapping[str, str] = os.environ) -> NvidiaDriver | None:
    """The driver, or None where there is none."""
    try:
        library: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        return NvidiaDriver(library, environment.get(VISIBLE))
    except library.NVMLError:
        return None


class NvidiaDriver:
    """A connection to the driver, which knows what it has told before."""

    def __init__(self, library: Any, visible: str | None = None) -> None:
        self._library = library
        self._handles: list[Any] = []
        self.gpus: list[DetectedGpu] = []
        for handle, gpu in chosen(list(self._whole_gpus()), visible):
            self._handles.append(handle)
            self.gpus.append(msgspec.structs.replace(gpu, index=len(self.gpus)))
        self._ecc_errors = [self._uncorrected(handle) for handle in self._handles]
        self._lost: set[int] = set()
        self._events = self._listen()

    def __enter__(self) -> NvidiaDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the driver."""
        with suppress(self._library.NVMLError):
            if self._events is not None:
                self._library.nvmlEventSetFree(self._events)
            self._library.nvmlShutdown()

    def _whole_gpus(self) -> Iterator[tuple[Any, DetectedGpu]]:
        """All but those that are cut into parts (MIG): work on these is placed by other means."""
        for index in range(self._library.nvmlDeviceGetCount()):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            uuid = self._ask("nvmlDeviceGetUUID", handle)
            mig = self._ask("nvmlDeviceGetMigMode", handle)
            if handle is None or uuid is None or (mig and mig[0]):
                continue
            name = _text(self._ask("nvmlDeviceGetName", handle) or "GPU")
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            yield handle, DetectedGpu(index, _text(uuid), name, type_of(name), memory and memory.total // _MIB)

    def read(self) -> list[GpuReading]:
        """How every GPU does now."""
        return [self._reading(index, handle) for index, handle in enumerate(self._handles)]

    def _reading(self, index: int, handle: Any) -> GpuReading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        celsius = self._ask("nvmlDeviceGetTemperature", handle, self._library.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return GpuReading(
            index,
            memory and memory.used // _MIB,
            memory and memory.total // _MIB,
            None if rates is None else float(rates.gpu),
            None if celsius is None else float(celsius),
            None if milliwatts is None else milliwatts / 1000,
            None if processes is None else tuple(sorted(process.pid for process in processes)),
        )

    def problems(self) -> list[GpuProblem]:
        """What has gone wrong since the last call; applications' own faults are not told."""
        return [*self._new_xids(), *self._new_ecc_errors(), *self._newly_lost()]

    def _listen(self) -> Any:
        """A set of events to wait on; None where the driver has no such."""
        library = self._library
        try:
            events = library.nvmlEventSetCreate()
        except library.NVMLError:
            return None
        for handle in self._handles:
            with suppress(library.NVMLError):  # of this GPU, the driver tells none
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
        return events

    def _new_xids(self) -> Iterator[GpuProblem]:
        if self._events is None:
            return
        index_of = {gpu.uuid: gpu.index for gpu in self.gpus}
        for _ in range(_MOST_EVENTS):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                return
            index = index_of.get(_text(self._ask("nvmlDeviceGetUUID", event.device) or ""))
            xid = meaning(int(event.eventData))
            if index is not None and xid.verdict != "application":
                yield GpuProblem(index, f"XID {int(event.eventData)}: {xid.says}", xid.verdict == "bad")

    def _new_ecc_errors(self) -> Iterator[GpuProblem]:
        for index, handle in enumerate(self._handles):
            before, now = self._ecc_errors[index], self._uncorrected(handle)
            if now is None:
                continue
            self._ecc_errors[index] = now  # fewer than before: the GPU was reset
            if before is not None and now > before:
                yield GpuProblem(index, f"new errors of memory that could not be corrected: {now - before:,}", True)

    def _uncorrected(self, handle: Any) -> int | None:
        library = self._library
        count: int | None = self._ask(
            "nvmlDeviceGetTotalEccErrors", handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
        )
        return count

    def _newly_lost(self) -> Iterator[GpuProblem]:
        for index, handle in enumerate(self._handles):
            try:
                self._library.nvmlDeviceGetTemperature(handle, self._library.NVML_TEMPERATURE_GPU)
                self._lost.discard(index)
            except self._library.NVMLError as error:
                lost = getattr(error, "value", None) == self._library.NVML_ERROR_GPU_IS_LOST
                if lost and index not in self._lost:
                    self._lost.add(index)
                    yield GpuProblem(index, "the driver has lost it", True)

    def _ask(self, question: str, *about: Any) -> Any:
        """What the driver answers; None where it cannot, which differs from GPU to GPU."""
        try:
            return getattr(self._library, question)(*about)
        except self._library.NVMLError:
            return None


def chosen(found: Sequence[tuple[Any, DetectedGpu]], visible: str | None) -> list[tuple[Any, DetectedGpu]]:
    """Those that CUDA_VISIBLE_DEVICES names, by index or the beginning of an id, up to the first that is wrong.

    Indices are taken in the driver's order, which is CUDA's too where all GPUs are alike.
    """
    if visible is None:
        return list(found)
    taken: list[tuple[Any, DetectedGpu]] = []
    for word in (part.strip() for part in visible.split(",")):
        fits = [one for one in found if _names(word, one[1])]
        if len(fits) != 1 or fits[0] in taken:
            break
        taken += fits
    return taken


def _names(word: str, gpu: DetectedGpu) -> bool:
    if word.isdecimal():
        return int(word) == gpu.index
    return word.startswith("GPU-") and gpu.uuid.startswith(word)


def type_of(name: str) -> str:
    """The catalogue's name for what the driver calls a GPU; else the driver's own, without spaces and the vendor."""
    try:
        return find_gpu(name).name
    except UnknownName:
        return re.sub(r"[^\w.]+", "-", name.removeprefix("NVIDIA ")).strip("-")[:64] or "GPU"


def _text(said: str | bytes) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said
