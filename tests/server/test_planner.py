"""The planner of the API: as `refold plan`, for models of the catalogue only."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from refold.client.api.questions import PlanQuestion
from refold.errors import BadInput, RefoldError, Unavailable
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import TrainingSetup, build_machines
from refold.planning.plans import best_plans, wide_limits
from refold.server import planner
from refold.server.planner import Planner, search_plans


def test_the_best_plans_are_those_of_the_plan_search() -> None:
    model = find_model("llama-2-7b")
    machines = build_machines(find_gpu("A100-80GB"), 8)
    setup = TrainingSetup(model, machines, find_engine("megatron-core"), model.batch, model.sequence)
    expected = best_plans(setup, wide_limits(model.sequence)).best
    answer = search_plans(PlanQuestion("llama-2-7b", "A100-80GB", 8))
    assert [row.plan for row in answer.best] == [str(found.plan) for found in expected]
    assert answer.best[0].samples_per_second == expected[0].samples_per_second
    assert answer.engine == "megatron-core (NeMo 26.06)"
    assert (answer.nodes, answer.batch, answer.sequence) == (1, model.batch, model.sequence)


def test_expert_parallelism_is_tried_and_degrees_can_be_given() -> None:
    assert any("EP" in row.plan for row in search_plans(PlanQuestion("mixtral-8x7b", "A100-80GB", 32)).best)
    given = search_plans(PlanQuestion("mixtral-8x7b", "A100-80GB", 32, cp=2, ep=4)).best
    assert given != []
    assert all("CP2" in row.plan and "EP4" in row.plan for row in given)


def test_adapters_fit_where_all_weights_do_not() -> None:
    all_weights, adapters = (
        search_plans(
            PlanQuestion("llama-2-7b", "A100-40GB", 1, batch=8, offload=False, engine="transformers", lora=rank)
        )
        for rank in (0, 16)
    )
    assert (all_weights.best, adapters.best != []) == ([], True)


def test_precision_and_margin_are_those_of_the_question() -> None:
    half, low = (
        search_plans(PlanQuestion("llama-2-7b", "H100", 8, precision=precision)).best[0].step_seconds
        for precision in (None, "fp8")
    )
    assert low < 0.9 * half
    assert search_plans(PlanQuestion("llama-2-7b", "H100", 8, margin=50)).best[0].memory_gib < 0.5 * 79.1


def test_a_model_that_does_not_fit_comes_with_reasons_and_advice() -> None:
    answer = search_plans(PlanQuestion("llama-2-7b", "T4", 1, offload=False))
    assert answer.best == []
    assert answer.advice != []


@pytest.mark.parametrize(
    "question",
    [
        PlanQuestion("nope", "A100-80GB", 8),
        PlanQuestion("llama-2-7b", "nope", 8),
        PlanQuestion("llama-2-7b", "A100-80GB", 8, engine="nope"),
        PlanQuestion("llama-2-7b", "A100-80GB", 2, nodes=4),
        PlanQuestion("llama-2-7b", "A100-80GB", 8, qlora=True),
        PlanQuestion("llama-2-7b", "A100-80GB", 8, precision="fp8"),
        PlanQuestion("/etc/passwd", "A100-80GB", 8),
    ],
)
def test_names_that_are_not_in_the_catalogue_are_rejected_and_files_are_not_read(question: PlanQuestion) -> None:
    with pytest.raises(RefoldError):
        search_plans(question)


def test_the_catalogue_lists_what_can_be_asked(tmp_path: Path) -> None:
    catalogue = Planner().catalogue()
    assert "llama-2-7b" in catalogue.models
    assert "A100-80GB" in catalogue.gpus
    assert "megatron" in catalogue.engines


def test_a_search_is_made_in_another_process_and_errors_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    question = PlanQuestion("llama-2-7b", "A100-80GB", 8)
    expected = search_plans(question)
    assert asyncio.run(Planner().plan(question)) == expected
    with pytest.raises(BadInput, match="unknown model 'nothing'"):
        asyncio.run(Planner().plan(PlanQuestion("nothing", "A100-80GB", 8)))
    monkeypatch.setattr(planner, "search_plans", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(Unavailable, match="the search has failed"):
        asyncio.run(Planner().plan(question))
