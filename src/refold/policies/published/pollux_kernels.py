"""Pollux's search, compiled: divisions of the cluster are bred, made to fit, and judged.

A division is a matrix with a row per job and a column per node: how many GPUs of the node the job has. What a search
has to respect is a `DivisionProblem`. All chance comes from the generator that is handed in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.packing import Bools, Floats, Ints, compiled

RESET = 0.1
"""How often a job's row becomes what the job has now (from Pollux's released code)."""

EMPTIED = 0.01
"""How often a job loses everything (likewise: 0.1 of 0.1)."""

RESIZED_ROWS = 2.0
"""How many jobs of a child get another size, on average (ours)."""


class DivisionProblem(NamedTuple):
    """What a division has to respect, and what it is worth.

    Jobs of one `kind` are equally fast. A kind's sizes are the numbers of GPUs it can have.
    """

    kind: Ints
    """Of each job."""
    most: Ints
    """GPUs that a job may have."""
    choices: Ints
    """How many of its kind's sizes a job may choose from: those up to `most`."""
    room: Ints
    """GPUs that a job, alone, could have: jobs × nodes."""
    need: Ints
    """GPUs, CPUs and memory for each GPU of a job: jobs × 3."""
    limit: Ints
    """GPUs, CPUs and memory to be divided: nodes × 3."""
    type_of: Ints
    """GPU type of each node."""
    crowded: Bools
    """Nodes that have a distributed job already, which is not part of the search."""
    sizes: Ints
    """Kinds × sizes, ascending, padded with 0."""
    size_below: Ints
    """Kinds × GPUs: the largest size that needs no more GPUs than these."""
    speed: Floats
    """Kinds × types × nodes × GPUs; 0: cannot be."""
    fair: Floats
    """The speed of each job on a fair share."""
    present: Ints
    """What jobs have now: jobs × nodes."""
    runs: Bools
    """Whether a job has anything now."""
    restart: Floats
    """What a change leaves of a running job's speedup."""
    least: float
    """The speedup that a job without GPUs is counted with."""
    power: float
    """Of the mean over jobs."""


@compiled
def evolve(puzzle: DivisionProblem, size: int, generations: int, chance: np.random.Generator) -> Ints:
    """The best division found: of a population that begins with what is, and of its descendants."""
    jobs, nodes = puzzle.present.shape
    people = np.empty((2 * size, jobs, nodes), dtype=np.int64)
    worth = np.empty(2 * size, dtype=np.float64)
    favoured = np.zeros(jobs, dtype=np.bool_)
    for one in range(size):
        people[one] = puzzle.present
        favoured[:] = False
        if one > 0:
            mutate(puzzle, people[one], favoured, chance)
        repair(puzzle, people[one], favoured, chance)
        worth[one] = fitness(puzzle, people[one])
    for _ in range(generations):
        for child in range(size, 2 * size):
            cross(people, _winner(worth, size, chance), _winner(worth, size, chance), child, chance)
            favoured[:] = False
            mutate(puzzle, people[child], favoured, chance)
            repair(puzzle, people[child], favoured, chance)
            worth[child] = fitness(puzzle, people[child])
        _survive(people, worth, size)
    best: Ints = people[np.argmax(worth[:size])].copy()
    return best


@compiled
def _winner(worth: Floats, size: int, chance: np.random.Generator) -> int:
    """The better of two that meet by chance."""
    one, other = chance.integers(0, size), chance.integers(0, size)
    return int(one if worth[one] >= worth[other] else other)


@compiled
def _survive(people: Ints, worth: Floats, size: int) -> None:
    """The best go on; of those that are worth the same, one does, as long as there are others. Older ones first."""
    chosen = np.empty(size, dtype=np.int64)
    passed = np.zeros(2 * size, dtype=np.bool_)
    taken, last = 0, np.inf
    while taken < size:
        best = _best_below(worth, passed, last)
        if best < 0:  # only twins are left
            best = _best_below(worth, passed, np.inf)
        passed[best] = True
        last = worth[best]
        chosen[taken] = best
        taken += 1
    kept, kept_worth = people[chosen], worth[chosen]
    for place in range(size):
        people[place] = kept[place]
        worth[place] = kept_worth[place]


