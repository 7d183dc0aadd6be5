"""Worth: the value of free resources for expected jobs. Compiled.

The worth of a GPU with a free fraction f is that of the best filling of f with requested fractions. Their prices are
the dual prices of the cutting-stock problem (Gilmore and Gomory, 1961) with GPUs as rolls and requested fractions as
pieces. So 0.19 GPU beside an allocation of 0.81 is worth nothing if no job requests so little, and a half is worth 0.5
if halves come in pairs. The worth of a node is

    W = G − G · (1 / (1 + c)^12 + ½ / (1 + m)^12) + T · (w / L)²

G  the total worth of its GPUs
c  its free CPUs divided by the CPUs that expected jobs need for G GPUs; m the same for memory. The second term is the
   part of G that is stranded because CPUs or memory run out
w  its entirely free GPUs; L the GPUs of the largest node; T 0.3 × the part of the demand for several GPUs per
   instance: free GPUs on the same node can serve such instances

An instance goes to the node where W decreases least. For each GPU that it takes, the price of the GPU type is added, so
that types are left to the jobs that are limited to them:

    P = F · r² / (1 + r²)

F  the free part of the GPU capacity: as the cluster fills, it matters less which jobs fill it
r  the part of the expected demand that is limited to the type, divided by the part of the free capacity that has it.
   Demand that is limited to several types is divided among them by their free capacity. If r > 1, the type is used up
   before the cluster is full, even if only limited jobs take it

To prefer tight fits, 0.03 × the free capacity that remains is
added (of the GPU; for whole GPUs, an eighth of what remains on the node). On that node it takes the GPU whose worth
decreases least; an instance with fractions of several GPUs takes the freest, which maximises the instances per node.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model import MAX_GPU_TYPES, WHOLE
from refold.placement.demand_history import CPU_PER_GPU, GANG_WEIGHT, MAX_TYPE_SETS, MEMORY_PER_GPU
from refold.placement.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    TYPE_BIT,
    UP,
    WHOLE_FREE,
    Floats,
    Ints,
)

if not cython.compiled:
    from refold.placement.demand_history import DemandHistory
    from refold.placement.kernels import FreeArrays, max_gpus_per_node, need_at
    from refold.placement.layout import Need, trailing_zeros

GANG_BONUS = 0.3
MEMORY_WEIGHT = 0.5
TIGHTNESS_WEIGHT = 0.03

MAX_PRICED_SIZES = 48
"""Only this many fractions, the most requested ones, get a price."""

MAX_PIVOTS = 500
TOLERANCE = 1e-9
INFINITE = np.inf


def _stranded_fraction(supply: float) -> float:
    """Return 1 / (1 + supply)^12; products give the same bits on every machine."""
    once = 1.0 / (1.0 + supply)
    twice = once * once
    fourth = twice * twice
    return fourth * fourth * fourth


def _stranded(gpus_worth: float, cpu_free: int, memory_free: int, history: DemandHistory) -> float:
    """Return the part of the worth of a node's GPUs that is stranded for lack of CPUs and memory."""
    stranded = 0.0
    if gpus_worth > TOLERANCE:
        cpu, memory = history.needs[CPU_PER_GPU], history.needs[MEMORY_PER_GPU]
        if cpu > 0.0:
            stranded += gpus_worth * _stranded_fraction(cpu_free / (gpus_worth * cpu))
        if memory > 0.0:
            stranded += MEMORY_WEIGHT * gpus_worth * _stranded_fraction(memory_free / (gpus_worth * memory))
    return stranded


def loss_on(free: FreeArrays, node: int, need: Need, history: DemandHistory) -> tuple[float, int]:
    """Return the worth that a node loses to an instance that fits there, and the GPU mask of the instance."""
    first, count = free.nodes[node, FIRST_GPU], free.nodes[node, GPUS]
    gpus_worth = 0.0
    for gpu in range(first, first + count):
        gpus_worth += history.worth[max(free.gpus[gpu], 0)]
    mask, lost, remainder, wholes = 0, 0.0, 0, 0
    for _ in range(need.gpus):
        best, least, left = -1, INFINITE, 0
        for gpu in range(count):
            after = free.gpus[first + gpu] - need.milli
            if after < 0 or mask >> gpu & 1:
                continue
            loss = history.worth[after + need.milli] - history.worth[after]
            if need.gpus > 1:
                better = after > left  # maximises the instances per node
            else:
                better = loss < least - TOLERANCE or (loss < least + TOLERANCE and after < left)
            if best < 0 or better:
                best, least, left = gpu, loss, after
            if need.milli == WHOLE:
                break
        mask |= 1 << best
        lost += least
        remainder += left
        if left == WHOLE - need.milli:
            wholes += 1
    if need.milli == WHOLE or need.gpus == 0:
        remainder = (free.nodes[node, MILLI_FREE] - need.gpus * need.milli) >> 3
    cpu, memory = free.nodes[node, CPU_FREE], free.nodes[node, MEMORY_FREE]
    loss = lost + TIGHTNESS_WEIGHT * remainder / WHOLE
    loss += _stranded(gpus_worth - lost, cpu - need.cpu, memory - need.memory, history)
    loss -= _stranded(gpus_worth, cpu, memory, history)
    if wholes > 0:
        whole, largest = free.nodes[node, WHOLE_FREE], max_gpus_per_node(free)
        change = whole * whole - (whole - wholes) * (whole - wholes)
        loss += history.needs[GANG_WEIGHT] * change / (largest * largest)
    return loss, mask


