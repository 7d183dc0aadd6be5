"""Tentative changes are undone; free resources say what is short."""

import pytest
from hypothesis import given, settings, strategies as st
from plain_resources import PlainResources

from refold.model import WHOLE, Allocation, Cluster, Demand, Node, Placement, Share, Shortage, Start
from refold.placement import FreeResources, Placer, Trial, indices_from_mask, mask_from_indices
from refold.testing import make_cluster

CLUSTER = make_cluster(4, 4, 2, types=["A100", "A100", "V100"], cpus=16, memory_gib=64)


def contents(free: FreeResources) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """All arrays of the free resources."""
    return free.nodes.tolist(), [free.gpus.tolist()], free.bits.tolist()


def gpu(node: int, *gpus: int, milli: int = WHOLE, cpu: int = 0) -> Placement:
    return (Share(node, gpus, milli, cpu),)


class TestTrial:
    def test_undo_restores_what_was_taken_and_released(self) -> None:
        free = FreeResources(CLUSTER)
        running = gpu(0, 0, 1, cpu=3000)
        assert free.take(running) is None
        before = contents(free)
        trial = Trial(free)
        trial.release(running)
        assert trial.take(gpu(0, 0, 1, 2, 3))
        assert trial.place(Placer("first-fit"), Demand(1, 4)) == gpu(1, 0, 1, 2, 3)
        trial.take_available(gpu(2, 0, 1))
        tried = (trial.has_changes, free.whole_gpus)
        trial.undo()
        assert (tried, trial.has_changes) == ((True, 0), False)
        assert contents(free) == before

    def test_what_is_not_free_is_not_taken(self) -> None:
        free = FreeResources(CLUSTER)
        trial = Trial(free)
        assert trial.take(gpu(0, 0, milli=600))
        before = contents(free)
        assert not trial.take((Share(1, (0,)), Share(0, (0,), 600)))
        assert trial.place(Placer("best-fit"), Demand(3, 4)) is None
        assert contents(free) == before

    def test_only_the_free_part_is_taken(self) -> None:
        free = FreeResources(CLUSTER)
        free.take((Share(0, (0,), 700, 15_000),))
        trial = Trial(free)
        trial.take_available((Share(0, (0, 1), WHOLE, 4000),))
        assert free.gpu_milli_of(0) == (0, 0, WHOLE, WHOLE)
        assert free.take((Share(0, (), WHOLE, 1),)) == "node 'n0': too few free CPUs"
        trial.undo()
        assert free.gpu_milli_of(0) == (300, WHOLE, WHOLE, WHOLE)
        assert free.has((Share(0, (0,), 300, 1000),))

    def test_committed_placements_stay_and_all_others_are_undone(self) -> None:
        free = FreeResources(CLUSTER)
        trial, placer = Trial(free), Placer("first-fit")
        first, second = (trial.place(placer, Demand(1, 2)) for _ in range(2))
        assert first is not None
        assert second is not None
        assert trial.commit([Start("b", Allocation(second))]) == [second]
        assert free.gpu_milli_of(0) == (WHOLE, WHOLE, 0, 0)
        assert not trial.has_changes
        trial.undo()  # has nothing left to undo
        assert free.gpu_milli_of(0) == (WHOLE, WHOLE, 0, 0)

    def test_a_single_placement_is_committed(self) -> None:
        free = FreeResources(CLUSTER)
        trial = Trial(free)
        placement = trial.place(Placer("first-fit"), Demand(1, 4))
        assert placement is not None
        assert trial.commit([Start("a", Allocation(placement))]) == [placement]
        assert not trial.has_changes
        assert free.gpu_milli_of(0) == (0, 0, 0, 0)

    def test_placements_made_elsewhere_are_not_committed(self) -> None:
        free = FreeResources(CLUSTER)
        trial = Trial(free)
        assert trial.take(gpu(0, 0))
        assert trial.commit([Start("a", Allocation(gpu(0, 0)))]) == []  # equal, but not the one that was taken
        assert free.gpu_milli_of(0) == (WHOLE,) * 4

    def test_after_a_release_nothing_is_committed(self) -> None:
        free = FreeResources(CLUSTER)
        running = gpu(2, 0, 1)
        free.take(running)
        before = contents(free)
        trial = Trial(free)
        trial.release(running)
        placement = trial.place(Placer("first-fit"), Demand(1, 2, gpu_types=("V100",)))
        assert placement == running
        assert trial.commit([Start("a", Allocation(running))]) == []
        assert contents(free) == before

    @settings(max_examples=40)
    @given(st.data())
    def test_any_sequence_of_changes_can_be_undone(self, data: st.DataObject) -> None:
        free, plain = FreeResources(CLUSTER), PlainResources(CLUSTER)
        placer = Placer("best-fit")
        running: list[Placement] = []
        demands = st.builds(
            Demand, st.integers(1, 2), st.integers(0, 2), st.sampled_from([250, 600, 1000]), st.integers(0, 4000)
        )
        for demand in data.draw(st.lists(demands, max_size=5), label="running"):
            if (placement := placer.place(free, demand)) is not None:
                running.append(placement)
                plain.add(placement, -1)
        before, trial = contents(free), Trial(free)
        for demand in data.draw(st.lists(demands, min_size=1, max_size=5), label="tried"):
            release: bool = data.draw(st.booleans(), label="release")
            if running and release:
                trial.release(running.pop())
            trial.place(placer, demand)
        trial.undo()
        assert contents(free) == before
        assert [list(free.gpu_milli_of(node)) for node in range(3)] == plain.gpus


