"""Worth: what the jobs to be expected could make of what is free. Compiled.

A GPU of which f is free is worth as much as the best filling of f: sizes of shares have prices, those of the
cutting-stock problem (Gilmore and Gomory, 1961) whose rolls are GPUs and whose pieces are the shares seen so far.
So 0.19 GPU beside a share of 0.81 is worth nothing where nobody wants so little, and a half is worth a half where
halves come in pairs. A node is worth

    W = (1 + S) · G − G · (1 / (1 + c)^12 + ½ / (1 + m)^12) + T · (w / L)²

G  what its GPUs are worth together
S  how scarce its GPU type is: 0.03 × (its part of the demand that is limited to types) / (its part of all GPUs)
c  its free CPUs, over what G GPUs of the expected jobs want; m the same of memory. The second term is the part of
   G that will lie idle because CPUs or memory are gone
w  its wholly free GPUs, L the GPUs of the largest node, T 0.3 × the part of the demand for several GPUs at once:
   free GPUs that stand together serve gangs

An instance goes to the node where W falls least; what stays free beside it counts with 0.03 (of that GPU; for whole
GPUs, an eighth of what the node has), so that it goes where it is tight. There it takes the GPU whose worth falls
least; a share of several GPUs takes those with the most free, for only so does a node hold as many as it can.
"""

from __future__ import annotations

import numpy as np

from refold.model import WHOLE
from refold.packing.jit import compiled, inlined, trailing_zeros
from refold.packing.kernels import need_of
from refold.packing.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    TYPE_BIT,
    WHOLE_FREE,
    Floats,
    Ints,
    Need,
)

SCARCITY = 0.03
TOGETHER = 0.3
MEMORY_WEIGHT = 0.5
TIDINESS = 0.03

# What is kept of the demand besides the worth of parts of a GPU.
CPU_PER_GPU, MEMORY_PER_GPU, TOGETHER_WEIGHT = range(3)
NEEDS = 3

MOST_SIZES = 48
"""So many sizes of shares, those with the most pieces, get a price."""

MOST_PIVOTS = 500
SLACK = 1e-9


@inlined
def _idle(short: float) -> float:
    """1 / (1 + c)^12, by products: the same on every machine."""
    once = 1.0 / (1.0 + short)
    twice = once * once
    fourth = twice * twice
    return fourth * fourth * fourth


@inlined
def _stranded(gpus_worth: float, cpu_free: int, memory_free: int, needs: Floats) -> float:
    """What of the worth of a node's GPUs will lie idle for want of CPUs and memory."""
    stranded = 0.0
    if gpus_worth > SLACK:
        if needs[CPU_PER_GPU] > 0.0:
            stranded += gpus_worth * _idle(cpu_free / (gpus_worth * needs[CPU_PER_GPU]))
        if needs[MEMORY_PER_GPU] > 0.0:
            stranded += MEMORY_WEIGHT * gpus_worth * _idle(memory_free / (gpus_worth * needs[MEMORY_PER_GPU]))
    return stranded


@inlined
def _scarce(nodes: Ints, node: int, scarcity: Floats) -> float:
    return scarcity[trailing_zeros(np.uint64(nodes[node, TYPE_BIT]))] if nodes[node, GPUS] > 0 else 0.0


