"""NVIDIA GPUs through the driver (NVML): detection, readings and errors.

The only importer of pynvml. On a machine without the library, the driver or a GPU, no GPUs are detected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, NamedTuple

import msgspec

from refold.errors import UnknownName
from refold.model import MiB
from refold.planning.catalogue import find_gpu

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
NO_INDEX = -1
_MIB = 2**20
_MAX_EVENTS_PER_POLL = 100
"""Maximum number of events read per poll: a faulty GPU may report errors continuously."""


class DetectedGpu(msgspec.Struct, frozen=True):
    """A usable GPU. `name`: from the driver; `gpu_type`: from the catalogue, if it is listed there.

    `mig_parent`: for a MIG instance, the UUID of its GPU.
    """

    index: int
    uuid: str
    name: str
    gpu_type: str
    memory_mib: MiB | None = None
    mig_parent: str = ""


class GpuReading(msgspec.Struct, frozen=True):
    """Readings of a GPU. `utilisation` in percent, `processes`: pids. None: not supported by the GPU."""

    index: int
    memory_used_mib: MiB | None = None
    memory_mib: MiB | None = None
    utilisation: float | None = None
    celsius: float | None = None
    watts: float | None = None
    processes: tuple[int, ...] | None = None


class GpuProblem(msgspec.Struct, frozen=True):
    """An error of a GPU. `bad`: it should not be used."""

    gpu_index: int
    text: str
    bad: bool


def open_driver(environment: Mapping[str, str] = os.environ) -> NvidiaDriver | None:
    """Open the driver; None if there is none."""
    try:
        library: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        return NvidiaDriver(library, environment.get(VISIBLE_VARIABLE))
    except library.NVMLError:
        return None


class NvidiaDriver:
    """A connection to the driver that remembers which errors it has reported."""

    def __init__(self, library: Any, visible: str | None = None) -> None:
        self._library = library
        self._handles: list[Any] = []
        self.gpus: list[DetectedGpu] = []
        for handle, gpu in select_visible(list(self._usable_gpus()), visible):
            self._handles.append(handle)
            self.gpus.append(msgspec.structs.replace(gpu, index=len(self.gpus)))
        self._ecc_errors = [self._uncorrectable_errors(handle) for handle in self._handles]
        self._lost: set[int] = set()
        self._events = self._subscribe()

    def close(self) -> None:
        with suppress(self._library.NVMLError):
            if self._events is not None:
                self._library.nvmlEventSetFree(self._events)
            self._library.nvmlShutdown()

    def _usable_gpus(self) -> Iterator[tuple[Any, DetectedGpu]]:
        """Yield all GPUs; of a GPU in MIG mode its instances, since CUDA can use only these."""
        for index in range(self._library.nvmlDeviceGetCount()):
            handle = self._query("nvmlDeviceGetHandleByIndex", index)
            gpu = None if handle is None else self._describe(handle, index)
            if gpu is None:
                continue
            mig = self._query("nvmlDeviceGetMigMode", handle)
            if mig and mig[0]:
                yield from self._mig_instances(handle, gpu)
            else:
                yield handle, gpu

    def _describe(self, handle: Any, index: int) -> DetectedGpu | None:
        uuid = self._query("nvmlDeviceGetUUID", handle)
        if uuid is None:
            return None
        name = _text(self._query("nvmlDeviceGetName", handle) or "GPU")
        memory = self._query("nvmlDeviceGetMemoryInfo", handle)
        return DetectedGpu(index, _text(uuid), name, gpu_type_from_name(name), memory and memory.total // _MIB)

    def _mig_instances(self, handle: Any, parent: DetectedGpu) -> Iterator[tuple[Any, DetectedGpu]]:
        """Yield the MIG instances of a GPU. Their index is not one of the driver: they are selected by UUID."""
        for number in range(self._query("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._query("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            found = None if instance is None else self._describe(instance, NO_INDEX)
            if found is not None:
                profile = self._mig_profile(instance, found)
                kind = f"{gpu_type_from_name(parent.name)}-MIG-{profile}"
                yield instance, msgspec.structs.replace(found, gpu_type=kind, mig_parent=parent.uuid)

    def _mig_profile(self, instance: Any, gpu: DetectedGpu) -> str:
        """Return the profile of an instance, such as 1g.10gb: from its name, or by its slices and its memory."""
        if found := re.search(r"MIG (\S+)$", gpu.name):
            return found[1]
        attributes = self._query("nvmlDeviceGetAttributes_v2", instance)
        slices = "?" if attributes is None else attributes.gpuInstanceSliceCount
        return f"{slices}g.{round((gpu.memory_mib or 0) / 1024)}gb"

    def read(self) -> list[GpuReading]:
        return [self._reading(index, handle) for index, handle in enumerate(self._handles)]

    def _reading(self, index: int, handle: Any) -> GpuReading:
        memory = self._query("nvmlDeviceGetMemoryInfo", handle)
        rates = self._query("nvmlDeviceGetUtilizationRates", handle)
        celsius = self._query("nvmlDeviceGetTemperature", handle, self._library.NVML_TEMPERATURE_GPU)
        milliwatts = self._query("nvmlDeviceGetPowerUsage", handle)
        processes = self._query("nvmlDeviceGetComputeRunningProcesses", handle)
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
        """Return new errors since the last call, except those caused by applications."""
        return [*self._new_xids(), *self._new_ecc_errors(), *self._new_losses()]

    def _subscribe(self) -> Any:
        """Subscribe to XID events; None if the driver does not support them."""
        library = self._library
        try:
            events = library.nvmlEventSetCreate()
        except library.NVMLError:
            return None
        for handle in self._handles:
            with suppress(library.NVMLError):  # not supported for this GPU
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
        return events

    def _new_xids(self) -> Iterator[GpuProblem]:
        if self._events is None:
            return
        indices_of: dict[str, list[int]] = {}
        for gpu in self.gpus:
            indices_of.setdefault(gpu.mig_parent or gpu.uuid, []).append(gpu.index)
        for _ in range(_MAX_EVENTS_PER_POLL):
            event = self._query("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                return
            xid = describe_xid(int(event.eventData))
            for index in indices_of.get(_text(self._query("nvmlDeviceGetUUID", event.device) or ""), ()):
                if xid.verdict != "application":
                    yield GpuProblem(index, f"XID {int(event.eventData)}: {xid.text}", xid.verdict == "bad")

    def _new_ecc_errors(self) -> Iterator[GpuProblem]:
        for index, handle in enumerate(self._handles):
            before, now = self._ecc_errors[index], self._uncorrectable_errors(handle)
            if now is None:
                continue
            self._ecc_errors[index] = now  # a lower count means that the GPU was reset
            if before is not None and now > before:
                yield GpuProblem(index, f"new uncorrectable ECC errors: {now - before:,}", True)

    def _uncorrectable_errors(self, handle: Any) -> int | None:
        library = self._library
        count: int | None = self._query(
            "nvmlDeviceGetTotalEccErrors", handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
        )
        return count

    def _new_losses(self) -> Iterator[GpuProblem]:
        for index, handle in enumerate(self._handles):
            try:
                self._library.nvmlDeviceGetTemperature(handle, self._library.NVML_TEMPERATURE_GPU)
                self._lost.discard(index)
            except self._library.NVMLError as error:
                lost = getattr(error, "value", None) == self._library.NVML_ERROR_GPU_IS_LOST
                if lost and index not in self._lost:
                    self._lost.add(index)
                    yield GpuProblem(index, "the driver has lost the GPU", True)

    def _query(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function; None if it fails, for example because the GPU does not support it."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None


def select_visible(detected: Sequence[tuple[Any, DetectedGpu]], visible: str | None) -> list[tuple[Any, DetectedGpu]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, by index or UUID prefix, up to the first invalid entry.

    Indices are in the driver's order, which equals CUDA's order if all GPUs are of the same type.
    """
    if visible is None:
        return list(detected)
    selected: list[tuple[Any, DetectedGpu]] = []
    for word in (part.strip() for part in visible.split(",")):
        matches = [candidate for candidate in detected if _matches(word, candidate[1])]
        if len(matches) != 1 or matches[0] in selected:
            break
        selected += matches
    return selected


