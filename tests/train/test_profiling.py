"""Which configurations are tried on a machine, and what is noted of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from refold.errors import BadInput, BadValue, MissingExtra
from refold.model.plan import Plan, plan_from_text
from refold.perf.measurement import Measurement
from refold.perf.shapes import ModelShape
from refold.train import profiling
from refold.train.profiling import (
    Effort,
    ProfileConfig,
    check_device,
    name_of_device,
    needs_no_less,
    profile,
    samples_to_take,
    usual_threads,
    with_layers,
)

GPT = ModelShape("gpt", layers=2, hidden=32, heads=4, vocabulary=100, positions=16, sequence=16, batch=8)
QUICK = Effort(steps=1, warm_up=0)


def test_the_first_seven_samples_tell_most() -> None:
    trials = samples_to_take(GPT, threads=[16, 4])
    assert [str(trial) for trial in trials[:7]] == [
        "DP1, 8 × 16",
        "DP1 recompute full, 8 × 16",
        "DP1 accumulate 2, 8 × 16",
        "DP1 recompute selective, 8 × 16",
        "DP1 offload, 8 × 16, 16 threads",
        "DP1 offload, 8 × 16, 4 threads",
        "DP1 offload accumulate 2, 8 × 16, 16 threads",
    ]
    changes = [before.plan.offload != after.plan.offload for before, after in pairwise(trials)]
    assert sum(changes) == 4  # once in each seven of them
    assert {trial.batch for trial in trials} == {8}
    assert len({*trials}) == len(trials) == 4 * 6


def test_micro_batches_are_of_one_size_in_any_batch() -> None:
    steps = {trial.plan.accumulation for trial in samples_to_take(GPT, batch=12)}
    assert sorted(steps) == [1, 2, 4, 12]


def test_where_a_batch_gives_too_few_samples_larger_ones_are_taken() -> None:
    trials = samples_to_take(GPT, batch=1, threads=[1], count=9)
    assert len(trials) >= 9
    assert {trial.batch for trial in trials} == {1, 2}


def test_threads_to_try_are_those_of_this_machine() -> None:
    assert max(usual_threads()) == usual_threads()[0]
    assert min(usual_threads()) >= 1


@pytest.mark.parametrize(
    ("text", "batch", "more"),
    [
        ("accumulate 2", 8, True),
        ("accumulate 1", 8, False),  # gradients are not kept between micro-batches that are not there
        ("accumulate 4", 8, False),
        ("accumulate 4", 16, True),
        ("recompute full accumulate 2", 8, False),
        ("offload accumulate 2", 8, False),
    ],
)
def test_what_follows_from_a_trial_that_did_not_fit(text: str, batch: int, more: bool) -> None:
    failed = ProfileConfig(Plan(accumulation=2), 8, 16)
    assert needs_no_less(ProfileConfig(plan_from_text(text), batch, 16), failed) is more


def test_a_trial_cannot_be_built_wrong() -> None:
    with pytest.raises(BadValue, match="a batch of 8 cannot be run with DP1 accumulate 3"):
        ProfileConfig(Plan(accumulation=3), 8, 16)


def test_a_shallow_model_says_that_it_is_one() -> None:
    t5 = ModelShape("t5", kind="encoder-decoder", layers=8, encoder_layers=8, parameters_stated=9, vocabulary=3)
    cut = with_layers(t5, 2)
    assert (cut.name, cut.layers, cut.encoder_layers, cut.parameters_stated) == ("t5-2-layers", 2, 2, 0)
    with pytest.raises(BadInput, match="has 8 layers: it cannot be cut to 8"):
        with_layers(t5, 8)


def test_nothing_imports_pytorch_before_it_is_needed() -> None:
    """Nor numba: `benchmarks.accuracy.measure_device` runs where neither it nor a compiler is."""
    told = "import sys, refold.train.profiling, refold.cli.commands.profile; print({'torch', 'numba'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"refold profile needs an extra: pip install 'refold\[torch\]'"):
        next(profile(GPT, []))


class TestRunning:
    """With PyTorch, on the CPU."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'refold[train]'")

    def test_a_measurement_has_all_parts(self) -> None:
        (one,) = profile(GPT, [ProfileConfig(Plan(accumulation=2), 8, 16, 2)], effort=Effort(steps=3, warm_up=1))
        assert (one.model, one.gpu, one.gpus_on_node, one.batch, one.sequence) == ("gpt", "cpu", (1,), 8, 16)
        assert (one.status, one.cpus, one.micro_batch) == ("ok", 2, 4)
        parts = (one.forward_seconds, one.backward_seconds, one.optimizer_seconds)
        assert all(part is not None and part > 0 for part in parts)
        assert one.step_seconds is not None
        assert one.memory_gib is not None and one.memory_gib > 0
        assert one.samples_per_second == 8 / one.step_seconds

    def test_steps_to_warm_up_are_taken_and_long_ones_are_not_repeated(self) -> None:
        told: list[int] = []
        trial = ProfileConfig(Plan(), 2, 8)
        [*profile(GPT, [trial], effort=Effort(steps=4, warm_up=2), on_step=lambda: told.append(1))]
        assert len(told) == 6
        told.clear()
        [*profile(GPT, [trial], effort=Effort(steps=4, warm_up=1, seconds=0.0), on_step=lambda: told.append(1))]
        assert len(told) == 2

    def test_no_more_is_run_than_is_wanted(self) -> None:
        assert len([*profile(GPT, samples_to_take(GPT, threads=[1]), wanted=3, effort=QUICK)]) == 3

    def test_what_does_not_fit_is_noted_and_what_needs_more_is_not_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from refold.train import steps

        monkeypatch.setattr(steps, "Trainer", small_memory(steps.Trainer, most=2))
        found = [*profile(GPT, tried_in_turn(), wanted=2, effort=QUICK)]
        assert [(str(one.plan), one.status) for one in found] == [
            ("DP1", "oom"),
            ("DP1 recompute full", "oom"),
            ("DP1 accumulate 2", "oom"),
            ("DP1 accumulate 4", "ok"),
            ("DP1 accumulate 8", "ok"),
        ]
        assert found[0] == Measurement("gpt", "cpu", (1,), Plan(), 8, 16, 1.0, status="oom")

    def test_other_errors_are_not_taken_for_a_lack_of_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from refold.train import steps

        def broken(*_: object) -> None:
            raise RuntimeError("shapes do not match")

        monkeypatch.setattr(steps.Trainer, "step", broken)
        with pytest.raises(RuntimeError, match="shapes do not match"):
            next(profile(GPT, [ProfileConfig(Plan(), 8, 16)]))

    @pytest.mark.parametrize(
        ("said", "meant"),
        [
            ("CUDA error: out of memory", True),
            ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes", True),
            ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
            ("CUDA error: an illegal memory access was encountered", False),
        ],
    )
    def test_how_libraries_say_that_memory_ran_out(self, said: str, meant: bool) -> None:
        assert profiling.is_out_of_memory(RuntimeError(said)) is meant

    def test_a_device_that_is_not_here_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        check_device("cpu")
        with pytest.raises(BadInput, match="no device 'cuda': this machine has no GPU that PyTorch can use"):
            check_device("cuda")
        with pytest.raises(BadInput, match="no device 'abacus'"):
            check_device("abacus")

    def test_a_gpu_has_the_name_of_the_catalogue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        assert name_of_device("cpu") == "cpu"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        assert name_of_device("cuda") == "H200"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Abacus 9000")
        assert name_of_device("cuda") == "Abacus 9000"


def tried_in_turn() -> Iterator[ProfileConfig]:
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


def small_memory(trainer: type, most: int) -> type:
    """A trainer on a device that has room for so many samples at a time."""
    import torch

    class Small(trainer):  # type: ignore[misc]
        def step(self, batch: object, plan: Plan, threads: int = 1) -> object:
            if 8 // plan.accumulation > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return super().step(batch, plan, threads)

    return Small