@compiled
def loss_on(
    nodes: Ints,
    gpus: Ints,
    largest: int,
    node: int,
    need: Need,
    worth: Floats,
    needs: Floats,
    scarcity: Floats,
) -> tuple[float, int]:
    """How much worth a node loses by an instance that fits there, and the GPUs: for one, by which it loses least."""
    first, count = nodes[node, FIRST_GPU], nodes[node, GPUS]
    gpus_worth = 0.0
    for gpu in range(first, first + count):
        gpus_worth += worth[gpus[gpu]]
    mask, taken, tidy, wholes = 0, 0.0, 0, 0
    for _ in range(need.gpus):
        best, least, left = -1, np.inf, 0
        for gpu in range(count):
            free = gpus[first + gpu]
            if free < need.milli or mask >> gpu & 1:
                continue
            loss = worth[free] - worth[free - need.milli]
            if need.gpus > 1:
                better = free - need.milli > left  # only so does a node hold as many instances as it can
            else:
                better = loss < least - SLACK or (loss < least + SLACK and free - need.milli < left)
            if best < 0 or better:
                best, least, left = gpu, loss, free - need.milli
            if need.milli == WHOLE:
                break
        mask |= 1 << best
        taken += least
        tidy += left
        wholes += left == WHOLE - need.milli
    if need.milli == WHOLE or need.gpus == 0:
        tidy = (nodes[node, MILLI_FREE] - need.gpus * need.milli) >> 3
    cpu, memory = nodes[node, CPU_FREE], nodes[node, MEMORY_FREE]
    loss = (1.0 + _scarce(nodes, node, scarcity)) * taken + TIDINESS * tidy / WHOLE
    loss += _stranded(gpus_worth - taken, cpu - need.cpu, memory - need.memory, needs)
    loss -= _stranded(gpus_worth, cpu, memory, needs)
    if wholes > 0:
        whole = nodes[node, WHOLE_FREE]
        loss += needs[TOGETHER_WEIGHT] * (whole * whole - (whole - wholes) * (whole - wholes)) / (largest * largest)
    return loss, mask


@compiled
def renew_worth(
    shapes: Ints, seen: Ints, count: int, nodes: Ints, worth: Floats, needs: Floats, scarcity: Floats
) -> None:
    """What parts of GPUs, CPUs beside them and so on are worth, if more comes of what was seen."""
    pieces = np.zeros(WHOLE + 1)
    for shape in range(count):
        need = need_of(shapes, shape)
        if need.gpus > 0:
            pieces[need.milli] += seen[shape] * need.instances * need.gpus
    prices = _prices(pieces, worth)
    wanted = cpu = memory = together = milli = 0.0
    for shape in range(count):
        need = need_of(shapes, shape)
        if need.gpus == 0:
            continue
        times = float(seen[shape] * need.instances)
        wanted += times * need.gpus * prices[need.milli]
        cpu += times * need.cpu
        memory += times * need.memory
        milli += times * need.gpus * need.milli
        if need.gpus > 1:
            together += times * need.gpus * need.milli
    needs[:] = 0.0
    if wanted > 0.0:
        needs[CPU_PER_GPU], needs[MEMORY_PER_GPU] = cpu / wanted, memory / wanted
    if milli > 0.0:
        needs[TOGETHER_WEIGHT] = TOGETHER * together / milli
    _renew_scarcity(shapes, seen, count, nodes, milli, scarcity)


@compiled
def _renew_scarcity(shapes: Ints, seen: Ints, count: int, nodes: Ints, milli: float, scarcity: Floats) -> None:
    """Demand that is limited to some types is spread over them as their GPUs are."""
    have = np.zeros(scarcity.shape[0])
    for node in range(nodes.shape[0] - 1):
        if nodes[node, GPUS] > 0:
            have[trailing_zeros(np.uint64(nodes[node, TYPE_BIT]))] += nodes[node, GPUS]
    scarcity[:] = 0.0
    for shape in range(count):
        need = need_of(shapes, shape)
        if need.gpus == 0 or need.types == -1:
            continue
        allowed = 0.0
        for kind in range(have.shape[0]):
            if need.types >> kind & 1:
                allowed += have[kind]
        for kind in range(have.shape[0]):
            if need.types >> kind & 1 and allowed > 0.0:
                part = seen[shape] * need.instances * need.gpus * need.milli / milli
                scarcity[kind] += SCARCITY * part / (allowed / have.sum())


