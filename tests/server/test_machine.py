"""The machine: detected GPUs, readings, problems, the resulting cluster, and the rules for GPUs."""

# ruff: noqa: N802, N815 - names of the driver's library

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, strategies as st

from refold.engines.local.engine import LocalEngine
from refold.engines.local.process_host import OwnProcesses
from refold.errors import BadInput
from refold.model import Cluster, GpuType, Link, Node, Tenant
from refold.server.config.settings import ClusterConfig, Config, IdleRule
from refold.server.monitor.gpu_rules import BadGpu, BadGpuWatch, IdleRun, IdleWatch, RunGpus
from refold.server.monitor.machine import Layout, NvidiaMachine, SlotsMachine, build_layout, open_machine
from refold.server.monitor.nvidia import (
    XIDS,
    DetectedGpu,
    GpuProblem,
    GpuReading,
    NvidiaDriver,
    describe_xid,
    gpu_type_from_name,
    open_driver,
    select_visible,
)

GIB = 2**30


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class FakeNvml:
    """A fake pynvml; the handle of a GPU is its index."""

    NVMLError = NvmlError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_ERROR_GPU_IS_LOST = 15
    NOT_SUPPORTED = 3
    TIMEOUT = 10
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *names: str) -> None:
        self.names = names
        self.ecc = [0] * len(names)
        self.lost: set[int] = set()
        self.mig: set[int] = set()
        self.events: list[SimpleNamespace] = []
        self.closed = False

    def _answer(self, handle: int, value: Any) -> Any:
        if handle in self.lost:
            raise NvmlError(self.NVML_ERROR_GPU_IS_LOST)
        if value is None:
            raise NvmlError(self.NOT_SUPPORTED)
        return value

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{'abcdef'[handle] * 4}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.names[handle].encode()

    def nvmlDeviceGetMigMode(self, handle: int) -> Any:
        return [1, 1] if handle in self.mig else self._answer(handle, None)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer(handle, SimpleNamespace(used=3 * GIB, total=80 * GIB))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._answer(handle, SimpleNamespace(gpu=97, memory=40))

    def nvmlDeviceGetTemperature(self, handle: int, _: int) -> Any:
        return self._answer(handle, 55)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._answer(handle, None if handle == 1 else 400_500)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return self._answer(handle, [SimpleNamespace(pid=20), SimpleNamespace(pid=10)])

    def nvmlDeviceGetTotalEccErrors(self, handle: int, *_: int) -> Any:
        return self._answer(handle, self.ecc[handle])

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, _: str) -> None: ...

    def nvmlDeviceRegisterEvents(self, handle: int, *_: object) -> None:
        self._answer(handle, None if handle == 1 else 0)

    def nvmlEventSetWait_v2(self, _: str, timeout: int) -> SimpleNamespace:
        assert timeout == 0, "polling must not block"
        if not self.events:
            raise NvmlError(self.TIMEOUT)
        return self.events.pop(0)

    def happens(self, handle: int, xid: int) -> None:
        self.events.append(SimpleNamespace(device=handle, eventData=xid))


A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def test_gpus_have_the_type_names_of_the_catalogue() -> None:
    assert NvidiaDriver(FakeNvml(A100, T4)).gpus == [
        DetectedGpu(0, "GPU-aaaa", A100, "A100-80GB", 80 * 1024),
        DetectedGpu(1, "GPU-bbbb", T4, "T4", 80 * 1024),
    ]


@pytest.mark.parametrize(
    ("name", "gpu_type"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce GTX 1080 Ti", "GeForce-GTX-1080-Ti"),
        ("???", "GPU"),
    ],
)
def test_a_gpu_unknown_to_the_catalogue_keeps_its_own_name(name: str, gpu_type: str) -> None:
    assert gpu_type_from_name(name) == gpu_type