def update_worth(shapes: Ints, counts: Ints, count: int, history: DemandHistory) -> None:
    """Recompute the history from the first `count` shapes, submitted `counts` times each."""
    pieces = np.zeros(WHOLE + 1)
    for shape in range(count):
        need = need_at(shapes, shape)
        if need.gpus > 0:
            pieces[need.milli] += counts[shape] * need.instances * need.gpus
    prices = _prices(np.asarray(pieces), history.worth)
    priced = cpu = memory = multi_gpu = milli = 0.0
    for shape in range(count):
        need = need_at(shapes, shape)
        if need.gpus == 0:
            continue
        times = float(counts[shape] * need.instances)
        priced += times * need.gpus * prices[need.milli]
        cpu += times * need.cpu
        memory += times * need.memory
        milli += times * need.gpus * need.milli
        if need.gpus > 1:
            multi_gpu += times * need.gpus * need.milli
    history.needs[CPU_PER_GPU] = cpu / priced if priced > 0.0 else 0.0
    history.needs[MEMORY_PER_GPU] = memory / priced if priced > 0.0 else 0.0
    history.needs[GANG_WEIGHT] = GANG_BONUS * multi_gpu / milli if milli > 0.0 else 0.0
    _update_limited_demand(shapes, counts, count, milli, history)


def _update_limited_demand(shapes: Ints, counts: Ints, count: int, milli: float, history: DemandHistory) -> None:
    """Recompute the sets of GPU types that jobs are limited to, and the part of the demand limited to each."""
    for row in range(MAX_TYPE_SETS):
        history.type_sets[row], history.limited_demand[row] = 0, 0.0
    for shape in range(count):
        need = need_at(shapes, shape)
        if need.gpus == 0 or need.types in (-1, 0):  # any type, or only types that no node has
            continue
        row = 0
        while row < MAX_TYPE_SETS and history.type_sets[row] not in (0, need.types):
            row += 1
        if row < MAX_TYPE_SETS:
            history.type_sets[row] = need.types
            history.limited_demand[row] += counts[shape] * need.instances * need.gpus * need.milli / milli


def update_type_prices(free: FreeArrays, type_sets: Ints, limited_demand: Floats, prices: Floats) -> None:
    """Recompute the price of a GPU of each type from the free capacity; all are 0 if no job is limited to types."""
    for gpu_type in range(MAX_GPU_TYPES):
        prices[gpu_type] = 0.0
    if type_sets[0] == 0:
        return
    if not cython.compiled:
        free_of = [0.0] * MAX_GPU_TYPES
    for gpu_type in range(MAX_GPU_TYPES):
        free_of[gpu_type] = 0.0
    total, capacity = 0.0, 0
    for node in range(free.nodes.shape[0] - 1):
        if free.nodes[node, UP] and free.nodes[node, GPUS] > 0:
            free_of[trailing_zeros(free.nodes[node, TYPE_BIT])] += free.nodes[node, MILLI_FREE]
            total += free.nodes[node, MILLI_FREE]
            capacity += free.nodes[node, GPUS] * WHOLE
    row = 0
    while row < MAX_TYPE_SETS and type_sets[row] != 0:
        allowed = 0.0
        for gpu_type in range(MAX_GPU_TYPES):
            if type_sets[row] >> gpu_type & 1:
                allowed += free_of[gpu_type]
        for gpu_type in range(MAX_GPU_TYPES):
            if type_sets[row] >> gpu_type & 1 and allowed > 0.0:
                prices[gpu_type] += limited_demand[row] * total / allowed
        row += 1
    for gpu_type in range(MAX_GPU_TYPES):  # so far, `prices` are the pressure r
        square = prices[gpu_type] * prices[gpu_type]
        prices[gpu_type] = total / capacity * square / (1.0 + square) if capacity > 0 else 0.0


