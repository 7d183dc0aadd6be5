"""Preemption in compiled replays: the rounds of `PreemptingQueue` of the policies, with the same claims and victims.

A task that does not fit may claim the resources of runs that come after it in the order. It starts when these have
stopped; until then, no task behind it is started on what it claims.
"""

from __future__ import annotations

from refold.jit import compiled_part, compiled_without_references
from refold.model import WHOLE
from refold.packing import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    NODE,
    FreeArrays,
    Ints,
    PlacementRule,
    adjust_free,
    change_rows,
    need_at,
    place_demand,
    take_rows,
)
from refold.replays.queue_state import (
    CLAIMS,
    LAS,
    SJF,
    STOPS,
    TOUCHED,
    Claims,
    QueueRules,
    QueueState,
    QueueTasks,
    RankedRuns,
    TaskRuns,
)


@compiled_without_references
def major_key(rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, task: int, now: float) -> int:
    """Return the first part of the sort key: priority, and for `las` the queue."""
    if rules.order != LAS:
        return int(tasks.urgency[task])
    attained = runs.attained[task]
    if runs.run[task] >= 0:
        attained += (now - runs.start[task]) * tasks.milli[task] / WHOLE
    return int(2 * tasks.urgency[task] + (attained >= rules.demoted_from))


@compiled_without_references
def minor_key(rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, task: int, now: float) -> float:
    """Return the second part of the sort key: submission, run time or remaining work."""
    if rules.order == LAS:
        return float(tasks.submitted[task])
    if rules.order == SJF:
        return float(tasks.work[task])
    done = runs.done[task]
    if runs.run[task] >= 0:
        done = done + (now - runs.counted_from[task])
    return float(tasks.work[task] - done)


@compiled_without_references
def _is_ranked_before(ranking: RankedRuns, runs: TaskRuns, task: int, other: int) -> bool:
    if ranking.major[task] != ranking.major[other]:
        return bool(ranking.major[task] < ranking.major[other])
    if ranking.minor[task] != ranking.minor[other]:
        return bool(ranking.minor[task] < ranking.minor[other])
    if runs.start[task] != runs.start[other]:
        return bool(runs.start[task] < runs.start[other])
    return bool(ranking.id_rank[task] < ranking.id_rank[other])


@compiled_without_references
def _position(ranking: RankedRuns, runs: TaskRuns, task: int) -> int:
    """Return how many runs are ranked before that of a task."""
    low, high = 0, ranking.size[0]
    while low < high:
        middle = (low + high) >> 1
        if _is_ranked_before(ranking, runs, ranking.order[middle], task):
            low = middle + 1
        else:
            high = middle
    return low


@compiled_without_references
def rank_run(ranking: RankedRuns, rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, task: int, now: float) -> None:
    """Add the run of a task to the ranking, by a value that does not change while it runs."""
    if not tasks.is_preemptible[task]:
        return
    ranking.major[task] = major_key(rules, tasks, runs, task, now)
    rest = minor_key(rules, tasks, runs, task, now)
    ranking.minor[task] = rest if rules.order == LAS else now + rest
    position, order = _position(ranking, runs, task), ranking.order
    for at in range(ranking.size[0], position, -1):
        order[at] = order[at - 1]
    order[position] = task
    ranking.size[0] += 1
    ranking.is_ranked[task] = True


@compiled_without_references
def unrank_run(ranking: RankedRuns, runs: TaskRuns, task: int) -> bool:
    """Remove the run of a task from the ranking; return whether it was in it."""
    if not ranking.is_ranked[task]:
        return False
    ranking.is_ranked[task] = False
    ranking.size[0] -= 1
    order = ranking.order
    for at in range(_position(ranking, runs, task), ranking.size[0]):
        order[at] = order[at + 1]
    return True


@compiled_without_references
def change_free(free: FreeArrays, demands: Ints, tasks: QueueTasks, task: int, sign: int) -> None:
    """Release the placement of a task (sign 1), or take it without checks (-1)."""
    change_rows(free, need_at(demands, tasks.demand_of[task]), tasks.placements, tasks.first_row[task], sign)


@compiled_without_references
def place_task(free: FreeArrays, rule: PlacementRule, tasks: QueueTasks, task: int) -> bool:
    """Take resources for all instances of a task; return whether they fit."""
    return place_demand(free, rule, tasks.demand_of[task], tasks.placements, tasks.first_row[task])


@compiled_without_references
def _take_if_free(free: FreeArrays, demands: Ints, tasks: QueueTasks, task: int) -> bool:
    """Take the placement of a task again; False, with nothing taken, if part of it is not free."""
    return take_rows(free, need_at(demands, tasks.demand_of[task]), tasks.placements, tasks.first_row[task])


