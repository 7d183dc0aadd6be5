"""Every placement rule against a plain Python implementation, on random clusters in random states."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, strategies as st
from plain_resources import PlainResources

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Node, Placement, Share
from refold.model.units import WHOLE
from refold.placement import RULES, FreeResources, Placer, Trial
from refold.placement.fragmentation import cluster_fragmentation
from refold.placement.layout import GPUS, MAX_FREE, MILLI_FREE, WHOLE_FREE
from refold.testing import make_cluster


class RuleResources(PlainResources):
    """Free resources with the rules in plain Python."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.unused = [[WHOLE] * node.gpus for node in cluster.nodes]
        self.up = [True] * len(cluster.nodes)
        self.down_gpus: set[tuple[int, int]] = set()
        self.cursor = 0

    def toggle_gpu(self, node: int, gpu: int) -> None:
        """Take a GPU down or bring it up: what no run uses of it is free if it is up."""
        self.down_gpus ^= {(node, gpu)}
        self.gpus[node][gpu] = 0 if (node, gpu) in self.down_gpus else self.unused[node][gpu]

    def add(self, placement: Placement, sign: int) -> None:
        super().add(placement, sign)
        for share in placement:
            for gpu in share.gpus:
                self.unused[share.node][gpu] += sign * share.gpu_milli
                self.gpus[share.node][gpu] = 0 if (share.node, gpu) in self.down_gpus else self.unused[share.node][gpu]

    def fits(self, node: int, demand: Demand) -> bool:
        return (
            self.up[node]
            and (not demand.gpus or not demand.gpu_types or self.cluster.nodes[node].gpu_type in demand.gpu_types)
            and sum(free >= demand.gpu_milli for free in self.gpus[node]) >= demand.gpus
            and self.cpu[node] >= demand.cpu_milli
            and self.memory[node] >= demand.memory_mib
        )

    def key(self, rule: str, node: int, demand: Demand) -> tuple[float, ...]:
        """Sort key of a node: the lowest wins, the node index breaks ties."""
        shared = demand.gpus and demand.gpu_milli < WHOLE
        fitting = [free for free in self.gpus[node] if free >= demand.gpu_milli]
        whole = sum(free == WHOLE for free in self.gpus[node])
        match rule:
            case "first-fit":
                return (node,)
            case "best-fit":
                tight = (
                    (self.cpu[node],)
                    if not demand.gpus
                    else (min(fitting),)
                    if shared
                    else (whole, sum(self.gpus[node]))
                )
                return (*tight, node)
            case "worst-fit":
                loose = self.cpu[node] if not demand.gpus else max(fitting) if shared else sum(self.gpus[node])
                return (-loose, node)
            case "round-robin":
                return (node < self.cursor, node)
            case "tetris":
                return (-self.alignment(node, demand), node)
        raise AssertionError(rule)

    def alignment(self, node: int, demand: Demand) -> float:
        machine, total = self.cluster.nodes[node], 0.0
        if demand.gpus:
            capacity = machine.gpus * WHOLE
            total += demand.gpus * demand.gpu_milli * sum(self.gpus[node]) / (capacity * capacity)
        if demand.cpu_milli:
            total += demand.cpu_milli / machine.cpu_milli * (self.cpu[node] / machine.cpu_milli)
        if demand.memory_mib:
            total += demand.memory_mib / machine.memory_mib * (self.memory[node] / machine.memory_mib)
        return total

    def pick(self, rule: str, node: int, demand: Demand) -> tuple[int, ...]:
        free = self.gpus[node]
        candidates = [gpu for gpu in range(len(free)) if free[gpu] >= demand.gpu_milli]
        if rule == "worst-fit" or (demand.gpus > 1 and demand.gpu_milli < WHOLE):
            candidates.sort(key=lambda gpu: -free[gpu])
        elif rule in ("best-fit", "tetris"):
            candidates.sort(key=lambda gpu: free[gpu])
        return tuple(sorted(candidates[: demand.gpus]))

    def place(self, rule: str, demand: Demand) -> Placement | None:
        taken: list[Share] = []
        cursor = self.cursor
        for _ in range(demand.instances):
            nodes = [node for node in range(len(self.gpus)) if self.fits(node, demand)]
            if not nodes:
                self.add(tuple(taken), 1)
                self.cursor = cursor
                return None
            node = min(nodes, key=lambda node: self.key(rule, node, demand))
            self.cursor = node + 1
            gpus = self.pick(rule, node, demand)
            share = Share(node, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            self.add((share,), -1)
            taken.append(share)
        return tuple(taken)


def random_cluster(rng: random.Random) -> Cluster:
    gpu_types = ["A100", "T4"]
    return Cluster(
        tuple(
            Node(
                f"n{index}",
                gpus := rng.choice([0, 1, 2, 2, 4, 8]),
                rng.choice(gpu_types) if gpus else "",
                rng.choice([8, 16]) * WHOLE,
                rng.choice([16, 64]) * 1024,
            )
            for index in range(rng.choice([3, 9, 70, 130]))
        )
    )


def random_demand(rng: random.Random, whole_only: bool) -> Demand:
    gpus = rng.choice([1, 1, 1, 2, 4, 8]) if whole_only else rng.choice([0, 1, 1, 1, 2, 4])
    milli = WHOLE if whole_only or gpus == 0 else rng.choice([WHOLE, WHOLE, 500, 250, 300])
    cpu = 0 if whole_only else rng.choice([0, 1000, 4000])
    memory = 0 if whole_only else rng.choice([0, 2048])
    types = rng.choice([(), (), ("T4",), ("A100", "T4")])
    return Demand(rng.choice([1, 1, 2, 5]), gpus, milli, cpu, memory, types)


@pytest.mark.parametrize("rule", ["first-fit", "best-fit", "worst-fit", "round-robin", "tetris"])
@given(seed=st.integers(0, 2**32), whole_only=st.booleans())
def test_a_rule_follows_its_definition(rule: str, seed: int, whole_only: bool) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    free, plain, placer = FreeResources(cluster), RuleResources(cluster), Placer(rule)
    running: list[Placement] = []
    for _ in range(60):
        if running and rng.random() < 0.35:
            ended = running.pop(rng.randrange(len(running)))
            free.release(ended)
            plain.add(ended, 1)
        elif rng.random() < 0.1:
            node = rng.randrange(len(cluster.nodes))
            plain.up[node] = not plain.up[node]
            free.set_node_up(node, plain.up[node])
        elif rng.random() < 0.2:
            toggle_gpu(rng, free, plain)
        else:
            demand = random_demand(rng, whole_only)
            expected = plain.place(rule, demand)
            assert placer.place(free, demand) == expected
            if expected:
                running.append(expected)
    assert_arrays_agree(free, plain)


def toggle_gpu(rng: random.Random, free: FreeResources, plain: RuleResources) -> None:
    """Take a GPU down or bring it up. Runs may hold parts of it."""
    node = rng.choice([node for node, gpus in enumerate(plain.unused) if gpus] or [0])
    gpu = rng.randrange(max(1, len(plain.unused[node])))
    if gpu < len(plain.unused[node]):
        plain.toggle_gpu(node, gpu)
        free.set_gpu_up(node, gpu, (node, gpu) not in plain.down_gpus)


@given(seed=st.integers(0, 2**32))
def test_free_resources_agree_with_a_plain_model_while_nodes_and_gpus_go_down_and_come_up(seed: int) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(*rng.choices([0, 1, 2, 4], k=5), 4, cpus=16, memory_gib=64)
    free, plain = FreeResources(cluster), RuleResources(cluster)
    held: list[Placement] = []
    for _ in range(40):
        match rng.choice(["take", "take", "release", "node", "gpu", "retake", "trial"]):
            case "take":
                share = random_share(rng, cluster)
                fits = plain.up[share.node] and all(
                    plain.gpus[share.node][gpu] >= share.gpu_milli for gpu in share.gpus
                )
                fits = fits and plain.cpu[share.node] >= share.cpu_milli
                assert free.has((share,)) == (free.copy().take((share,)) is None) == fits
                if free.take((share,)) is None:
                    plain.add((share,), -1)
                    held.append((share,))
            case "release" if held:
                ended = held.pop(rng.randrange(len(held)))
                free.release(ended)
                plain.add(ended, 1)
            case "node":
                node = rng.randrange(len(cluster.nodes))
                plain.up[node] = not plain.up[node]
                free.set_node_up(node, plain.up[node])
            case "gpu":
                toggle_gpu(rng, free, plain)
            case "retake" if held:
                free.release(held[0])
                free.retake(held[0])
            case "trial":
                random_trial(rng, free, held)
        assert_arrays_agree(free, plain)
        assert_arrays_agree(free.copy(), plain)
        assert free.down_gpus == plain.down_gpus
        for placement in held:
            is_up = all(
                plain.up[share.node] and not any((share.node, gpu) in plain.down_gpus for gpu in share.gpus)
                for share in placement
            )
            assert free.is_placement_up(placement) == is_up


def random_share(rng: random.Random, cluster: Cluster) -> Share:
    node = rng.randrange(len(cluster.nodes))
    gpus = range(cluster.nodes[node].gpus)
    picked = tuple(sorted(rng.sample(gpus, rng.randint(0, len(gpus)))))
    return Share(node, picked, rng.choice([WHOLE, 500, 300]), rng.choice([0, 4000]))


def random_trial(rng: random.Random, free: FreeResources, held: list[Placement]) -> None:
    """Change free resources tentatively and undo it."""
    trial = Trial(free)
    for placement in rng.sample(held, len(held) // 2):
        trial.release(placement)
    for _ in range(3):
        trial.take((random_share(rng, free.cluster),))
        trial.take_available((random_share(rng, free.cluster),))
        trial.place(Placer("best-fit"), random_demand(rng, False))
    trial.undo()


def test_a_gpu_that_is_down_has_no_free_part_even_when_its_runs_end() -> None:
    free = FreeResources(make_cluster(2))
    run: Placement = (Share(0, (0,), 300),)
    assert free.take(run) is None
    free.set_gpu_up(0, 0, False)
    assert (free.gpu_milli_of(0), free.gpu_milli, free.whole_gpus) == ((0, WHOLE), WHOLE, 1)
    free.release(run)
    assert free.gpu_milli_of(0) == (0, WHOLE)
    assert free.take((Share(0, (0,), 100),)) == "node 'n0': GPU 0 is down"
    free.set_gpu_up(0, 0, True)
    assert free.gpu_milli_of(0) == (WHOLE, WHOLE)


def test_a_gpu_that_comes_up_has_the_part_free_that_no_run_holds() -> None:
    free = FreeResources(make_cluster(1))
    assert free.take((Share(0, (0,), 300),)) is None
    for _ in range(2):
        free.set_gpu_up(0, 0, False)
    for _ in range(2):
        free.set_gpu_up(0, 0, True)
    assert free.gpu_milli_of(0) == (700,)


def test_a_job_that_fits_only_when_a_gpu_comes_up_again_is_feasible() -> None:
    free = FreeResources(make_cluster(2))
    free.set_gpu_up(0, 1, False)
    demand = Demand(1, 2)
    assert (free.fits_when_empty(demand), free.fits_one_instance(demand)) == (True, False)
    assert free.shortage(demand).too_few_gpus == 1
    assert free.shortage(Demand(3, 1, 500)).instances_fit == 2


def assert_arrays_agree(free: FreeResources, plain: RuleResources) -> None:
    count = len(plain.gpus)
    max_gpus = max(node.gpus for node in free.cluster.nodes)
    for node in range(count):
        assert free.gpu_milli_of(node) == tuple(plain.gpus[node])
        row = free.nodes[node]
        whole = sum(gpu == WHOLE for gpu in plain.gpus[node])
        assert (row[WHOLE_FREE], row[MAX_FREE], row[MILLI_FREE]) == (
            whole,
            max(plain.gpus[node], default=0),
            sum(plain.gpus[node]),
        )
        for level in range(max_gpus + 2):
            bit = int(free.bits[level, node >> 6]) >> (node & 63) & 1
            assert bit == (plain.up[node] and whole >= level and level <= max_gpus)
    words = (count + 63) // 64
    for level in range(max_gpus + 1):
        in_row = [node for node in range(count) if plain.up[node] and free.nodes[node, WHOLE_FREE] >= level]
        sizes = np.bincount(free.nodes[in_row, GPUS], minlength=max_gpus + 1) if in_row else np.zeros(max_gpus + 1)
        assert free.bits[level, words:].tolist() == [*sizes, len(in_row)]
    assert free.gpu_milli == sum(sum(gpus) for gpus, up in zip(plain.gpus, plain.up, strict=True) if up)


@given(seed=st.integers(0, 2**32))
def test_releasing_everything_restores_the_empty_cluster(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    free, empty = FreeResources(cluster), FreeResources(cluster)
    placers = [Placer(rule, seed=3) for rule in RULES]
    placed = [placer.place(free, random_demand(rng, False)) for placer in placers * 3]
    for placement in placed:
        free.release(placement or ())
    assert np.array_equal(free.nodes, empty.nodes)
    assert np.array_equal(free.gpus, empty.gpus)
    assert np.array_equal(free.bits, empty.bits)


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 2**32))
def test_fitting_in_an_empty_cluster_is_exact(rule: str, seed: int) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(*(rng.choice([0, 1, 2, 3]) for _ in range(3)), cpus=4, memory_gib=4)
    demand = Demand(
        rng.randint(1, 8),
        rng.randint(0, 3),
        rng.choice([WHOLE, 500, 300, 250]),
        rng.choice([0, 1000]),
        rng.choice([0, 2048]),
    )
    free = FreeResources(cluster)
    max_gpus = max_instances(cluster, demand)
    assert free.shortage(demand).instances_fit == min(max_gpus, demand.instances)
    assert free.fits_when_empty(demand) == (max_gpus >= demand.instances)
    assert (Placer(rule).place(free, demand) is not None) == (max_gpus >= demand.instances)


def max_instances(cluster: Cluster, demand: Demand) -> int:
    """The maximum number of instances, by trying every number on each node."""
    total = 0
    for node in cluster.nodes:
        fitting = 0
        while fitting < 100 and _fits(node, demand, fitting + 1):
            fitting += 1
        total += fitting
    return total


def _fits(node: Node, demand: Demand, instances: int) -> bool:
    parts = sum(min(instances, WHOLE // demand.gpu_milli) for _ in range(node.gpus))
    return (
        parts >= instances * demand.gpus
        and instances * demand.cpu_milli <= node.cpu_milli
        and instances * demand.memory_mib <= node.memory_mib
    )


def fragmentation_by_definition(plain: RuleResources, typical: list[tuple[Demand, float]]) -> float:
    """The definition of FGD in plain Python."""
    total = 0.0
    for node, gpus in enumerate(plain.gpus):
        for demand, weight in typical:
            kind = plain.cluster.nodes[node].gpu_type
            can_host = (
                demand.gpus > 0
                and plain.cpu[node] >= demand.cpu_milli
                and (not demand.gpu_types or kind in demand.gpu_types)
                and sum(free >= demand.gpu_milli for free in gpus) >= demand.gpus
            )
            total += weight * (sum(free for free in gpus if free < demand.gpu_milli) if can_host else sum(gpus))
    return total


class SubmittedJobs:
    """The part of a View that rules learn from."""

    def __init__(self, cluster: Cluster, demands: list[Demand]) -> None:
        self.cluster = cluster
        self.changes = self
        self.submitted = [Job(str(number), demand=demand) for number, demand in enumerate(demands)]


@given(seed=st.integers(0, 2**32))
def test_fgd_minimises_the_growth_of_expected_fragmentation(seed: int) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(*(rng.choice([1, 2, 4]) for _ in range(5)), cpus=16)
    demands = [Demand(1, 1), Demand(1, 1, 500, 2000), Demand(1, 2, cpu_milli=4000), Demand(1, 1, 300)]
    submitted = [rng.choice(demands) for _ in range(8)]
    free, plain, placer = FreeResources(cluster), RuleResources(cluster), Placer("fgd")
    placer.observe(SubmittedJobs(cluster, submitted))
    typical = [(demand, submitted.count(demand) / len(submitted)) for demand in demands]
    for _ in range(12):
        demand = rng.choice(demands)
        options = [
            Share(
                node, (gpu,) if demand.gpu_milli < WHOLE else plain.pick("first-fit", node, demand), *_amounts(demand)
            )
            for node in range(len(plain.gpus))
            if plain.fits(node, demand)
            for gpu in (range(len(plain.gpus[node])) if demand.gpu_milli < WHOLE else [0])
            if plain.gpus[node][gpu] >= demand.gpu_milli or demand.gpu_milli == WHOLE
        ]
        before = fragmentation_by_definition(plain, typical)
        growths = {}
        for share in options:
            plain.add((share,), -1)
            growths[share] = fragmentation_by_definition(plain, typical) - before
            plain.add((share,), 1)
        placement = placer.place(free, demand)
        assert (placement is None) == (not options)
        if placement is None:
            return
        assert math.isclose(growths[placement[0]], min(growths.values()), abs_tol=1e-6)
        plain.add(placement, -1)
        measured = cluster_fragmentation(free.arrays, placer._greedy.history)
        assert math.isclose(measured, fragmentation_by_definition(plain, typical), abs_tol=1e-6)


def _amounts(demand: Demand) -> tuple[int, int, int]:
    return demand.gpu_milli, demand.cpu_milli, demand.memory_mib


def test_random_is_uniform_over_nodes_and_deterministic_for_a_seed() -> None:
    cluster = make_cluster(*[8] * 10)

    def nodes(seed: int) -> list[int]:
        free, placer = FreeResources(cluster), Placer("random", seed)
        placements = [placer.place(free, Demand()) for _ in range(40)]
        return [placement[0].node for placement in placements if placement]

    assert nodes(1) == nodes(1)
    assert nodes(1) != nodes(2)
    counts = np.bincount([node for seed in range(50) for node in nodes(seed)], minlength=10)
    assert counts.min() > 150  # 200 are expected per node; 50 fewer would be four standard deviations
    assert counts.max() < 250


def test_an_unknown_rule_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="unknown placement 'tetri'; did you mean 'tetris'"):
        Placer("tetri")
