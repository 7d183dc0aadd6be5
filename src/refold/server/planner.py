"""The planner as the API offers it: the best plans of a model of the catalogue on given GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from refold.client.api import Caller, Catalogue, PlanAnswer, PlanQuestion, PlanRejection, PlanRow
from refold.errors import BadInput, RefoldError, TooManyRequests, Unavailable
from refold.planning.catalogue import engines, find_engine, find_gpu, find_model, gpu_names, model_names
from refold.planning.perf import Estimate, TrainingSetup, Tuning, build_machines
from refold.planning.plans import Pins, Task, best_plans, default_engine, default_sizes, wide_limits
from refold.server.forked_work import ForkedWork
from refold.server.policy_comparison import comparable_policies

SHOWN_PLANS = 10


class Planner:
    """Searches plans in copies of this process."""

    def __init__(self) -> None:
        self._work = ForkedWork()

    def catalogue(self) -> Catalogue:
        """Return the names that a question may use."""
        return Catalogue(
            list(model_names()), list(gpu_names()), [engine.name for engine in engines()], comparable_policies()
        )

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        """Return the best plans, and why others were rejected."""
        answer = (await self._work.run(lambda: _search_or_error(question))).result
        if answer is None:
            raise Unavailable("the search has failed or took too long; the daemon's log says why")
        if isinstance(answer, str):
            raise BadInput(answer)
        return answer


def _search_or_error(question: PlanQuestion) -> PlanAnswer | str:
    """Search plans; return the text of an error instead, since not every error can leave the process."""
    try:
        return search_plans(question)
    except RefoldError as error:
        return str(error)


def search_plans(question: PlanQuestion) -> PlanAnswer:
    """Search the best plans. Only models of the catalogue can be named: no file is read."""
    shape, gpu = find_model(question.model), find_gpu(question.gpu)
    if question.nodes > question.gpus:
        raise BadInput(f"nodes is {question.nodes}, expected at most {question.gpus} for {question.gpus} GPUs")
    machines = build_machines(gpu, question.gpus, nodes=question.nodes)
    machines = msgspec.structs.replace(machines, margin=question.margin / 100)
    tuning = Tuning(question.lora, question.qlora)
    pinned = Pins(context=question.cp or None, expert=question.ep or None)
    task = Task(tuning, question.precision, pinned)
    named = find_engine(question.engine) if question.engine else None
    engine = named or default_engine(shape, gpu, question.gpus, task).engine
    if question.precision is not None:
        engine = engine.with_precision(question.precision)
    default = default_sizes(shape, question.gpus, tuning)
    batch, sequence = question.batch or default.batch, question.sequence or default.sequence
    setup = TrainingSetup(shape, machines, engine, batch, sequence, tuning)
    limits = msgspec.structs.replace(
        wide_limits(sequence),
        offload=question.offload,
        pinned=pinned,
    )
    search = best_plans(setup, limits, SHOWN_PLANS)
    return PlanAnswer(
        shape.name,
        gpu.name,
        question.gpus,
        machines.nodes,
        batch,
        sequence,
        [_row(found) for found in search.best],
        search.considered,
        search.out_of_memory,
        [PlanRejection(one.name, one.plans, one.explanation, str(one.example)) for one in search.rejected],
        list(search.advice),
        engine.label,
    )


def _row(found: Estimate) -> PlanRow:
    return PlanRow(
        str(found.plan),
        found.step_seconds,
        found.samples_per_second,
        found.tokens_per_second,
        found.mfu,
        found.memory_gib,
        found.seconds,
        found.memory,
    )


# Costly questions, such as `/whatif` and `/plan`: how many a user, and all users, may ask at a time. They are
# answered in copies of the daemon, so that they cannot delay it; but each waits for those before it.

MAX_OF_USER = 4
MAX_OF_ALL = 32


class CostlyQuestions:
    """Counts the questions that are being answered or wait for that."""

    def __init__(self) -> None:
        self._asked: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def admit(self, caller: Caller) -> Iterator[None]:
        """Count a question while it is being answered. Raises TooManyRequests if there are too many."""
        user = (caller.tenant, caller.user)
        if self._asked[user] >= MAX_OF_USER:
            raise TooManyRequests(
                f"{MAX_OF_USER} costly questions of {caller.user!r} are being answered; ask again later"
            )
        if self._asked.total() >= MAX_OF_ALL:
            raise TooManyRequests(f"{MAX_OF_ALL} costly questions are being answered; ask again later")
        self._asked[user] += 1
        try:
            yield
        finally:
            self._asked[user] -= 1
            if not self._asked[user]:
                del self._asked[user]