@pytest.mark.parametrize(
    ("visible", "taken"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-bbbb", [1]),
        ("GPU-b, 0", [1, 0]),
        ("1,7,0", [1]),
        ("GPU-", []),
        ("0,0", [0]),
        ("-1,0", []),
        ("NoDevFiles", []),
    ],
)
def test_only_gpus_visible_to_cuda_are_used(visible: str | None, taken: list[int]) -> None:
    driver = NvidiaDriver(FakeNvml(A100, A100, A100), visible)
    assert [gpu.uuid for gpu in driver.gpus] == [f"GPU-{'abc'[index] * 4}" for index in taken]
    assert [gpu.index for gpu in driver.gpus] == list(range(len(taken)))


@given(st.text("0123,-GPUab ", max_size=12))
def test_no_value_of_the_variable_selects_a_gpu_twice(visible: str) -> None:
    found = [(index, DetectedGpu(index, f"GPU-{'ab'[index]}", "x", "x")) for index in range(2)]
    taken = [index for index, _ in select_visible(found, visible)]
    assert len(set(taken)) == len(taken)


class MigNvml(FakeNvml):
    """A fake pynvml with MIG instances, whose handles are pairs: of the GPU, and a number."""

    def __init__(self, *names: str, profiles: Mapping[int, Sequence[str]], is_named: bool = True) -> None:
        super().__init__(*names)
        self.mig = set(profiles)
        self._profiles = profiles
        self._is_named = is_named

    def _answer(self, handle: Any, value: Any) -> Any:
        return super()._answer(handle, None if isinstance(handle, tuple) else value)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7 if handle in self._profiles else self._answer(handle, None)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, number: int) -> Any:
        if number >= len(self._profiles[handle]):
            raise NvmlError(self.NOT_SUPPORTED)
        return handle, number

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"MIG-{handle[0]}-{handle[1]}" if isinstance(handle, tuple) else super().nvmlDeviceGetUUID(handle)

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        if not isinstance(handle, tuple):
            return super().nvmlDeviceGetName(handle)
        profile = f" MIG {self._profiles[handle[0]][handle[1]]}" if self._is_named else ""
        return f"{self.names[handle[0]]}{profile}".encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        memory = 10 if isinstance(handle, tuple) else 80
        return SimpleNamespace(used=1 * GIB, total=memory * GIB)

    def nvmlDeviceGetAttributes_v2(self, handle: tuple[int, int]) -> Any:
        return SimpleNamespace(gpuInstanceSliceCount=int(self._profiles[handle[0]][handle[1]][0]))

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, *_: int) -> Any:
        return self._answer(handle, None if isinstance(handle, tuple) else self.ecc[handle])


@pytest.mark.parametrize("is_named", [True, False])
def test_mig_instances_are_offered_as_gpus(is_named: bool) -> None:
    library = MigNvml(A100, A100, profiles={0: ["1g.10gb", "2g.10gb"]}, is_named=is_named)
    driver = NvidiaDriver(library)
    assert [(gpu.index, gpu.uuid, gpu.gpu_type, gpu.memory_mib, gpu.mig_parent) for gpu in driver.gpus] == [
        (0, "MIG-0-0", "A100-80GB-MIG-1g.10gb", 10 * 1024, "GPU-aaaa"),
        (1, "MIG-0-1", "A100-80GB-MIG-2g.10gb", 10 * 1024, "GPU-aaaa"),
        (2, "GPU-bbbb", "A100-80GB", 80 * 1024, ""),
    ]
    assert [(reading.memory_mib, reading.utilisation) for reading in driver.read()] == [
        (10 * 1024, None),
        (10 * 1024, None),
        (80 * 1024, 97.0),
    ]


def test_a_gpu_in_mig_mode_without_instances_is_not_used() -> None:
    assert [gpu.uuid for gpu in NvidiaDriver(MigNvml(A100, A100, profiles={0: []})).gpus] == ["GPU-bbbb"]