@compiled
def _prices(pieces: Floats, worth: Floats) -> Floats:
    """The price of a piece of each size; `worth` gets what the best filling of each part of a GPU comes to."""
    order = np.argsort(-pieces[:WHOLE], kind="mergesort")[:MOST_SIZES]
    sizes = np.sort(order[pieces[order] > 0.0])
    prices = np.arange(WHOLE + 1) / WHOLE
    if sizes.shape[0] > 0:
        price_of = _cutting_prices(sizes, pieces[sizes])
        _fill(sizes, price_of, worth, np.empty(WHOLE + 1, dtype=np.int64))
        scale = max(1.0, worth[WHOLE])  # 1, unless the search was cut short
        worth /= scale
        for size in range(WHOLE):
            prices[size] = worth[size]
        for index in range(sizes.shape[0]):
            prices[sizes[index]] = max(0.0, price_of[index]) / scale
    else:
        worth[:WHOLE] = 0.0
    worth[WHOLE] = 1.0
    return prices


@compiled
def _fill(sizes: Ints, price_of: Floats, worth: Floats, last: Ints) -> None:
    """The most that pieces in each part of a GPU come to (a knapsack); `last` is the piece added last, or -1."""
    worth[0], last[0] = 0.0, -1
    for part in range(1, WHOLE + 1):
        best, which = worth[part - 1], -1
        for index in range(sizes.shape[0]):
            if sizes[index] > part:
                break
            value = worth[part - sizes[index]] + price_of[index]
            if value > best + SLACK:
                best, which = value, index
        worth[part], last[part] = best, which


@compiled
def _cutting_prices(sizes: Ints, pieces: Floats) -> Floats:
    """Dual prices of: cover all pieces by the fewest GPUs. The revised simplex method, columns by knapsack.

    The basis begins with one pattern per size, cut into nothing else. Slack columns (a piece too many) cost nothing.
    """
    count = sizes.shape[0]
    inverse, amounts, costs = np.zeros((count, count)), np.empty(count), np.ones(count)
    prices, column, worth = np.empty(count), np.empty(count), np.empty(WHOLE + 1)
    last = np.empty(WHOLE + 1, dtype=np.int64)
    for size in range(count):
        per_gpu = WHOLE // sizes[size]
        inverse[size, size] = 1.0 / per_gpu
        amounts[size] = pieces[size] / per_gpu
    for _ in range(MOST_PIVOTS):
        for size in range(count):
            prices[size] = 0.0
            for row in range(count):
                prices[size] += costs[row] * inverse[row, size]
        column[:] = 0.0
        lowest = np.argmin(prices)
        if prices[lowest] < -SLACK:
            column[lowest], cost = -1.0, 0.0
        else:
            _fill(sizes, prices, worth, last)
            if worth[WHOLE] <= 1.0 + 1e-7:
                break
            _pattern(sizes, last, column)
            cost = 1.0
        if not _pivot(inverse, amounts, costs, column, cost):
            break
    return prices


@compiled
def _pattern(sizes: Ints, last: Ints, column: Floats) -> None:
    """The pieces of the best filling of a whole GPU."""
    part = WHOLE
    while part > 0:
        if last[part] < 0:
            part -= 1
        else:
            column[last[part]] += 1.0
            part -= sizes[last[part]]


@compiled
def _pivot(inverse: Floats, amounts: Floats, costs: Floats, column: Floats, cost: float) -> bool:
    """Bring a column into the basis; False if nothing would leave it."""
    count = amounts.shape[0]
    direction = np.zeros(count)
    leaving, least = -1, np.inf
    for row in range(count):
        for size in range(count):
            direction[row] += inverse[row, size] * column[size]
        if direction[row] > SLACK and amounts[row] / direction[row] < least:
            leaving, least = row, amounts[row] / direction[row]
    if leaving < 0:
        return False
    inverse[leaving] /= direction[leaving]
    amounts[leaving] = least
    for row in range(count):
        if row != leaving and direction[row] != 0.0:
            amounts[row] = max(0.0, amounts[row] - direction[row] * least)
            for size in range(count):
                inverse[row, size] -= direction[row] * inverse[leaving, size]
    costs[leaving] = cost
    return True