@compiled
def _best_below(worth: Floats, passed: Bools, bound: float) -> int:
    best = -1
    for one in range(worth.shape[0]):
        if not passed[one] and worth[one] < bound and (best < 0 or worth[one] > worth[best]):
            best = one
    return best


@compiled
def cross(people: Ints, mother: int, father: int, child: int, chance: np.random.Generator) -> None:
    """Every job has what it has in one of two divisions."""
    _, jobs, nodes = people.shape
    for job in range(jobs):
        parent = mother if chance.random() < 0.5 else father
        for node in range(nodes):
            people[child, job, node] = people[parent, job, node]


@compiled
def mutate(puzzle: DivisionProblem, state: Ints, favoured: Bools, chance: np.random.Generator) -> None:
    """Some jobs go back to what they have, some lose all, some get another size in another place."""
    jobs = state.shape[0]
    resized = RESIZED_ROWS / jobs
    for job in range(jobs):
        draw = chance.random()
        if draw < RESET:
            state[job] = puzzle.present[job]
        elif draw < RESET + EMPTIED:
            state[job] = 0
        elif chance.random() < resized and puzzle.choices[job] > 0:
            _resize(puzzle, state, job, chance)
            favoured[job] = True


@compiled
def _resize(puzzle: DivisionProblem, state: Ints, job: int, chance: np.random.Generator) -> None:
    """A random size, where most is free or from a random node on; whoever is there has to make room."""
    jobs, nodes = state.shape
    left = puzzle.sizes[puzzle.kind[job], chance.integers(0, puzzle.choices[job])]
    first, where_free = chance.integers(0, nodes), chance.random() < 0.5
    appeal = np.empty(nodes, dtype=np.int64)
    for node in range(nodes):
        state[job, node] = 0
        appeal[node] = -((node - first) % nodes)
        if where_free:
            appeal[node] = puzzle.limit[node, 0]
            for other in range(jobs):
                appeal[node] -= state[other, node]
    gpu_type = -1
    while left > 0:
        best = -1
        for node in range(nodes):
            open_to_it = state[job, node] == 0 and puzzle.room[job, node] > 0
            fits_type = gpu_type < 0 or puzzle.type_of[node] == gpu_type
            if open_to_it and fits_type and (best < 0 or appeal[node] > appeal[best]):
                best = node
        if best < 0:
            return
        state[job, best] = min(left, puzzle.room[job, best])
        left -= state[job, best]
        gpu_type = puzzle.type_of[best]


@compiled
def repair(puzzle: DivisionProblem, state: Ints, favoured: Bools, chance: np.random.Generator) -> None:
    """Make a division possible, by taking GPUs away only; favoured jobs keep theirs before others do."""
    _keep_to_one_type(puzzle, state)
    _part_distributed_jobs(puzzle, state, favoured, chance)
    _keep_to_limits(puzzle, state, favoured, chance)
    _round_down(puzzle, state)


@compiled
def _keep_to_one_type(puzzle: DivisionProblem, state: Ints) -> None:
    """A job runs on GPUs of one type: that of which it has most on a node."""
    jobs, nodes = state.shape
    for job in range(jobs):
        most, kept = 0, -1
        for node in range(nodes):
            state[job, node] = min(state[job, node], puzzle.room[job, node])
            if state[job, node] > most:
                most, kept = state[job, node], puzzle.type_of[node]
        for node in range(nodes):
            if puzzle.type_of[node] != kept:
                state[job, node] = 0


