"""Choosing configurations for a machine and measuring them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from engine_tests import needs_torch

from refold.errors import BadInput, BadValue, MissingExtra
from refold.model.plan import Plan, parse_plan
from refold.planning.perf.measurement import Measurement
from refold.planning.perf.shapes import ModelShape
from refold.train import profiling
from refold.train.profiling import (
    ProfileConfig,
    StepBudget,
    check_device,
    choose_configs,
    default_thread_counts,
    device_name,
    needs_at_least_memory_of,
    profile,
    truncate_layers,
)

GPT = ModelShape("gpt", layers=2, hidden=32, heads=4, vocabulary=100, positions=16, sequence=16, batch=8)
QUICK = StepBudget(steps=1, warm_up=0)


def test_the_first_seven_configurations_are_the_most_informative() -> None:
    configs = choose_configs(GPT, threads=[16, 4])
    assert [str(config) for config in configs[:7]] == [
        "DP1, 8 × 16",
        "DP1 recompute full, 8 × 16",
        "DP1 accumulate 2, 8 × 16",
        "DP1 recompute selective, 8 × 16",
        "DP1 offload, 8 × 16, 16 threads",
        "DP1 offload, 8 × 16, 4 threads",
        "DP1 offload accumulate 2, 8 × 16, 16 threads",
    ]
    changes = [before.plan.offload != after.plan.offload for before, after in pairwise(configs)]
    assert sum(changes) == 4  # one change within each group of seven
    assert {config.batch for config in configs} == {8}
    assert len({*configs}) == len(configs) == 4 * 6


def test_accumulation_steps_are_divisors_of_the_batch() -> None:
    steps = {config.plan.accumulation for config in choose_configs(GPT, batch=12)}
    assert sorted(steps) == [1, 2, 4, 12]


def test_larger_batches_are_added_if_a_batch_gives_too_few_configurations() -> None:
    configs = choose_configs(GPT, batch=1, threads=[1], count=9)
    assert len(configs) >= 9
    assert {config.batch for config in configs} == {1, 2}


def test_default_thread_counts_begin_with_the_largest() -> None:
    assert max(default_thread_counts()) == default_thread_counts()[0]
    assert min(default_thread_counts()) >= 1


@pytest.mark.parametrize(
    ("text", "batch", "more"),
    [
        ("accumulate 2", 8, True),
        ("accumulate 1", 8, False),  # a single micro-batch stores no gradients between micro-batches
        ("accumulate 4", 8, False),
        ("accumulate 4", 16, True),
        ("recompute full accumulate 2", 8, False),
        ("offload accumulate 2", 8, False),
    ],
)
def test_configurations_are_compared_by_memory(text: str, batch: int, more: bool) -> None:
    failed = ProfileConfig(Plan(accumulation=2), 8, 16)
    assert needs_at_least_memory_of(ProfileConfig(parse_plan(text), batch, 16), failed) is more


def test_invalid_configurations_are_rejected() -> None:
    with pytest.raises(BadValue, match="a batch of 8 cannot be trained with DP1 accumulate 3"):
        ProfileConfig(Plan(accumulation=3), 8, 16)


def test_the_name_of_a_reduced_model_includes_its_layers() -> None:
    t5 = ModelShape("t5", kind="encoder-decoder", layers=8, encoder_layers=8, parameters_stated=9, vocabulary=3)
    reduced = truncate_layers(t5, 2)
    assert (reduced.name, reduced.layers, reduced.encoder_layers, reduced.parameters_stated) == ("t5-2-layers", 2, 2, 0)
    with pytest.raises(BadInput, match="has 8 layers: cannot reduce it to 8"):
        truncate_layers(t5, 8)


def test_pytorch_and_numpy_are_imported_only_when_needed() -> None:
    code = "import sys, refold.train.profiling, refold.cli.commands.profile; print({'torch', 'numpy'} & {*sys.modules})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


def test_the_error_without_pytorch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"needs an optional dependency: pip install '\.\[train\]'"):
        next(profile(GPT, []))


@pytest.mark.torch
@needs_torch
class TestMeasuring:
    """Measurements on the CPU."""

    def test_a_measurement_has_all_fields(self) -> None:
        (one,) = profile(GPT, [ProfileConfig(Plan(accumulation=2), 8, 16, 2)], budget=StepBudget(steps=3, warm_up=1))
        assert (one.model, one.gpu, one.gpus_on_node, one.batch, one.sequence) == ("gpt", "cpu", (1,), 8, 16)
        assert (one.status, one.cpus, one.micro_batch) == ("ok", 2, 4)
        phases = (one.forward_seconds, one.backward_seconds, one.optimizer_seconds)
        assert all(seconds is not None and seconds > 0 for seconds in phases)
        assert one.step_seconds is not None
        assert one.memory_gib is not None and one.memory_gib > 0
        assert one.samples_per_second == 8 / one.step_seconds

    def test_warm_up_steps_are_run_and_long_steps_are_not_repeated(self) -> None:
        steps: list[int] = []
        config = ProfileConfig(Plan(), 2, 8)
        [*profile(GPT, [config], budget=StepBudget(steps=4, warm_up=2), on_step=lambda: steps.append(1))]
        assert len(steps) == 6
        steps.clear()
        [*profile(GPT, [config], budget=StepBudget(steps=4, warm_up=1, seconds=0.0), on_step=lambda: steps.append(1))]
        assert len(steps) == 2

    def test_measuring_stops_after_max_fitting_configurations(self) -> None:
        assert len([*profile(GPT, choose_configs(GPT, threads=[1]), max_fitting=3, budget=QUICK)]) == 3

    def test_configurations_out_of_memory_are_recorded_and_larger_ones_are_skipped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from refold.train import steps

        monkeypatch.setattr(steps, "Trainer", limit_memory(steps.Trainer, max_samples=2))
        found = [*profile(GPT, plans_to_measure(), max_fitting=2, budget=QUICK)]
        assert [(str(one.plan), one.status) for one in found] == [
            ("DP1", "oom"),
            ("DP1 recompute full", "oom"),
            ("DP1 accumulate 2", "oom"),
            ("DP1 accumulate 4", "ok"),
            ("DP1 accumulate 8", "ok"),
        ]
        assert found[0] == Measurement("gpt", "cpu", (1,), Plan(), 8, 16, 1.0, status="oom")

    def test_other_errors_are_not_treated_as_out_of_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from refold.train import steps

        def fail(*_: object) -> None:
            raise RuntimeError("shapes do not match")

        monkeypatch.setattr(steps.Trainer, "step", fail)
        with pytest.raises(RuntimeError, match="shapes do not match"):
            next(profile(GPT, [ProfileConfig(Plan(), 8, 16)]))

    @pytest.mark.parametrize(
        ("message", "out_of_memory"),
        [
            ("CUDA error: out of memory", True),
            ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes", True),
            ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
            ("CUDA error: an illegal memory access was encountered", False),
        ],
    )
    def test_out_of_memory_errors_are_recognised_by_their_messages(self, message: str, out_of_memory: bool) -> None:
        assert profiling.is_out_of_memory(RuntimeError(message)) is out_of_memory

    def test_an_unavailable_device_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        check_device("cpu")
        with pytest.raises(BadInput, match="no device 'cuda': this machine has no GPU that PyTorch can use"):
            check_device("cuda")
        with pytest.raises(BadInput, match="no device 'tpu': expected 'cpu' or 'cuda'"):
            check_device("tpu")

    def test_the_device_name_is_that_of_the_catalogue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        assert device_name("cpu") == "cpu"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        assert device_name("cuda") == "H200"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Unknown 9000")
        assert device_name("cuda") == "Unknown 9000"


def plans_to_measure() -> Iterator[ProfileConfig]:
    for plan in (
        Plan(),
        Plan(recompute="full"),
        Plan(recompute="selective"),
        Plan(accumulation=2),
        Plan(accumulation=4),
        Plan(accumulation=8),
        Plan(accumulation=8, offload=True),
    ):
        yield ProfileConfig(plan, 8, 16)


def limit_memory(trainer: type, max_samples: int) -> type:
    """Return a trainer that runs out of memory with larger micro-batches."""
    import torch

    class LimitedTrainer(trainer):  # type: ignore[misc]
        def step(self, batch: object, plan: Plan, threads: int = 1) -> object:
            if 8 // plan.accumulation > max_samples:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return super().step(batch, plan, threads)

    return LimitedTrainer