def test_mig_instances_are_selected_by_uuid_and_an_error_of_their_gpu_concerns_all() -> None:
    library = MigNvml(A100, profiles={0: ["1g.10gb"] * 3})
    driver = NvidiaDriver(library, "MIG-0-2,MIG-0-0")
    assert [gpu.uuid for gpu in driver.gpus] == ["MIG-0-2", "MIG-0-0"]
    assert NvidiaDriver(library, "0").gpus == []
    library.happens(0, 79)
    assert [(problem.gpu_index, problem.bad) for problem in driver.problems()] == [(0, True), (1, True)]


def test_each_mig_instance_is_a_node_because_a_process_can_use_only_one() -> None:
    machine = NvidiaMachine(NvidiaDriver(MigNvml(A100, A100, profiles={0: ["1g.10gb", "1g.10gb"]})))
    layout = build_layout(machine, Config())
    assert [(node.name, node.gpus, node.gpu_type) for node in layout.cluster.nodes] == [
        ("localhost", 1, "A100-80GB"),
        ("localhost-mig0", 1, "A100-80GB-MIG-1g.10gb"),
        ("localhost-mig1", 1, "A100-80GB-MIG-1g.10gb"),
    ]
    assert [known.name for known in layout.cluster.gpu_types] == ["A100-80GB", "A100-80GB-MIG-1g.10gb"]
    assert layout.devices == (("GPU-bbbb",), ("MIG-0-0",), ("MIG-0-1",))
    assert layout.positions == ((1, 0), (2, 0), (0, 0))


def test_a_machine_without_driver_or_library_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("refold.server.monitor.nvidia.import_module", absent)
    assert open_driver({}) is None
    library = FakeNvml()
    monkeypatch.setattr(library, "nvmlInit", lambda: library._answer(0, None))
    monkeypatch.setattr("refold.server.monitor.nvidia.import_module", lambda _: library)
    assert open_driver({}) is None


def test_closing_the_driver_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(T4)
    monkeypatch.setattr("refold.server.monitor.nvidia.import_module", lambda _: library)
    driver = open_driver({"CUDA_VISIBLE_DEVICES": "0"})
    assert driver is not None
    assert [gpu.gpu_type for gpu in driver.gpus] == ["T4"]
    driver.close()
    assert library.closed


def test_a_reading_has_only_the_supported_values() -> None:
    library = FakeNvml(A100, A100, A100)
    library.lost = set()
    driver = NvidiaDriver(library)
    library.lost = {2}
    assert driver.read() == [
        GpuReading(0, 3 * 1024, 80 * 1024, 97.0, 55.0, 400.5, (10, 20)),
        GpuReading(1, 3 * 1024, 80 * 1024, 97.0, 55.0, None, (10, 20)),
        GpuReading(2),
    ]


def test_gpu_errors_are_problems_and_application_errors_are_not() -> None:
    library = FakeNvml(A100, A100)
    driver = NvidiaDriver(library)
    for handle, xid in ((0, 31), (0, 79), (1, 63), (1, 99_999)):
        library.happens(handle, xid)
    assert driver.problems() == [
        GpuProblem(0, "XID 79: the GPU has fallen off the bus", True),
        GpuProblem(1, "XID 63: a row of GPU memory will be remapped at the next reset", False),
        GpuProblem(1, "XID 99999: not in the table of known errors", False),
    ]
    assert driver.problems() == []


def test_only_new_memory_errors_are_problems_and_a_counter_reset_is_not() -> None:
    library = FakeNvml(A100)
    library.ecc = [5]
    driver = NvidiaDriver(library)
    assert driver.problems() == []
    library.ecc = [7]
    assert driver.problems() == [GpuProblem(0, "new uncorrectable ECC errors: 2", True)]
    library.ecc = [0]
    assert driver.problems() == []
    library.ecc = [1]
    assert driver.problems() == [GpuProblem(0, "new uncorrectable ECC errors: 1", True)]


def test_a_lost_gpu_is_reported_once() -> None:
    library = FakeNvml(A100, A100)
    driver = NvidiaDriver(library)
    library.lost = {1}
    assert [driver.problems(), driver.problems()] == [[GpuProblem(1, "the driver has lost the GPU", True)], []]