class TestFreeResources:
    @pytest.mark.parametrize(
        ("share", "problem"),
        [
            (Share(3), "node 3 does not exist"),
            (Share(-1), "node -1 does not exist"),
            (Share(2, (2,)), "node 'n2': the node has no such GPU"),
            (Share(0, (1,), 501), "node 'n0': a GPU has too little free capacity"),
            (Share(0, (0, 3)), "node 'n0': GPU 3 is down"),
            (Share(0, (), WHOLE, 16_001), "node 'n0': too few free CPUs"),
            (Share(0, (), WHOLE, 0, 64 * 1024 + 1), "node 'n0': too little free memory"),
            (Share(1, (0,)), "node 'n1': the node is down"),
        ],
    )
    def test_a_refusal_says_what_is_short(self, share: Share, problem: str) -> None:
        free = FreeResources(CLUSTER)
        free.take(gpu(0, 1, milli=500))
        free.set_gpu_up(0, 3, False)
        free.set_node_up(1, False)
        before = contents(free)
        assert free.take((Share(0, (2,)), share)) == problem
        assert not free.has((share,))
        assert contents(free) == before  # the first share was given back

    def test_everything_that_exists_can_be_taken(self) -> None:
        free = FreeResources(CLUSTER)
        whole = tuple(
            Share(index, tuple(range(node.gpus)), WHOLE, node.cpu_milli, node.memory_mib)
            for index, node in enumerate(CLUSTER.nodes)
        )
        assert free.has(whole)
        assert free.take(whole) is None
        assert (free.gpu_milli, free.whole_gpus) == (0, 0)

    def test_totals_exclude_nodes_and_gpus_that_are_down(self) -> None:
        free = FreeResources(CLUSTER)
        free.set_node_up(1, False)
        free.set_gpu_up(0, 0, False)
        free.set_gpu_up(0, 0, False)  # has no further effect
        free.take(gpu(0, 1, milli=400))
        assert (free.gpu_milli, free.whole_gpus) == (2600 + 2000, 4)
        free.set_node_up(1, True)
        free.set_gpu_up(0, 0, True)
        assert (free.gpu_milli, free.whole_gpus) == (9600, 9)

    def test_a_placement_is_up_if_all_its_nodes_and_gpus_are(self) -> None:
        free = FreeResources(CLUSTER)
        spread = (Share(0, (1,)), Share(1, (2,)))
        assert free.is_placement_up(spread)
        free.set_gpu_up(1, 3, False)
        assert free.is_placement_up(spread)
        free.set_gpu_up(1, 2, False)
        assert not free.is_placement_up(spread)
        free.set_gpu_up(1, 2, True)
        free.set_node_up(0, False)
        assert not free.is_placement_up(spread)

    def test_a_copy_is_independent(self) -> None:
        free = FreeResources(CLUSTER)
        free.set_node_up(2, False)
        copy, before = free.copy(), contents(free)
        copy.take(gpu(0, 0, 1, 2, 3))
        copy.set_node_up(2, True)
        assert contents(free) == before
        assert not free.is_up(2)
        assert copy.is_up(2)

    @pytest.mark.parametrize(
        ("demand", "shortage"),
        [
            (Demand(1, 4), Shortage(1, 1, 3, 1, too_small=1, too_few_gpus=1)),
            (Demand(3, 2), Shortage(3, 3, 3, 3)),
            (Demand(9, 2), Shortage(9, 4, 3, 3)),
            (Demand(1, 1, gpu_types=("V100",)), Shortage(1, 1, 3, 1, wrong_type=2)),
            (Demand(1, 3, gpu_types=("V100",)), Shortage(1, 0, 3, 0, wrong_type=2, too_small=1)),
            (Demand(9, 1, 300), Shortage(9, 9, 3, 3)),
            (Demand(2, 1, cpu_milli=12_001), Shortage(2, 2, 3, 2, too_few_cpus=1)),
            (Demand(1, 0, memory_mib=64 * 1024 + 1), Shortage(1, 0, 3, 0, too_little_memory=3)),
        ],
        ids=str,
    )
    def test_nodes_are_counted_by_what_they_lack(self, demand: Demand, shortage: Shortage) -> None:
        """Two of four GPUs and 4 of 16 CPUs of the first node are in use."""
        free = FreeResources(CLUSTER)
        free.take(gpu(0, 0, 1, cpu=4000))
        assert free.shortage(demand) == shortage
        assert free.fits_one_instance(demand) == (shortage.nodes_fit > 0)

    def test_unknown_cpus_and_memory_are_not_limited(self) -> None:
        large = Demand(2, 1, cpu_milli=10**9, memory_mib=10**9)
        for known in (True, False):
            cluster = Cluster((Node("n0", 2, "A100"),), cpus_known=known, memory_known=known)
            free = FreeResources(cluster)
            assert (free.fits_one_instance(large), free.fits_when_empty(large)) == (not known, not known)

    @given(st.sets(st.integers(0, 61)))
    def test_masks_and_indices_are_inverse(self, gpus: set[int]) -> None:
        indices = tuple(sorted(gpus))
        assert indices_from_mask(mask_from_indices(indices)) == indices
