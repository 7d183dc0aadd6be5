"""Partitions, reservations and refusals: which nodes can be used, without Slurm."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace
from slurm_output import NOW, FakePrograms, node_line

from refold.engines.slurm.engine import check_user
from refold.engines.slurm.nodes import SlurmNode, map_nodes, read_nodes
from refold.engines.slurm.refusals import AVOID_SECONDS, Refusals
from refold.engines.slurm.requests import SlurmSettings
from refold.engines.slurm.site import Partition, Site, SlurmReservation, allowed_nodes, drain_reason, read_site
from refold.errors import BadInput
from refold.model import Job
from refold.server.config import Config

HOUR = 3600.0
PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=2-00:00:00 \
Nodes=n[0-3] State=UP TotalCPUs=256
PartitionName=old MaxTime=UNLIMITED Nodes=n3 State=DRAIN TotalCPUs=64
"""
RESERVATIONS = """\
ReservationName=maint StartTime=1700003600 EndTime=1700010800 Duration=02:00:00 Nodes=n[0-1] NodeCnt=2 Features=(null) \
Flags=MAINT,SPEC_NODES Users=root State=INACTIVE
ReservationName=licences StartTime=1700000000 EndTime=1700010800 Nodes=(null) Licenses=matlab:2 State=ACTIVE
"""
MAINTENANCE = SlurmReservation("maint", frozenset({"n0"}), NOW + HOUR, NOW + 3 * HOUR)
EVERY = SlurmSettings()


def node(**fields: str) -> SlurmNode:
    return read_nodes(FakePrograms([], [node_line("n0", **fields)]).run)[0]


def test_partitions_and_reservations_are_read() -> None:
    site = read_site(lambda *words: PARTITIONS if "partitions" in words else RESERVATIONS)
    assert site == Site(
        {"gpu": Partition("gpu", True, "UP", 48 * HOUR, HOUR), "old": Partition("old", False, "DRAIN", inf)},
        (
            SlurmReservation("maint", frozenset({"n0", "n1"}), NOW + HOUR, NOW + 3 * HOUR),
            SlurmReservation("licences", frozenset(), NOW, NOW + 3 * HOUR),
        ),
    )
    assert (site.time_limits, site.short_by_default) == ({"gpu": 48 * HOUR}, frozenset({"gpu"}))
    assert read_site(lambda *_: "No reservations in the system\n") == Site()
    odd = read_site(lambda *_: "PartitionName=gpu MaxTime=soon DefaultTime=NONE State=UP\n")
    assert odd == Site({"gpu": Partition("gpu", True, "UP", inf)})


@pytest.mark.parametrize(("needed", "is_usable"), [(HOUR - 60, True), (HOUR, True), (HOUR + 1, False), (inf, False)])
def test_a_node_is_closed_to_jobs_that_would_not_end_before_its_reservation(needed: float, is_usable: bool) -> None:
    found = drain_reason(node(), EVERY, Site({}, [MAINTENANCE]), NOW, needed)
    assert found.startswith("" if is_usable else "reserved by maint from ")
    assert bool(found) is not is_usable


def test_the_limit_of_a_partition_bounds_how_long_a_job_may_take() -> None:
    """A job without a time limit gets that of the partition, and can start if it ends before the reservation then."""
    site = Site({"gpu": Partition("gpu", True, "UP", HOUR)}, [MAINTENANCE])
    assert drain_reason(node(), EVERY, site, NOW, inf) == ""
    assert drain_reason(node(), EVERY, site, NOW + 1, inf).startswith("reserved by maint from ")


def test_jobs_are_limited_to_nodes_where_they_can_end_in_time() -> None:
    lines = [node_line("n0"), node_line("n1"), node_line("n2", Partitions="short")]
    cluster = map_nodes(read_nodes(FakePrograms([], lines).run))
    site = Site({"short": Partition("short", True, "UP", HOUR)}, [MAINTENANCE])

    def allowed(time_limit: float | None, now: float = NOW) -> list[int] | None:
        found = allowed_nodes(cluster, EVERY, site, now, Job("a", time_limit=time_limit))
        return None if found is None else [*found]

    assert (allowed(600.0), allowed(HOUR), allowed(None)) == (None, [1, 2], [1, 2])
    assert (allowed(2 * HOUR), allowed(600.0, NOW + HOUR / 2 + 600)) == ([1], [1, 2])
    assert allowed(None, NOW + HOUR) is None  # the reserved node is closed then, to all