def test_every_xid_has_a_description() -> None:
    assert {number for number, xid in XIDS.items() if xid.verdict == "application"} >= {13, 31, 43, 45, 68}
    assert {number for number, xid in XIDS.items() if xid.verdict == "bad"} >= {48, 62, 64, 74, 79, 95, 119, 120}
    assert all(xid.text and not xid.text.endswith(".") for xid in XIDS.values())
    assert describe_xid(12_345).verdict == "inspect"


# The cluster.


def test_gpus_of_one_type_form_one_node_with_its_links() -> None:
    machine = NvidiaMachine(NvidiaDriver(FakeNvml(A100, A100)))
    assert build_layout(machine, Config(tenants=(Tenant("a", 1),))) == Layout(
        Cluster(
            (Node("localhost", 2, "A100-80GB", inside=Link("nvlink", 300, 3.4)),),
            (GpuType("A100-80GB", memory_gib=80.0),),
            name="localhost",
            cpus_known=False,
            memory_known=False,
            tenants=(Tenant("a", 1),),
        ),
        ((0, 0), (0, 1)),
        (("GPU-aaaa", "GPU-bbbb"),),
        (80 * 1024,),
    )


def test_gpus_of_several_types_form_several_nodes() -> None:
    layout = build_layout(NvidiaMachine(NvidiaDriver(FakeNvml(T4, A100, T4))), Config())
    assert [(node.name, node.gpus) for node in layout.cluster.nodes] == [
        ("localhost-T4", 2),
        ("localhost-A100-80GB", 1),
    ]
    assert layout.positions == ((0, 0), (1, 0), (0, 1))
    assert layout.devices == (("GPU-aaaa", "GPU-cccc"), ("GPU-bbbb",))
    assert len(layout.device_memory_mib) == 2


def test_shares_of_gpu_memory_are_enforced_if_mps_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    machine = NvidiaMachine(NvidiaDriver(FakeNvml(A100)))
    engine = LocalEngine(Config(), build_layout(machine, Config()), OwnProcesses())
    backend = engine.make_backend(MagicMock(grace=1.0, logs=tmp_path, max_output_bytes=1000))
    assert backend.enforcement() == (
        "A run sees only its own GPUs; MPS limits it to its share of a GPU's compute and memory."
    )


def test_only_the_configured_gpus_are_used() -> None:
    machine = NvidiaMachine(NvidiaDriver(FakeNvml(A100, A100, A100)))
    layout = build_layout(machine, Config(cluster=ClusterConfig(gpus=(2, 0))))
    assert (layout.positions, layout.devices) == (((0, 1), None, (0, 0)), (("GPU-cccc", "GPU-aaaa"),))
    with pytest.raises(BadInput, match=r"cluster.gpus lists GPU 3, but this machine has GPUs 0 to 2"):
        build_layout(machine, Config(cluster=ClusterConfig(gpus=(3,))))


def test_slots_are_distributed_over_the_configured_nodes() -> None:
    config = ClusterConfig("lab", nodes={"a": 2, "b": 1}, cpus=8, memory_gib=4)
    layout = build_layout(open_machine(config), Config(cluster=config))
    assert layout == Layout(
        Cluster((Node("a", 2, "slot", 8000, 4096), Node("b", 1, "slot", 8000, 4096)), name="lab"),
        ((0, 0), (0, 1), (1, 0)),
    )
    assert build_layout(SlotsMachine(3), Config(cluster=ClusterConfig(slots=3))).cluster.gpus == 3


def test_a_machine_without_gpus_and_slots_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.server.monitor.machine.open_driver", lambda: None)
    with pytest.raises(BadInput, match=r"no GPUs found .*refold serve --slots 4"):
        build_layout(open_machine(ClusterConfig()), Config())


def test_slots_have_no_readings_and_no_problems() -> None:
    machine = SlotsMachine(2)
    assert ([gpu.gpu_type for gpu in machine.gpus()], list(machine.read())) == (
        ["slot"] * 2,
        [GpuReading(0), GpuReading(1)],
    )
    assert machine.problems() == []


