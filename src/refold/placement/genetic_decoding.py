"""Windows of the queue, genomes, and the placements they stand for. Compiled.

A genome has one key per job and one gene (a node, or none) per instance. Decoding places jobs in the order of their
keys: an instance goes to the node of its gene if it fits there, otherwise (repair) to the node that loses the least
worth (see `worth`). So every solution is feasible, and no job is left out that still fits. The fitness is

    GPUs put to use  −  0.01 × worth lost (plus the cost of power, if racks have limits)  +  0.002 × jobs placed
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import GPU_MASK, GPUS, NODE, UP, WHOLE_FREE, Bools, Ints

if not cython.compiled:
    from refold.placement.demand_history import DemandHistory, ScoreCache
    from refold.placement.genetic_operators import sort_by_keys
    from refold.placement.kernels import FreeArrays, adjust_free, fits, need_at
    from refold.placement.layout import Need
    from refold.placement.lookahead import RackDraw, find_least_loss_node, instance_watts, loss, power_cost, type_cost

WORTH_WEIGHT = 0.01
JOB_WEIGHT = 0.002

ANY_NODE, INFINITE = -1, np.inf


class Window:
    """The waiting jobs in queue order: the row of each in `demands`, and its first row in the placements.

    `demand_ids` are the IDs of the demands in `ScoreCache`. The first `urgent` jobs are placed before all others, in
    queue order. With `in_order` all jobs are, and none after the first that does not fit.
    """

    def __init__(self, jobs: Ints, first: Ints, demands: Ints, demand_ids: Ints, urgent: int, in_order: bool) -> None:
        self.jobs, self.first, self.demands, self.demand_ids = view(jobs), view(first), view(demands), view(demand_ids)
        self.urgent, self.in_order = urgent, in_order


class PlacementState:
    """Free resources, demand history, score cache, and power draw of racks."""

    def __init__(self, free: FreeArrays, history: DemandHistory, cache: ScoreCache, power: RackDraw) -> None:
        self.free, self.history, self.cache, self.power = free, history, cache, power


class Genome:
    """Keys of the jobs of a window, at first in order of arrival, and genes of their instances, at first none."""

    def __init__(self, jobs: int, instances: int) -> None:
        self.keys, self.genes = view(np.arange(jobs) / jobs), view(np.full(instances, ANY_NODE))


class Solution:
    """A row of `placements` for each instance of a window, and whether each job is placed.

    `infeasible` are the demands that do not fit even alone, and `exhausted` those that do not fit in the rest.
    `order` and `scratch` are for sorting jobs.
    """

    def __init__(self, rows: int, placements: Ints, placed: Bools) -> None:
        jobs = len(placed)
        self.placements, self.placed = view(placements), view(placed.view(np.uint8))
        self.infeasible, self.exhausted = view(np.zeros(rows, dtype=np.uint8)), view(np.zeros(rows, dtype=np.uint8))
        self.order, self.scratch = view(np.zeros(jobs, dtype=np.int64)), view(np.zeros(jobs, dtype=np.int64))


def can_host(free: FreeArrays, node: int, need: Need) -> bool:
    """Whether a node is up and an instance fits on it."""
    return (
        free.nodes[node, UP] == 1
        and free.nodes[node, GPUS] >= need.gpus
        and (need.milli < WHOLE or free.nodes[node, WHOLE_FREE] >= need.gpus)
        and fits(free, node, need)
    )


def change_usage(state: PlacementState, node: int, mask: int, need: Need, sign: int) -> None:
    """Take (sign 1) or release (sign -1) the resources and power of an instance."""
    adjust_free(state.free, node, mask, -sign * need.milli, -sign * need.cpu, -sign * need.memory)
    if state.power.rack_of.shape[0] > 0:
        state.power.draw[state.power.rack_of[node]] += sign * instance_watts(state.power, node, need)


def cost_on(state: PlacementState, node: int, need: Need) -> tuple[float, int]:
    """Return the cost of an instance on a node where it fits, in worth and power, and its GPU mask."""
    cost, mask = loss(False, state.free, node, need, state.history)
    cost += type_cost(state.free, node, need, state.history.type_prices)
    if state.power.rack_of.shape[0] > 0:
        cost += power_cost(state.power, node, need)
    return cost, mask


def _place_job(state: PlacementState, window: Window, job: int, genome: Genome, solution: Solution) -> float:
    """Place all instances of a job and return their cost; if they do not fit, place none and return -inf.

    If power is limited, a gang that does not fit is tried again on the nodes where it draws the least power.
    """
    cost = _place_instances(state, window, job, genome, solution, False)
    if cost == -INFINITE and state.power.rack_of.shape[0] > 0 and window.demands[window.jobs[job], 0] > 1:
        cost = _place_instances(state, window, job, genome, solution, True)
    return cost


def _place_instances(
    state: PlacementState, window: Window, job: int, genome: Genome, solution: Solution, least_power: bool
) -> float:
    need, demand_id = need_at(window.demands, window.jobs[job]), window.demand_ids[window.jobs[job]]
    first, total = window.first[job], 0.0
    for instance in range(first, first + need.instances):
        node, cost, mask = genome.genes[instance], INFINITE, 0
        if least_power:
            node = _find_least_watts_node(state, need)
        if node != ANY_NODE and can_host(state.free, node, need):
            cost, mask = cost_on(state, node, need)
        if cost == INFINITE and not least_power:
            node = find_least_loss_node(False, state.free, need, demand_id, state.history, state.cache, state.power)
            if node != ANY_NODE:
                cost, mask = cost_on(state, node, need)
        if cost == INFINITE:
            _release_instances(state, need, first, instance, solution)
            return -INFINITE
        change_usage(state, node, mask, need, 1)
        solution.placements[instance, NODE], solution.placements[instance, GPU_MASK] = node, mask
        total += cost
    return total


def _release_instances(state: PlacementState, need: Need, first: int, end: int, solution: Solution) -> None:
    for instance in range(first, end):
        change_usage(state, solution.placements[instance, NODE], solution.placements[instance, GPU_MASK], need, -1)


def _find_least_watts_node(state: PlacementState, need: Need) -> int:
    """Return the node where an instance draws least, of those with resources and power for it; or -1."""
    best, least = ANY_NODE, INFINITE
    for node in range(state.free.nodes.shape[0] - 1):
        watts = instance_watts(state.power, node, need)
        within_limit = watts < least and power_cost(state.power, node, need) < INFINITE
        if within_limit and can_host(state.free, node, need):
            best, least = node, watts
    return best


def job_gpus(need: Need) -> float:
    return float(need.instances * need.gpus * need.milli) / WHOLE


def job_value(need: Need) -> float:
    """Return the fitness of a placed job, without its cost."""
    return job_gpus(need) + JOB_WEIGHT


def decode(state: PlacementState, window: Window, genome: Genome, solution: Solution) -> float:
    """Place the jobs of a window according to a genome and return its fitness; genes become the nodes used (repair).

    Usage only grows during decoding, so a demand that did not fit once is `exhausted` for the rest.
    """
    count, fitness = window.jobs.shape[0], 0.0
    sort_by_keys(genome.keys, count if window.in_order else window.urgent, solution.order, solution.scratch)
    _forget_exhausted(solution)
    for job in range(count):
        solution.placed[job] = False
    for position in range(count):
        job = solution.order[position]
        row = window.jobs[job]
        cost = -INFINITE if solution.exhausted[row] else _place_job(state, window, job, genome, solution)
        if cost == -INFINITE:
            solution.exhausted[row] = True
            if window.in_order:
                break
            continue
        need = need_at(window.demands, row)
        solution.placed[job] = True
        fitness += job_value(need) - WORTH_WEIGHT * cost
        for instance in range(window.first[job], window.first[job] + need.instances):
            genome.genes[instance] = solution.placements[instance, NODE]
    return fitness


def _forget_exhausted(solution: Solution) -> None:
    for row in range(solution.infeasible.shape[0]):
        solution.exhausted[row] = solution.infeasible[row]


def place_rest(state: PlacementState, window: Window, solution: Solution) -> None:
    """Place the jobs that still fit, in queue order."""
    no_genes = Genome(window.jobs.shape[0], solution.placements.shape[0])
    _forget_exhausted(solution)
    for job in range(window.jobs.shape[0]):
        row = window.jobs[job]
        if not solution.placed[job] and not solution.exhausted[row]:
            solution.placed[job] = _place_job(state, window, job, no_genes, solution) > -INFINITE
            solution.exhausted[row] = not solution.placed[job]


def count_placed(solution: Solution) -> int:
    count = 0
    for job in range(solution.placed.shape[0]):
        count += solution.placed[job]
    return count


def release_all(state: PlacementState, window: Window, solution: Solution) -> None:
    """Release the resources of all placed jobs."""
    for job in range(window.jobs.shape[0]):
        if solution.placed[job]:
            _release_job(state, window, job, solution)


def _release_job(state: PlacementState, window: Window, job: int, solution: Solution) -> None:
    need, first = need_at(window.demands, window.jobs[job]), window.first[job]
    _release_instances(state, need, first, first + need.instances, solution)


def mark_infeasible(state: PlacementState, window: Window, solution: Solution) -> None:
    """Mark the demands that do not fit even alone."""
    no_genes = Genome(window.jobs.shape[0], solution.placements.shape[0])
    seen = view(np.zeros(window.demands.shape[0], dtype=np.uint8))
    for job in range(window.jobs.shape[0]):
        row = window.jobs[job]
        if seen[row]:
            continue
        seen[row] = True
        solution.infeasible[row] = _place_job(state, window, job, no_genes, solution) == -INFINITE
        if not solution.infeasible[row]:
            _release_job(state, window, job, solution)
