"""The placement benchmarks: ceilings nobody exceeds, peers that do what they say, tables that follow from figures."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
from benchmarks.measure import REPOSITORY
from benchmarks.peers import pairwise
from benchmarks.peers.fgd_published import FgdAsPublished, typical_of
from benchmarks.placement import ceilings, figures, optimum, saturation, world
from benchmarks.placement.instances import Instance, fill
from benchmarks.placement.pictures import BandsPicture, Series
from benchmarks.placement.saturation import Ceiling, Column, Game, Held
from benchmarks.placement.spread import Spread, paired, spread
from hypothesis import given, settings, strategies as st

from refold.model import Demand, Job, Share
from refold.model.units import DAY
from refold.packing import RULES, Free, Placer
from refold.testing import make_cluster, make_job

needs_data = pytest.mark.skipif(bool(world.why_not()), reason="the published traces are not here (shared/data)")

SHARES = (250, 300, 500, 600, 700, 1000)


def pods_of(*gpu_milli: int) -> list[Job]:
    return [make_job(f"p{place}", share=milli / 1000) for place, milli in enumerate(gpu_milli)]


streams = st.lists(st.sampled_from(SHARES), min_size=1, max_size=25).map(lambda sizes: pods_of(*sizes))


# --- means --------------------------------------------------------------------------------------------------


def test_a_confidence_interval_is_student_s() -> None:
    found = spread([1.0, 2.0, 3.0])
    assert (found.mean, round(found.half, 4)) == (2.0, 2.4841)  # 4.3027 / √3
    assert spread([5.0]) == Spread(5.0, 0.0)
    assert Spread(0.9502, 0.0005).text() == "95.02 ± 0.05"


def test_pairs_that_differ_alike_leave_no_doubt() -> None:
    assert paired([2.0, 5.0, 9.0], [1.0, 4.0, 8.0]) == Spread(1.0, 0.0)


# --- ceilings -----------------------------------------------------------------------------------------------


def test_one_machine_does_not_see_fragments_and_bins_do() -> None:
    arrivals, cluster = pods_of(600, 600, 600, 600), make_cluster(2)
    assert ceilings.one_machine(arrivals, cluster) == pytest.approx(0.9)
    assert ceilings.most_in_bins(arrivals, 2) == pytest.approx(0.6)
    assert ceilings.held_at_first_refusal(arrivals, 2) == pytest.approx(0.6)


def test_whoever_does_not_fit_the_one_machine_is_passed_over() -> None:
    assert ceilings.one_machine(pods_of(700, 600, 300), make_cluster(1)) == pytest.approx(1.0)


def test_bins_may_turn_away_whom_they_like() -> None:
    arrivals = pods_of(700, 500, 500)
    assert ceilings.most_in_bins(arrivals, 1) == pytest.approx(1.0)
    assert ceilings.held_at_first_refusal(arrivals, 1) == pytest.approx(0.7)


def test_gpus_needed_are_those_of_the_best_patterns() -> None:
    assert ceilings.gpus_needed(pods_of(700, 300, 700, 300)) == pytest.approx(2.0)
    assert ceilings.gpus_needed(pods_of(600, 600, 600, 1000)) == pytest.approx(4.0)
    assert ceilings.gpus_needed([make_job("wide", gpus=8), *pods_of(500)]) == pytest.approx(8.5)


@settings(max_examples=40, deadline=None)
@given(streams, st.integers(1, 4), st.sampled_from(("first-fit", "best-fit", "worst-fit", "random")))
def test_no_rule_holds_more_than_the_bins(arrivals: list[Job], gpus: int, rule: str) -> None:
    cluster = make_cluster(gpus)
    free, placer = Free(cluster), Placer(rule)
    for job in arrivals:
        placer.place(free, job.demand)
    held = 1 - free.gpu_milli / (gpus * 1000)
    assert held <= ceilings.most_in_bins(arrivals, gpus) + 1e-6
    assert ceilings.held_at_first_refusal(arrivals, gpus) <= ceilings.most_in_bins(arrivals, gpus) + 1e-6


# --- streams ------------------------------------------------------------------------------------------------


def test_a_stream_is_all_pods_again_and_again_until_enough_is_asked_for() -> None:
    jobs = pods_of(250, 500, 1000)
    drawn = world.stream(jobs, 3500, seed=1)
    assert drawn == world.stream(jobs, 3500, seed=1)
    assert drawn != world.stream(jobs, 3500, seed=2)
    assert [sorted(job.id for job in part) for part in (drawn[:3], drawn[3:6])] == [["p0", "p1", "p2"]] * 2
    assert world.first_asking_for(drawn, 3500) == len(drawn)
    assert world.first_asking_for(pods_of(500, 500, 500), 1000) == 2


def test_machines_are_filled_and_emptied_to_a_level() -> None:
    free = Free(make_cluster(*[8] * 10))
    fill(free, [Demand(gpu_milli=500), Demand(gpus=2)], 0.8, np.random.default_rng(3))
    assert 0.8 - 2 / 80 <= 1 - free.gpu_milli / 80_000 <= 0.8


# --- the optimum --------------------------------------------------------------------------------------------


def best(free: Free, *demands: Demand) -> int:
    found, proved = optimum.optimum(Instance(free, demands))
    assert proved
    return found


def half_taken() -> Free:
    """Two GPUs of one node, half of each taken."""
    free = Free(make_cluster(2))
    free.take((Share(0, (0,), 500), Share(0, (1,), 500)))
    return free


def test_two_halves_are_no_whole() -> None:
    assert best(half_taken(), Demand(gpu_milli=800)) == 0
    assert best(half_taken(), Demand(gpu_milli=500), Demand(gpu_milli=300), Demand(gpu_milli=300)) == 800
    assert best(half_taken(), Demand(gpus=2, gpu_milli=500)) == 1000


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    free = Free(make_cluster(1, 1))
    assert best(free, Demand(instances=3)) == 0
    assert best(free, Demand(instances=2)) == 2000
    assert best(free, Demand(instances=3), Demand(gpu_milli=200)) == 200


def test_cpus_and_types_count() -> None:
    cluster = make_cluster(2, 2, types=("A", "B"), cpus=4)
    demand = Demand(cpu_milli=3000, gpu_types=("B",))
    assert best(Free(cluster), demand, demand) == 1000
    assert best(Free(cluster), demand, Demand(cpu_milli=3000)) == 2000


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(Demand, instances=st.integers(1, 3), gpus=st.integers(1, 2), gpu_milli=st.sampled_from(SHARES)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_no_rule_places_more_than_the_optimum(demands: list[Demand], nodes: list[int]) -> None:
    instance = Instance(Free(make_cluster(*nodes)), tuple(demands))
    found = best(instance.free, *demands)
    for rule in ("first-fit", "best-fit", "worst-fit"):
        placements = Placer(rule).place_all(instance.free.copy(), demands)
        placed = sum(
            demand.total_gpu_milli
            for demand, placement in zip(demands, placements, strict=True)
            if placement is not None
        )
        assert placed <= found <= instance.asked


# --- peers --------------------------------------------------------------------------------------------------


def test_the_pairwise_greedy_takes_the_largest_and_then_the_fullest_machine() -> None:
    free = Free(make_cluster(4, 2))
    found = pairwise.place_all(free, [Demand(), Demand(gpus=4), Demand(), Demand()])
    assert found == [(Share(1, (0,)),), (Share(0, (0, 1, 2, 3)),), (Share(1, (1,)),), None]


def test_looking_at_every_pair_finds_the_same_pair() -> None:
    free = Free(make_cluster(4, 2, 8))
    vectors = np.concatenate([free.vector(demand) for demand in (Demand(), Demand(gpus=2), Demand(gpus=8))])
    for placed in ([False] * 3, [False, False, True], [True] * 3):
        flags = np.array(placed)
        one = pairwise.best_pair(free.nodes, free.gpus, vectors, flags)
        assert one == pairwise.every_pair(free.nodes, free.gpus, vectors, flags)


def test_published_fgd_expects_the_most_frequent_pods_only() -> None:
    jobs = [*pods_of(*[500] * 95), *pods_of(*[300] * 5)]
    typical, weights = typical_of(make_cluster(2), jobs)
    assert (typical[:, 2].tolist(), weights.tolist()) == ([500], [1.0])


def test_published_fgd_leaves_whole_gpus_whole() -> None:
    cluster = make_cluster(2, 1)
    jobs = [*pods_of(*[500] * 9), *[make_job(f"w{place}") for place in range(9)]]
    free, placer = Free(cluster), FgdAsPublished(cluster, jobs)
    assert placer.place_all(free, [Demand(gpu_milli=500)] * 2) == [(Share(0, (0,), 500),)] * 2


def test_pygad_finds_the_only_machine_and_gives_back_half_a_gang() -> None:
    pytest.importorskip("pygad", reason="PyGAD is a peer of the benchmarks")
    from benchmarks.peers import pygad_placement

    free = Free(make_cluster(1, 1, 2))
    gain = pygad_placement.gains(free, [Demand(gpus=2), Demand(gpu_milli=500)])
    assert gain.tolist() == [[-1.0, 0.5], [-1.0, 0.5], [1.0, 0.25]]
    assert pygad_placement.Pairs(generations=10).search(gain, seed=1) == (2, 0, 1.0)
    before = free.gpu_milli
    found = pygad_placement.place_all(free, [Demand(instances=5), Demand(gpus=2, gpu_milli=100)], seed=1)
    assert found[0] is None
    assert before - free.gpu_milli == (0 if found[1] is None else 200)


def test_simpy_and_pygad_run_everything_to_its_end() -> None:
    pytest.importorskip("pygad", reason="PyGAD is a peer of the benchmarks")
    from benchmarks.peers import simpy_pygad

    jobs = [make_job(f"j{place}", at=float(place), work=10.0, gpus=2) for place in range(3)]
    found = simpy_pygad.run(jobs, make_cluster(2, 2))
    assert (found.started, found.finished) == (3, 3)


# --- tables -------------------------------------------------------------------------------------------------


def column(**at_130: Sequence[float]) -> Column:
    bound = Ceiling(machine_100=1.0, machine_130=1.0, bins_100=0.98, bins_130=0.98, first_refusal=0.97)
    held = {rule.replace("_", "-"): [Held(value, value) for value in values] for rule, values in at_130.items()}
    return Column(held, [bound, bound])


def test_the_way_to_a_ceiling_begins_at_the_best_greedy_rule_of_others() -> None:
    found = column(first_fit=(0.90, 0.90), fgd=(0.95, 0.95), worth=(0.96, 0.96), genetic=(0.96, 0.98))
    lines = saturation.table({"default": found}).splitlines()
    assert lines[2:] == [
        "| first-fit | 90.00 ± 0.00 |",
        "| fgd | 95.00 ± 0.00 |",
        "| worth | 96.00 ± 0.00 |",
        "| genetic | 97.00 ± 12.71 |",
        "| genetic − best greedy | 2.00 ± 12.71 |",
        "| best greedy | fgd |",
        "| one machine | 100.00 ± 0.00 |",
        "| every GPU a bin | 98.00 ± 0.00 |",
        "| the first refusal | 97.00 ± 0.00 |",
        "| genetic: part of the way to one machine | 40% |",
        "| genetic: part of the way to every GPU a bin | 67% |",
        "| genetic: part of the way to the first refusal | 100% |",
    ]


def test_the_verdict_on_the_optimum_follows_from_the_parts() -> None:
    shares = [optimum.Shares(1000, {"genetic": 990}), optimum.Shares(0, {"genetic": 0})]
    assert optimum.verdict({0.7: shares}).endswith("at every level: met.")
    worse = [optimum.Shares(1000, {"genetic": 980})]
    assert optimum.verdict({0.7: shares, 0.95: worse}).endswith("**missed** at 95%.")


def test_a_day_is_measured_by_time_by_tasks_and_by_waiting() -> None:
    day = DAY
    jobs = [
        make_job("before", at=0.0, work=day, gpus=2),
        make_job("a", at=day, work=day / 2, gpus=1),
        make_job("b", at=day, work=day, gpus=2),
    ]
    started, ended = np.array([day / 2, day, 1.5 * day]), np.array([1.5 * day, 1.5 * day, 2.5 * day])
    found = figures.measured(jobs, 4, day, started, ended)
    assert (found.tasks, found.unplaced, found.offered) == (2, 0, 2.5 / 4)
    assert found.over_day == pytest.approx((2 * 0.5 + 1 * 0.5 + 2 * 0.5) / 4)
    assert found.by_tasks == [0.75, 0.5]
    assert (found.running, found.waiting, found.completion) == (18.0, 6.0, 24.0)


def test_names_at_the_ends_of_bands_never_overlap() -> None:
    series = [Series(f"rule {place}", [90.0, 95.0 + place / 100], [0.5, 0.5]) for place in range(8)]
    drawn = BandsPicture("t", "a", "x", "%", (0.0, 1.0), ("0", "1"), series).svg()
    root = ElementTree.fromstring(drawn)
    heights = sorted(float(part.attrib["y"]) for part in root.iter() if part.attrib.get("class") == "end")
    assert float(np.diff(heights).min()) >= 16.9
    assert len([part for part in root.iter() if part.attrib.get("class") == "band"]) == 8


# --- what is kept -------------------------------------------------------------------------------------------


def cell(page_table: str, row: str, title: str) -> str:
    """One cell of a markdown table."""
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in page_table.splitlines()]
    return next(line for line in lines if line[0] == row)[lines[0].index(title)]


@needs_data
def test_the_kept_means_are_what_ten_seeds_give() -> None:
    page = saturation.PAGE.read_text(encoding="utf-8")
    kept = page.split("## One by one, at 130 %\n\n")[1].split("\n\n")[0]
    for rule in ("round-robin", "genetic"):
        held = [saturation.played(Game("default", rule, 1, seed)).at_130 for seed in range(saturation.SEEDS)]
        assert cell(kept, rule, "default") == spread(held).text()


@needs_data
def test_genetic_is_above_every_other_placement_that_is_kept() -> None:
    page = saturation.PAGE.read_text(encoding="utf-8")
    kept = page.split("## One by one, at 130 %\n\n")[1].split("\n\n")[0]
    for variant in world.VARIANTS:
        means = {rule: float(cell(kept, rule, variant).split(" ")[0]) for rule in saturation.ONE_BY_ONE if rule in kept}
        assert means["genetic"] >= max(value for rule, value in means.items() if rule != "genetic")


@needs_data
def test_every_rule_of_the_benchmarks_is_one_of_ours() -> None:
    assert set(world.RULES) <= set(RULES)


SUMMARY = {
    "first-fit": ("One by one, at 130 %", "first-fit"),
    "tetris": ("One by one, at 130 %", "tetris"),
    "FGD, as its authors score": ("One by one, at 130 %", "fgd, as published"),
    "genetic-paper": ("One by one, at 130 %", "genetic-paper"),
    "**worth, genetic**": ("One by one, at 130 %", "genetic"),
    "the most until the first refusal": ("One by one, at 130 %", "the first refusal"),
    "**genetic**": ("All at once, at 130 % (5 seeds)", "genetic"),
    "every GPU a bin, any choice of pods": ("All at once, at 130 % (5 seeds)", "every GPU a bin"),
}


def rows_of(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: cells for first, *cells in lines}


@pytest.mark.parametrize("page", ["docs/placement.md", "README.md"])
def test_summaries_say_what_the_kept_page_says(page: str) -> None:
    kept = saturation.PAGE.read_text(encoding="utf-8")
    shown = rows_of((REPOSITORY / page).read_text(encoding="utf-8"))
    for name, (title, row) in SUMMARY.items():
        section = kept.partition(f"## {title}\n")[2].partition("\n## ")[0]
        expected = [f"{float(cell.split(' ±')[0]):.1f}" for cell in rows_of(section)[row]]
        assert [cell.strip("*") for cell in shown[name]] == expected, name
