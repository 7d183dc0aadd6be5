"""What is read from Slurm's programs: host lists, jobs in the formats of several versions, and nodes."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_output import FakePrograms, job_json, newer, node_line

from refold.engines.slurm.job_records import SlurmJob, read_queue
from refold.engines.slurm.nodes import SlurmNode, expand_hosts, expand_tasks, map_nodes, read_nodes
from refold.engines.slurm.programs import Programs, SlurmError
from refold.errors import BadValue
from refold.simulator.traces import GpuAmount


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[3,5]x", ["r1n3x", "r1n5x", "r2n3x", "r2n5x"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[", "n]", "n[1-", "n[a]", "n[3-1]", "n[1-999999999]", "a,,b", "n[[1]]", "n[1]["])
def test_host_lists_that_are_none(text: str) -> None:
    with pytest.raises(BadValue, match=r"hosts|numbers"):
        expand_hosts(text)


def test_array_tasks() -> None:
    assert expand_tasks("0-8:4,11%2") == [0, 4, 8, 11]
    with pytest.raises(BadValue):
        expand_tasks("1,...")


def test_all_formats_of_the_queue_say_the_same() -> None:
    jobs = [
        job_json(1, 16, state="RUNNING", node_count=2, nodes="n[1-2]", name="with | bar"),
        job_json(2, 2, time_limit=None, tres_per_node="gres:gpu:a100:2", features="ib&big"),
        job_json(3, 0),
        job_json(4, licenses="solver:2", dependency="afterok:3(unfulfilled)", shared=0, excluded_nodes="n[1-2]"),
    ]
    json_jobs = read_queue(FakePrograms(jobs, []).run).jobs
    assert json_jobs == read_queue(FakePrograms([newer(job) for job in jobs], []).run).jobs
    assert json_jobs == read_queue(FakePrograms(jobs, [], json_output=False).run).jobs
    assert json_jobs[0] == SlurmJob(
        "1", 1, "with | bar", "ada", "lab", ("gpu",), "RUNNING", "", 1_699_996_400.0, 1_699_998_200.0, 7200.0,
        "n[1-2]", 2, 2, 200, GpuAmount(16), (), 1, "", "normal", eligible=1_699_996_400.0, billing=1.0,
    )  # fmt: skip
    assert (json_jobs[1].gpus, json_jobs[1].time_limit) == (GpuAmount(2, ("a100",)), None)
    assert json_jobs[2].gpus == GpuAmount(0)
    last = json_jobs[3]
    found = (last.licenses, last.dependency, last.is_exclusive, last.excluded_nodes)
    assert found == ("solver:2", "afterok:3(unfulfilled)", True, "n[1-2]")
    assert not json_jobs[0].is_exclusive


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"tres_per_node": "gres:gpu:2", "node_count": 3}, GpuAmount(6)),
        ({"tres_per_node": "", "tres_per_job": "gres/gpu:h100:5"}, GpuAmount(5, ("h100",))),
        ({"tres_per_node": "", "tres_per_task": "gres:gpu:2", "tasks": 4}, GpuAmount(8)),
        ({"tres_per_node": "gres:shard:2"}, GpuAmount(0)),
    ],
)
def test_gpus_of_jobs_that_slurm_does_not_account_for(fields: dict[str, Any], gpus: GpuAmount) -> None:
    job = job_json(1, 1, **{"tres_req_str": "cpu=1,mem=1G", **fields})
    assert read_queue(FakePrograms([job], []).run).jobs[0].gpus == gpus


def test_ids_are_those_that_squeue_prints() -> None:
    jobs = [
        job_json(20, array_job_id=17, array_task_id=3),
        job_json(17, array_job_id=17, array_task_string="4-9%2"),
        job_json(31, het_job_id=30, het_job_offset=1),
    ]
    assert [job.id for job in read_queue(FakePrograms(jobs, []).run).jobs] == ["17_3", "17_[4-9%2]", "30+1"]


def test_a_job_that_cannot_be_read_is_left_out_with_a_note() -> None:
    found = read_queue(FakePrograms([job_json(1), job_json(2, tres_req_str="??")], []).run)
    assert [job.id for job in found.jobs] == ["1"]
    assert found.notes == ["job 2 is left out: tres-alloc is '??', expected a list such as cpu=8,gres/gpu=4,mem=64G"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"jobs": 3}', "null"])
def test_json_that_is_none_leads_to_columns(text: str) -> None:
    def run(program: str, *arguments: str) -> str:
        return text if "--json" in arguments else FakePrograms([job_json(5)], []).run(program, *arguments)

    assert [job.id for job in read_queue(run).jobs] == ["5"]


def test_nodes() -> None:
    fields = {"State": "MIXED+DRAIN", "GresUsed": "gpu:a100:3(IDX:0-1,5)", "CPUAlloc": "12", "AllocMem": "2800"}
    line = node_line("n0", "gpu:a100:8(S:0-1)", ActiveFeatures="ib,big", **fields, Reason="bad fan [root@1700000000]")
    (node,) = read_nodes(FakePrograms([], [line]).run)
    assert node == SlurmNode(
        "n0", {"a100": 8}, 64, 65536, frozenset({"MIXED", "DRAIN"}), "bad fan", ("gpu",), frozenset({"ib", "big"}),
        {"a100": 3}, 12, 2800,
    )  # fmt: skip
    assert (node.down_reason, node.drain_reason) == ("", "DRAIN: bad fan")


@pytest.mark.parametrize(
    ("state", "down", "drained"),
    [
        ("IDLE", "", ""),
        ("IDLE*", "NOT_RESPONDING", ""),
        ("DOWN+NOT_RESPONDING", "DOWN", ""),
        ("IDLE+MAINT", "", "MAINT"),
        ("IDLE+REBOOT_REQUESTED", "", "REBOOT_REQUESTED"),
        ("IDLE+CLOUD+POWERED_DOWN", "", ""),
    ],
)
def test_states_of_nodes(state: str, down: str, drained: str) -> None:
    (node,) = read_nodes(FakePrograms([], [node_line("n0", State=state)]).run)
    assert (node.down_reason, node.drain_reason) == (down, drained)


def test_a_node_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadValue, match="node n0: CPUTot is 'many', expected a number"):
        read_nodes(FakePrograms([], [node_line("n0", CPUTot="many", CPUEfctv="0")]).run)


def test_nodes_of_different_partitions_have_different_gpu_types() -> None:
    lines = [
        node_line("a0"),
        node_line("b0", Partitions="gpu,debug"),
        node_line("h0", "gpu:h100:4", ActiveFeatures="ib"),
        node_line("old", "gpu:2"),
        node_line("mig", "gpu:a30:2,gpu:1g.6gb:6"),
        node_line("cpu", "(null)"),
    ]
    found = map_nodes(read_nodes(FakePrograms([], lines).run), {"ib"})
    assert [(node.name, node.gpus, node.gpu_type) for node in found.cluster.nodes] == [
        ("a0", 8, "a100/gpu"),
        ("b0", 8, "a100/debug,gpu"),
        ("h0", 4, "h100"),
        ("old", 2, "GPU"),
        ("mig:a30", 2, "a30"),
        ("mig:1g.6gb", 6, "1g.6gb"),
    ]
    assert found.accepted_types(["debug"]) == ("a100/debug,gpu",)
    assert found.accepted_types(["gpu"], ["a100"]) == ("a100/debug,gpu", "a100/gpu")
    assert found.accepted_types(["gpu"], [], "ib") == ("h100",)
    assert found.accepted_types(["gpu"], [], "ib*2|x") == found.cluster.type_names, "not supported, so ignored"
    assert found.accepted_types(["gone"]) == ()


def test_gpus_of_several_types_on_a_node_share_its_cpus_and_memory() -> None:
    lines = [node_line("mig", "gpu:a30:2,gpu:1g.6gb:6", CPUEfctv="64", RealMemory="65536")]
    found = map_nodes(read_nodes(FakePrograms([], lines).run)).cluster.nodes
    assert [(node.name, node.cpu_milli, node.memory_mib) for node in found] == [
        ("mig:a30", 16_000, 16_384),
        ("mig:1g.6gb", 48_000, 49_152),
    ]


@pytest.mark.parametrize(("memory", "known"), [("1", False), ("2", True)])
def test_the_memory_of_nodes_is_not_known_if_one_has_the_default_of_slurm(memory: str, known: bool) -> None:
    lines = [node_line("n0"), node_line("n1", RealMemory=memory)]
    assert map_nodes(read_nodes(FakePrograms([], lines).run)).cluster.memory_known is known


def test_a_cluster_without_gpus_is_an_error() -> None:
    with pytest.raises(BadValue, match="no nodes with GPUs"):
        map_nodes(read_nodes(FakePrograms([], [node_line("cpu", "(null)")]).run))


def test_programs_say_what_is_wrong(tmp_path: object) -> None:
    with pytest.raises(SlurmError, match="no-such-program was not found"):
        Programs({"PATH": "/nowhere"}).run("no-such-program")
    with pytest.raises(SlurmError, match=r"^sh: broken$"):
        Programs().run("sh", "-c", "echo 'sh: error: first' >&2; echo 'sh: fatal: broken' >&2; exit 1")
    assert Programs({"PATH": "/bin:/usr/bin", "SQUEUE_FORMAT": "%i"}).run("sh", "-c", "echo $SQUEUE_FORMAT.") == ".\n"


@pytest.mark.parametrize(
    ("used", "gpus"),
    [
        ("gpu:a100:0(IDX:N/A),shard:a100:0(IDX:N/A)", {}),
        ("gpu:a100:1(IDX:2),shard:a100:2(IDX:0-1)", {"a100": 3}),
        ("gpu:a100:1(IDX:2),shard:a100:3(2/4,1/4,0/4,0/4)", {"a100": 3}),
        ("gpu:a100:4(IDX:0-3),shard:4(IDX:0-3)", {"a100": 4}),
        ("shard:a100:x", {}),
    ],
)
def test_gpus_of_which_parts_are_used_are_used(used: str, gpus: dict[str, int]) -> None:
    lines = [node_line("n0", "gpu:a100:4(S:0-1),shard:a100:16(S:0-1)", GresUsed=used)]
    (node,) = read_nodes(FakePrograms([], lines).run)
    assert (node.gpus, node.shards, node.used_gpus) == ({"a100": 4}, 16, gpus)