def test_a_reservation_holds_until_its_end_and_for_its_nodes() -> None:
    site = Site({}, [MAINTENANCE])
    during = drain_reason(node(State="IDLE+MAINT"), EVERY, site, NOW + 2 * HOUR, 60.0)
    assert during.startswith("reserved by maint until ")
    assert drain_reason(node(), EVERY, site, NOW + 3 * HOUR, inf) == ""
    assert drain_reason(node(), EVERY, Site({}, [MAINTENANCE._replace(nodes=frozenset({"n1"}))]), NOW, inf) == ""


def test_the_reservation_of_the_options_is_used_and_nothing_else() -> None:
    settings = SlurmSettings(options=("--reservation=ours",))
    ours = SlurmReservation("ours", frozenset({"n0"}), NOW - HOUR, NOW + HOUR)
    assert drain_reason(node(State="IDLE+RESERVED"), settings, Site({}, [ours]), NOW, inf) == ""
    assert drain_reason(node(State="IDLE+DRAIN+RESERVED"), settings, Site({}, [ours]), NOW, inf) == "DRAIN"
    assert drain_reason(node(), settings, Site(), NOW, inf) == "not in reservation ours"
    early = drain_reason(node(), settings, Site({}, [ours._replace(start=NOW + 60)]), NOW, 60.0)
    assert early.startswith("reservation ours begins on ")


def test_options_and_partitions_that_exclude_a_node() -> None:
    def reason(*options: str, partition: str = "", **fields: str) -> str:
        down = Partition("gpu", False, "DOWN")
        site = Site({"gpu": down} if partition else {})
        return drain_reason(node(**fields), SlurmSettings(partition, options=options), site, NOW, inf)

    assert reason("--constraint=ib") == "it does not have the features ib"
    assert reason("--constraint=ib", ActiveFeatures="ib,big") == ""
    assert reason("--exclude=n[0-3]") == "excluded by the options in refold.yaml"
    assert reason("--exclude=n7") == ""
    assert reason(partition="gpu") == "partition gpu is DOWN"


def test_a_node_that_has_refused_a_run_is_left_alone_for_a_while() -> None:
    refusals = Refusals()
    (event,) = refusals.refuse({3: "n0"}, "run 1 of a: ReqNodeNotAvail", NOW)
    assert (event.node, event.why) == (3, f"slurm: {refusals.node_reason('n0', NOW)}")
    assert refusals.node_reason("n0", NOW + 1).startswith("run 1 of a: ReqNodeNotAvail; next try at ")
    assert (refusals.node_reason("n0", NOW + AVOID_SECONDS), refusals.node_reason("n1", NOW)) == ("", "")


def test_what_is_said_of_a_run_that_has_not_begun() -> None:
    refusals = Refusals()
    assert (refusals.text("a"), refusals.retry_delay("a")) == ("", 0.0)
    refusals.note_waiting("a", "None")
    assert refusals.text("a") == "submitted to Slurm"
    refusals.note_waiting("a", "QOSMaxGRESPerUser")
    assert refusals.text("a") == "submitted to Slurm (QOSMaxGRESPerUser)"
    for expected in (60.0, 120.0, 300.0, 300.0):
        refusals.note_limit("a", "QOSMaxGRESPerUser")
        assert refusals.retry_delay("a") == expected
    assert not refusals.is_too_long("a")
    refusals.note_limit("a", "AssocMaxWallDurationPerJobLimit")
    assert refusals.is_too_long("a")
    refusals.note_limit("a", "QOSMaxGRESPerUser")
    refusals.note_waiting("a", None)
    assert refusals.text("a") == "a limit of Slurm: QOSMaxGRESPerUser"
    refusals.note_started("a")
    assert (refusals.text("a"), refusals.retry_delay("a")) == ("", 0.0)


def test_root_needs_an_account_for_the_daemon() -> None:
    config = Config()
    with pytest.raises(BadInput, match=r"`serve: {user: refold}` and `users: {allow: all}`"):
        check_user(0, config)
    check_user(1000, config)
    check_user(0, replace(config, serve=replace(config.serve, user="refold")))
    check_user(0, replace(config, slurm=replace(config.slurm, as_root=True)))