@compiled
def _part_distributed_jobs(puzzle: DivisionProblem, state: Ints, favoured: Bools, chance: np.random.Generator) -> None:
    """At most one job that spans nodes on each node: two would slow each other's network."""
    jobs, nodes = state.shape
    spans = np.zeros(jobs, dtype=np.int64)
    for job in range(jobs):
        for node in range(nodes):
            spans[job] += state[job, node] > 0
    for node in range(nodes):
        kept, met = -1, 0
        for job in range(jobs):
            if spans[job] < 2 or state[job, node] == 0:
                continue
            met += 1
            loser = job
            if not puzzle.crowded[node]:
                stays = kept >= 0 and (
                    chance.random() >= 1.0 / met if favoured[job] == favoured[kept] else favoured[kept]
                )
                loser, kept = (job, kept) if stays else (kept, job)
            if loser >= 0:
                state[loser, node] = 0
                spans[loser] -= 1


@compiled
def _keep_to_limits(puzzle: DivisionProblem, state: Ints, favoured: Bools, chance: np.random.Generator) -> None:
    """While a node has not enough, some job there has to give."""
    for node in range(state.shape[1]):
        missing = _missing(puzzle.need, puzzle.limit, state, node)
        while missing > 0:
            victim = _victim(state, node, favoured, chance)
            state[victim, node] -= min(state[victim, node], missing)
            missing = _missing(puzzle.need, puzzle.limit, state, node)


@compiled
def _missing(need: Ints, limit: Ints, state: Ints, node: int) -> int:
    """How many GPUs are too many on a node; at least one, where CPUs or memory do not suffice."""
    gpus, cpus, memory = 0, 0, 0
    for job in range(state.shape[0]):
        if state[job, node] > 0:
            gpus += state[job, node] * need[job, 0]
            cpus += state[job, node] * need[job, 1]
            memory += state[job, node] * need[job, 2]
    short = gpus > 0 and (cpus > limit[node, 1] or memory > limit[node, 2])
    return int(max(gpus - limit[node, 0], 1 if short else 0))


@compiled
def _victim(state: Ints, node: int, favoured: Bools, chance: np.random.Generator) -> int:
    """Any job on the node; a favoured one only if there are no others."""
    victim, met, ordinary = -1, 0, False
    for job in range(state.shape[0]):
        if state[job, node] == 0 or (ordinary and favoured[job]):
            continue
        if not ordinary and not favoured[job]:
            ordinary, met = True, 0
        met += 1
        if chance.random() < 1.0 / met:
            victim = job
    return victim


@compiled
def _round_down(puzzle: DivisionProblem, state: Ints) -> None:
    """To the next size that a job can have; it leaves the node where it has least first."""
    jobs, nodes = state.shape
    for job in range(jobs):
        total = 0
        for node in range(nodes):
            total += state[job, node]
        excess = total - puzzle.size_below[puzzle.kind[job], min(total, puzzle.most[job])]
        while excess > 0:
            least = -1
            for node in range(nodes):
                if state[job, node] > 0 and (least < 0 or state[job, node] < state[job, least]):
                    least = node
            given = min(excess, state[job, least])
            state[job, least] -= given
            excess -= given


@compiled
def fitness(puzzle: DivisionProblem, state: Ints) -> float:
    """The power mean of all speedups against a fair share; a change of a running job costs it part."""
    jobs, nodes = state.shape
    sum_of_powers = 0.0
    for job in range(jobs):
        total, spans, gpu_type, changed = 0, 0, 0, False
        for node in range(nodes):
            changed = changed or state[job, node] != puzzle.present[job, node]
            if state[job, node] > 0:
                total += state[job, node]
                spans += 1
                gpu_type = puzzle.type_of[node]
        speedup = 0.0
        if 0 < spans < puzzle.speed.shape[2]:
            speedup = puzzle.speed[puzzle.kind[job], gpu_type, spans, total] / puzzle.fair[job]
        if changed and puzzle.runs[job]:
            speedup *= puzzle.restart[job]
        sum_of_powers += max(puzzle.least, speedup) ** puzzle.power
    return float((sum_of_powers / jobs) ** (1.0 / puzzle.power))
