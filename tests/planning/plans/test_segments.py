"""Which nodes of a plan must be together in one NVLink domain."""

from __future__ import annotations

import pytest

from refold.model import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import TrainingSetup, build_machines, estimate
from refold.planning.plans import explain_segments
from refold.planning.plans.crossings import segment_times


def setup(gpu: str, gpus: int) -> TrainingSetup:
    return TrainingSetup(
        find_model("llama-3.1-70b"), build_machines(find_gpu(gpu), gpus), find_engine("megatron-core"), 512, 4096
    )


@pytest.mark.parametrize(("plan", "segment"), [(Plan(32, 8), 2), (Plan(16, 16), 4)])
def test_the_best_segment_holds_a_tensor_parallel_group(plan: Plan, segment: int) -> None:
    on_racks = setup("GB200", 256)
    times = segment_times(on_racks, plan)
    assert list(times) == [1, 2, 4, 8, 16]
    assert times[16] == pytest.approx(estimate(on_racks, plan).step_seconds)
    assert all(times[nodes] > 1.01 * times[segment] for nodes in times if nodes < segment)
    [section] = explain_segments(on_racks, plan)
    assert {line.name: line.value for line in section.lines}["segment"] == segment
    assert "longer" in section.lines[1].meaning


@pytest.mark.parametrize(("gpu", "gpus"), [("H100", 256), ("GB200", 4), ("GB200", 2)])
def test_there_are_no_segments_where_nvlink_ends_at_the_node(gpu: str, gpus: int) -> None:
    assert explain_segments(setup(gpu, gpus), Plan(gpus)) == ()


def test_only_segments_that_divide_the_job_and_fit_a_rack_are_compared() -> None:
    assert list(segment_times(setup("GB200", 48), Plan(48))) == [1, 2, 3, 4, 6, 12]
    assert list(segment_times(setup("GB200", 4 * 54), Plan(4 * 54))) == [1, 2, 3, 6, 9, 18]