def _prices(pieces: Floats, worth: Floats) -> Floats:
    """Return the price of each fraction of a GPU; write the worth of each free fraction to `worth`."""
    order = np.argsort(-pieces[:WHOLE], kind="mergesort")[:MAX_PRICED_SIZES]
    sizes = np.sort(order[pieces[order] > 0.0])
    prices = np.arange(WHOLE + 1) / WHOLE
    if sizes.shape[0] > 0:
        piece_prices = _cutting_prices(sizes, pieces[sizes])
        _solve_knapsack(sizes, piece_prices, worth, np.empty(WHOLE + 1, dtype=np.int64))
        scale = max(1.0, worth[WHOLE])  # 1 unless the simplex method stopped early
        for size in range(WHOLE):
            worth[size] /= scale
            prices[size] = worth[size]
        for index in range(sizes.shape[0]):
            prices[sizes[index]] = max(0.0, piece_prices[index]) / scale
    else:
        for size in range(WHOLE):
            worth[size] = 0.0
    worth[WHOLE] = 1.0
    return prices


def _solve_knapsack(sizes: Ints, piece_prices: Floats, worth: Floats, last: Ints) -> None:
    """Solve the knapsack for each fraction of a GPU: `worth` is the best value, `last` the last piece added or -1."""
    worth[0], last[0], fitting = 0.0, -1, 0
    for part in range(1, WHOLE + 1):
        worth[part], last[part] = worth[part - 1], -1
        bound = worth[part] + TOLERANCE
        while fitting < sizes.shape[0] and sizes[fitting] <= part:
            fitting += 1
        for index in range(fitting):
            value = worth[part - sizes[index]] + piece_prices[index]
            if value > bound:
                worth[part], last[part], bound = value, index, value + TOLERANCE


def _cutting_prices(sizes: Ints, pieces: Floats) -> Floats:
    """Return the dual prices of the cutting-stock problem: cut all pieces from the fewest GPUs.

    Revised simplex method with column generation by knapsack. The initial basis has one pattern per size, cut into
    that size only. Slack columns (surplus pieces) cost nothing.
    """
    count = sizes.shape[0]
    inverse, amounts, costs = np.zeros((count, count)), np.empty(count), np.ones(count)
    prices, column, worth = np.empty(count), np.empty(count), np.empty(WHOLE + 1)
    last = np.empty(WHOLE + 1, dtype=np.int64)
    for size in range(count):
        per_gpu = WHOLE // sizes[size]
        inverse[size, size] = 1.0 / per_gpu
        amounts[size] = pieces[size] / per_gpu
    for _ in range(MAX_PIVOTS):
        lowest = 0
        for size in range(count):
            column[size] = prices[size] = 0.0
            for row in range(count):
                prices[size] += costs[row] * inverse[row, size]
            if prices[size] < prices[lowest]:
                lowest = size
        if prices[lowest] < -TOLERANCE:
            column[lowest], cost = -1.0, 0.0
        else:
            _solve_knapsack(sizes, prices, worth, last)
            if worth[WHOLE] <= 1.0 + 1e-7:
                break
            _write_pattern(sizes, last, column)
            cost = 1.0
        if not _pivot(inverse, amounts, costs, column, cost):
            break
    return prices


def _write_pattern(sizes: Ints, last: Ints, column: Floats) -> None:
    """Write the pieces of the best filling of a whole GPU to `column`."""
    part = WHOLE
    while part > 0:
        if last[part] < 0:
            part -= 1
        else:
            column[last[part]] += 1.0
            part -= sizes[last[part]]


def _pivot(inverse: Floats, amounts: Floats, costs: Floats, column: Floats, cost: float) -> bool:
    """Bring a column into the basis; False if no column can leave it."""
    count = amounts.shape[0]
    direction = np.zeros(count)
    leaving, least = -1, INFINITE
    for row in range(count):
        for size in range(count):
            direction[row] += inverse[row, size] * column[size]
        if direction[row] > TOLERANCE and amounts[row] / direction[row] < least:
            leaving, least = row, amounts[row] / direction[row]
    if leaving < 0:
        return False
    for size in range(count):
        inverse[leaving, size] /= direction[leaving]
    amounts[leaving] = least
    for row in range(count):
        if row != leaving and direction[row] != 0.0:
            amounts[row] = max(0.0, amounts[row] - direction[row] * least)
            for size in range(count):
                inverse[row, size] -= direction[row] * inverse[leaving, size]
    costs[leaving] = cost
    return True