# Rules for GPUs.

RULE = IdleRule(utilisation_below=5, seconds=60)
RUN = RunGpus("a", 1, ((0, 0), (0, 1)))


def utilisation(*percent: float | None) -> dict[tuple[int, int], float | None]:
    return {(0, index): load for index, load in enumerate(percent)}


def test_a_run_with_long_idle_gpus_is_reported_once() -> None:
    watch = IdleWatch(RULE)
    reported = [watch.check(now, [RUN], utilisation(0, 4.9)) for now in (0, 59, 60, 61, 600)]
    text = "utilisation of all 2 GPUs below 5 % for 1 min"
    assert reported == [[], [], [IdleRun("a", 1, text)], [], []]


@pytest.mark.parametrize("between", [utilisation(0, 5), utilisation(90, 0), utilisation(0, None), utilisation(0)])
def test_idle_time_restarts_after_busy_or_unknown_utilisation(
    between: dict[tuple[int, int], float | None],
) -> None:
    watch = IdleWatch(RULE)
    seen = [
        (0, utilisation(0, 0)),
        (50, between),
        (70, utilisation(0, 0)),
        (129, utilisation(0, 0)),
        (130, utilisation(0, 0)),
    ]
    assert [len(watch.check(now, [RUN], load)) for now, load in seen] == [0, 0, 0, 0, 1]


def test_idle_time_restarts_with_the_next_run_of_a_job() -> None:
    watch = IdleWatch(RULE)
    again = RunGpus("a", 2, RUN.gpus)
    runs = [(0, RUN), (60, RUN), (61, again), (120, again), (121, again)]
    assert [len(watch.check(now, [run], utilisation(0, 0))) for now, run in runs] == [0, 1, 0, 0, 1]


def test_idle_time_of_an_ended_run_is_forgotten() -> None:
    watch = IdleWatch(RULE)
    seen: list[tuple[int, list[RunGpus]]] = [(0, [RUN]), (10, []), (70, [RUN]), (130, [RUN]), (131, []), (132, [RUN])]
    assert [len(watch.check(now, runs, utilisation(0, 0))) for now, runs in [*seen, (192, [RUN])]] == [
        0,
        0,
        0,
        1,
        0,
        0,
        1,
    ]


def test_a_run_without_gpus_is_never_idle() -> None:
    watch = IdleWatch(RULE)
    assert [watch.check(now, [RunGpus("a", 1, ())], {}) for now in (0, 600)] == [[], []]


@given(st.lists(st.tuples(st.integers(1, 50), st.lists(st.sampled_from([0.0, 80.0, None]), min_size=2, max_size=2))))
def test_a_run_is_reported_only_if_idle_at_every_check_for_long_enough(
    checks: list[tuple[int, list[float | None]]],
) -> None:
    watch, now, busy_at, reported = IdleWatch(RULE), 0, 0, 0
    for waited, percent in checks:
        now += waited
        found = watch.check(now, [RUN], utilisation(*percent))
        if percent != [0.0, 0.0]:
            busy_at = now
        reported += len(found)
        assert not found or (now - busy_at >= 60 and reported == 1)


BAD, MINOR = GpuProblem(0, "XID 79: …", True), GpuProblem(1, "XID 63: …", False)


def test_a_faulty_gpu_is_drained_once_and_other_problems_are_reported() -> None:
    watch = BadGpuWatch("drain")
    assert watch.check([BAD, BAD, MINOR]) == [BadGpu(0, "XID 79: …", True), BadGpu(1, "XID 63: …", False)]
    assert watch.check([BAD, MINOR]) == [BadGpu(1, "XID 63: …", False)]
    watch.mark_healthy(0)
    assert watch.check([BAD]) == [BadGpu(0, "XID 79: …", True)]


def test_faulty_gpus_are_only_reported_or_ignored_if_configured() -> None:
    assert BadGpuWatch("warn").check([BAD]) == [BadGpu(0, "XID 79: …", False)]
    assert BadGpuWatch("off").check([BAD, MINOR]) == []