@compiled_without_references
def _take_available(free: FreeArrays, claims: Claims, demands: Ints, tasks: QueueTasks, task: int) -> None:
    """Take the free part of what a task claims, and note it as claimed."""
    need, (nodes, gpus, bits) = need_at(demands, tasks.demand_of[task]), free
    for row in range(tasks.first_row[task], tasks.first_row[task + 1]):
        node, mask = tasks.placements[row, NODE], tasks.placements[row, GPU_MASK]
        if not claims.is_touched[node]:
            claims.is_touched[node] = True
            claims.touched[claims.counts[TOUCHED]] = node
            claims.counts[TOUCHED] += 1
        first = nodes[node, FIRST_GPU]
        for gpu in range(nodes[node, GPUS]):
            milli = min(gpus[first + gpu], need.milli) if mask >> gpu & 1 else 0
            if milli > 0:
                adjust_free(nodes, gpus, bits, node, 1 << gpu, -milli, 0, 0)
                claims.gpu_milli[first + gpu] += milli
        cpu, memory = min(nodes[node, CPU_FREE], need.cpu), min(nodes[node, MEMORY_FREE], need.memory)
        adjust_free(nodes, gpus, bits, node, 0, 0, -cpu, -memory)
        claims.cpu[node] += cpu
        claims.memory[node] += memory


@compiled_without_references
def end_claims(free: FreeArrays, future: FreeArrays, claims: Claims, demands: Ints, tasks: QueueTasks) -> None:
    """Make what was claimed available again, at the end of a round."""
    nodes, gpus, bits = free
    for at in range(claims.counts[TOUCHED]):
        node = claims.touched[at]
        claims.is_touched[node] = False
        first = nodes[node, FIRST_GPU]
        for gpu in range(nodes[node, GPUS]):
            milli = claims.gpu_milli[first + gpu]
            if milli > 0:
                adjust_free(nodes, gpus, bits, node, 1 << gpu, milli, 0, 0)
                claims.gpu_milli[first + gpu] = 0
        adjust_free(nodes, gpus, bits, node, 0, 0, claims.cpu[node], claims.memory[node])
        claims.cpu[node] = claims.memory[node] = 0
    claims.counts[TOUCHED] = 0
    for at in range(claims.counts[CLAIMS]):
        change_free(future, demands, tasks, claims.tasks[at], 1)


@compiled_without_references
def _is_later(rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, task: int, other: int, now: float) -> bool:
    """Whether the run of another task comes after a task in the order."""
    own, its = major_key(rules, tasks, runs, task, now), major_key(rules, tasks, runs, other, now)
    if own != its:
        return bool(its > own)
    return bool(minor_key(rules, tasks, runs, other, now) > minor_key(rules, tasks, runs, task, now))


@compiled_part
def _first_victims(state: QueueState, task: int, missing: int, now: float) -> int:
    """Collect the last runs that together hold the missing GPUs; return their number, 0 if all do not suffice."""
    tasks, order, victims = state.tasks, state.ranking.order, state.claims.victims
    found, size = 0, state.ranking.size[0]
    while found < size and _is_later(state.rules, tasks, state.runs, task, order[size - 1 - found], now):
        victims[found] = order[size - 1 - found]
        missing -= tasks.milli[victims[found]]
        found += 1
        if missing <= 0:
            return found
    return 0


@compiled_part
def _place_without_later_runs(state: QueueState, task: int, now: float) -> bool:
    """Place a task as if its last victims had stopped: as many as needed, and no run that comes before it."""
    tasks, future, demands = state.tasks, state.future, state.placement.demands
    order, victims, size = state.ranking.order, state.claims.victims, state.ranking.size[0]
    missing = tasks.milli[task] - future.nodes[future.nodes.shape[0] - 1, MILLI_FREE]
    found = _first_victims(state, task, missing, now)
    released, more = 0, 1
    while released < found:
        for at in range(released, found):
            change_free(future, demands, tasks, victims[at], 1)
        released = found
        if place_task(future, state.placement, tasks, task):
            _stop_needed(state, found)
            return True
        limit = min(size, found + more)
        while found < limit and _is_later(state.rules, tasks, state.runs, task, order[size - 1 - found], now):
            victims[found] = order[size - 1 - found]
            found += 1
        more *= 2
    for at in range(found):
        change_free(future, demands, tasks, victims[at], -1)
    return False


@compiled_part
def _stop_needed(state: QueueState, found: int) -> None:
    """Stop the victims whose resources are needed; spare the others, the most urgent first."""
    claims = state.claims
    for at in range(found - 1, -1, -1):
        victim = claims.victims[at]
        if not _take_if_free(state.future, state.placement.demands, state.tasks, victim):
            claims.stops[claims.counts[STOPS]] = victim
            claims.counts[STOPS] += 1
            unrank_run(state.ranking, state.runs, victim)


@compiled_part
def claim(state: QueueState, task: int, now: float) -> bool:
    """Preempt the last runs in the order so that a task fits; return whether that is possible."""
    placement, tasks, claims = state.placement, state.tasks, state.claims
    if not place_task(state.future, placement, tasks, task) and not _place_without_later_runs(state, task, now):
        return False
    _take_available(state.free, claims, placement.demands, tasks, task)
    claims.tasks[claims.counts[CLAIMS]] = task
    claims.counts[CLAIMS] += 1
    return True