def _matches(word: str, gpu: DetectedGpu) -> bool:
    if word.isdecimal():
        return int(word) == gpu.index
    return word.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(word)


def gpu_type_from_name(name: str) -> str:
    """Return the catalogue's name of a GPU; if it is not listed, the driver's name without vendor and spaces."""
    try:
        return find_gpu(name).name
    except UnknownName:
        return re.sub(r"[^\w.]+", "-", name.removeprefix("NVIDIA ")).strip("-")[:64] or "GPU"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# NVIDIA driver errors (XIDs): whether the GPU is defective, should be inspected, or an application is at fault. The
# descriptions are ours. The classification follows NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors) and its
# health checks, which drain a node for errors that require a reset or a repair.

Verdict = Literal["bad", "inspect", "application"]
"""The GPU is defective; it should be inspected; or an application is at fault."""


class Xid(NamedTuple):
    verdict: Verdict
    text: str


def describe_xid(number: int) -> Xid:
    """Return the meaning of an XID; unlisted ones should be inspected."""
    return XIDS.get(number) or Xid("inspect", "not in the table of known errors")


def _bad(text: str) -> Xid:
    return Xid("bad", text)


def _inspect(text: str) -> Xid:
    return Xid("inspect", text)


def _application(text: str) -> Xid:
    return Xid("application", text)


XIDS: dict[int, Xid] = {
    8: _application("a command of an application timed out"),
    13: _application("a kernel of an application accessed memory out of bounds or executed an illegal instruction"),
    31: _application("an application accessed unmapped memory"),
    32: _inspect("corrupt command stream, caused by the application, the driver or the PCIe bus"),
    38: _inspect("driver firmware error"),
    43: _application("the channel of an application was stopped after a fault of the application"),
    45: _application("an application was terminated together with its channels"),
    46: _bad("the GPU stopped processing"),
    48: _bad("double-bit ECC error in GPU memory, which cannot be corrected"),
    61: _inspect("the microcontroller of the GPU reported a breakpoint or a warning"),
    62: _bad("the microcontroller of the GPU halted"),
    63: _inspect("a row of GPU memory will be remapped at the next reset"),
    64: _bad("a row of GPU memory could not be remapped"),
    66: _application("an application made an illegal driver call"),
    68: _application("video engine fault"),
    69: _inspect("graphics engine error, caused by the hardware or the driver"),
    74: _bad("NVLink error"),
    79: _bad("the GPU has fallen off the bus"),
    92: _inspect("high rate of single-bit ECC errors, all corrected"),
    94: _inspect("contained GPU memory error: the affected applications were terminated"),
    95: _bad("uncontained GPU memory error: results of anything that ran on the GPU may be corrupt"),
    109: _application("a context switch timed out"),
    110: _bad("security engine fault"),
    119: _bad("the GPU system processor (GSP) timed out"),
    120: _bad("the GPU system processor (GSP) failed"),
    121: _inspect("corrected error of the chip-to-chip link (C2C)"),
    136: _bad("NVLink training failed"),
    140: _bad("unrecovered ECC error in GPU memory"),
    143: _bad("the GPU could not be initialised"),
    154: _inspect("the driver changed its recommended recovery action: see nvidia-smi -q"),
}
"""The known XIDs with their descriptions."""
