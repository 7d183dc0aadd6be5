"""How training frameworks are told a plan, and which plans they are not offered."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from engine_tests import needs_torch

from refold.errors import BadValue
from refold.model import LAUNCH_ENGINES, Job, LaunchEngine, Plan, parse_plan
from refold.planning.catalogue import engines
from refold.planning.perf import Precision
from refold.planning.perf.columns import PlanColumns
from refold.planning.perf.training_setup import TrainingSetup
from refold.planning.plans import (
    LAUNCH_TARGETS,
    Knowledge,
    LaunchRequest,
    LaunchSettings,
    PlanLimits,
    Speeds,
    Workers,
    all_plans,
    best_plans,
    launch_problem,
    launch_settings,
    rejection_reasons,
)
from refold.testing import make_cluster, make_job

MakeSetup = Callable[..., TrainingSetup]


def settings_of(engine: LaunchEngine, plan: str, batch: int = 64, nodes: int = 1) -> LaunchSettings:
    parsed = parse_plan(plan)
    return launch_settings(engine, LaunchRequest(parsed, batch, Workers(parsed.gpus // nodes, nodes), "run"))


def arguments_of(settings: LaunchSettings) -> dict[str, str]:
    """Return the arguments by name; switches are 'on'."""
    words, found = [*settings.launcher, *settings.arguments], {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "on" if following.startswith("--") else following
    return found


@pytest.mark.parametrize(
    ("engine", "plan", "command"),
    [
        (
            "megatron",
            "dp2 tp4 pp2 sp interleave 2 zero1 recompute full accumulate 8",
            "torchrun --standalone --nproc-per-node 16 train.py --tensor-model-parallel-size 4 "
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --sequence-parallel "
            "--micro-batch-size 4 --global-batch-size 64 --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1 --use-distributed-optimizer --ckpt-format torch_dist "
            "--dist-ckpt-optim-fully-reshardable",
        ),
        (
            "megatron",
            "dp4 recompute selective",
            "torchrun --standalone --nproc-per-node 4 train.py --tensor-model-parallel-size 1 "
            "--pipeline-model-parallel-size 1 --micro-batch-size 16 --global-batch-size 64 "
            "--recompute-granularity selective --use-distributed-optimizer --ckpt-format torch_dist "
            "--dist-ckpt-optim-fully-reshardable",
        ),
        (
            "deepspeed",
            "dp4 zero2",
            "torchrun --standalone --nproc-per-node 4 train.py --deepspeed --deepspeed_config run/deepspeed.json",
        ),
        ("fsdp", "dp8 zero3", "torchrun --standalone --nproc-per-node 8 train.py"),
        (
            "accelerate",
            "dp4 accumulate 2",
            "accelerate launch --num_processes 4 --num_machines 1 --main_process_port 0 --multi_gpu "
            "--gradient_accumulation_steps 2 train.py",
        ),
        (
            "accelerate",
            "dp2 tp2 zero3 recompute full",
            "accelerate launch --num_processes 4 --num_machines 1 --main_process_port 0 --use_fsdp --fsdp_version 2 "
            "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_reshard_after_forward true "
            "--fsdp_offload_params false --fsdp_activation_checkpointing true --use_parallelism_config "
            "--parallelism_config_dp_shard_size 2 --parallelism_config_tp_size 2 --gradient_accumulation_steps 1 "
            "train.py",
        ),
        (
            "trainer",
            "dp4 recompute full accumulate 4",
            "torchrun --standalone --nproc-per-node 4 train.py --per_device_train_batch_size 4 "
            "--gradient_accumulation_steps 4 --gradient_checkpointing true",
        ),
        (
            "trainer",
            "dp4 zero2 recompute full",
            "torchrun --standalone --nproc-per-node 4 train.py --per_device_train_batch_size 16 "
            "--gradient_accumulation_steps 1 --fsdp --fsdp_config run/fsdp.json",
        ),
    ],
)
def test_the_command_line_of_each_framework(engine: LaunchEngine, plan: str, command: str) -> None:
    assert settings_of(engine, plan).command() == command


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "megatron",
            "--seq-length 4096 --max-position-embeddings 4096 --bf16 --grad-reduce-in-bf16 --optimizer adam",
        ),
        ("accelerate", "--mixed_precision bf16"),
        ("trainer", "--bf16 --optim adamw_torch_fused"),
    ],
)
def test_a_planned_training_has_its_precision_sequence_and_optimizer(engine: LaunchEngine, words: str) -> None:
    plan = parse_plan("dp4 accumulate 2")
    request = LaunchRequest(plan, 64, Workers(4), "run", sequence=4096)
    assert words in launch_settings(engine, request).command()
    assert words not in settings_of(engine, "dp4 accumulate 2").command()  # in a job, they are the script's


@pytest.mark.parametrize("engine", LAUNCH_ENGINES)
def test_gpus_without_bfloat16_train_in_float16(engine: LaunchEngine) -> None:
    request = LaunchRequest(parse_plan("dp4 accumulate 2"), 64, Workers(4), "run", sequence=4096, half="fp16")
    settings = launch_settings(engine, request)
    text = " ".join([settings.command(), *settings.files.values()])
    assert "bf16" not in text and "bfloat16" not in text
    assert "fp16" in text or "float16" in text


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("fp8", "--fp8-format hybrid --fp8-recipe tensorwise"),
        ("mxfp8", "--fp8-format e4m3 --fp8-recipe mxfp8"),
        ("nvfp4", "--fp4-format e2m1 --fp4-recipe nvfp4"),
    ],
)
def test_megatron_trains_in_the_planned_precision_and_repeats_the_planned_modules(
    precision: Precision, words: str
) -> None:
    plan, modules = parse_plan("dp4 recompute selective"), ("layernorm", "moe_act")
    request = LaunchRequest(plan, 64, Workers(4), sequence=4096, precision=precision, recomputed=modules)
    command = launch_settings("megatron", request).command()
    assert words in command
    assert "--recompute-granularity selective --recompute-modules layernorm moe_act " in command


def test_configurations_of_a_planned_training_have_its_precision() -> None:
    request = LaunchRequest(parse_plan("dp4 zero3"), 64, Workers(4), sequence=4096)
    (deepspeed,) = launch_settings("deepspeed", request).files.values()
    (fsdp,) = launch_settings("fsdp", request).files.values()
    assert json.loads(deepspeed).items() >= {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW"}}.items()
    assert json.loads(fsdp).items() >= {"sequence": 4096, "param_dtype": "bfloat16"}.items()


@pytest.mark.parametrize(
    ("engine", "plan", "config"),
    [
        (
            "deepspeed",
            "dp4 zero3 offload accumulate 2",
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 8,
                "gradient_accumulation_steps": 2,
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
            },
        ),
        (
            "deepspeed",
            "dp2 tp2 zero1",
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 32,
                "gradient_accumulation_steps": 1,
                "zero_optimization": {"stage": 1},
                "tensor_parallel": {"autotp_size": 2},
            },
        ),
        (
            "fsdp",
            "dp4 tp2 sp zero3 recompute full accumulate 2",
            {
                "mesh_shape": [1, 4, 2],
                "mesh_dim_names": ["dp_replicate", "dp_shard", "tp"],
                "reshard_after_forward": True,
                "cpu_offload": False,
                "sequence_parallel": True,
                "recompute": True,
                "accumulation": 2,
                "micro_batch": 8,
            },
        ),
        (
            "fsdp",
            "dp8 zero3 replicate 2",
            {
                "mesh_shape": [2, 4, 1],
                "mesh_dim_names": ["dp_replicate", "dp_shard", "tp"],
                "reshard_after_forward": True,
                "cpu_offload": False,
                "sequence_parallel": False,
                "recompute": False,
                "accumulation": 1,
                "micro_batch": 8,
            },
        ),
        (
            "trainer",
            "dp4 zero2 offload recompute full",
            {"version": 2, "reshard_after_forward": False, "cpu_offload": True, "activation_checkpointing": True},
        ),
    ],
)
def test_the_configuration_file_of_each_framework(engine: LaunchEngine, plan: str, config: dict[str, Any]) -> None:
    (text,) = settings_of(engine, plan).files.values()
    assert json.loads(text) == config


def test_offload_on_one_gpu_uses_zero_in_deepspeed_which_cannot_offload_without_it() -> None:
    (text,) = settings_of("deepspeed", "offload").files.values()
    assert json.loads(text)["zero_optimization"]["stage"] == 1


def test_what_a_framework_leaves_to_the_script_is_in_the_environment() -> None:
    assert settings_of("deepspeed", "dp2 recompute full").environment == {
        "REFOLD_DEEPSPEED_CONFIG": "run/deepspeed.json",
        "REFOLD_RECOMPUTE": "full",
    }
    assert settings_of("accelerate", "dp2 recompute full accumulate 4").environment == {
        "REFOLD_MICRO_BATCH": "8",
        "REFOLD_RECOMPUTE": "full",
    }
    assert settings_of("accelerate", "dp2 zero3 recompute full").environment == {"REFOLD_MICRO_BATCH": "32"}
    assert settings_of("megatron", "dp2 tp2 recompute full").environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_the_variables_of_a_run_can_be_expanded_by_a_shell() -> None:
    settings = settings_of("deepspeed", "dp2")
    assert settings.variables() == {
        "REFOLD_LAUNCHER": "torchrun --standalone --nproc-per-node 2",
        "REFOLD_LAUNCH_ARGS": "--deepspeed --deepspeed_config run/deepspeed.json",
        "REFOLD_DEEPSPEED_CONFIG": "run/deepspeed.json",
    }


def test_several_nodes_meet_at_the_address_of_the_first() -> None:
    assert (
        settings_of("fsdp", "dp8 zero3", nodes=2)
        .command()
        .startswith(
            "torchrun --nnodes 2 --nproc-per-node 4 --node-rank $NODE_RANK --master-addr $MASTER_ADDR "
            "--master-port $MASTER_PORT train.py"
        )
    )
    found = arguments_of(settings_of("accelerate", "dp8", nodes=2))
    assert [
        found[f"--{name}"] for name in ("num_machines", "machine_rank", "main_process_ip", "main_process_port")
    ] == [
        "2",
        "$NODE_RANK",
        "$MASTER_ADDR",
        "$MASTER_PORT",
    ]
    workers = Workers(4, 2, "1", "10.0.0.1", "4711")
    settings = launch_settings("fsdp", LaunchRequest(Plan(data=8, zero=3), 64, workers))
    assert shlex.split(settings.variables()["REFOLD_LAUNCHER"])[-6:] == [
        "--node-rank",
        "1",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "4711",
    ]


@pytest.mark.parametrize("engine", LAUNCH_ENGINES)
def test_an_unknown_batch_is_left_to_the_script(engine: LaunchEngine) -> None:
    settings = settings_of(engine, "dp2 accumulate 2", batch=0)
    text = " ".join([settings.command(), *settings.files.values(), *settings.environment])
    assert not [name for name in ("micro", "train_batch_size", "global-batch", "per_device") if name in text.lower()]


@pytest.mark.parametrize(
    ("engine", "plan", "problem"),
    [
        ("megatron", "dp2 zero3", "ZeRO-2 and ZeRO-3 need Megatron-FSDP, whose checkpoints other plans cannot load"),
        ("megatron", "offload", "with offload, its checkpoints cannot be loaded under other plans"),
        ("megatron", "dp2 tp2 pp2 zero1 sp accumulate 2 interleave 2", ""),
        ("deepspeed", "pp2", "it has no setting for pipeline stages"),
        ("deepspeed", "dp2 tp2 zero3", "tensor parallelism needs at most ZeRO-2"),
        ("deepspeed", "tp2 sp", "it has no setting for sequence parallelism"),
        ("deepspeed", "dp2 tp2 zero2", ""),
        ("fsdp", "dp2 zero1", "FSDP2 shards gradients too: ZeRO-2 or ZeRO-3, or none"),
        ("fsdp", "dp2 recompute selective", "it recomputes whole layers or nothing"),
        ("fsdp", "dp2 tp2", ""),
        ("accelerate", "dp2 tp2", "tensor parallelism with replicas needs ZeRO-2 or ZeRO-3"),
        ("accelerate", "tp2", ""),
        ("accelerate", "offload", "FSDP2 offloads only what it shards: ZeRO-2 or ZeRO-3"),
        ("deepspeed", "dp4 zero3 replicate 2", "it has no setting for hybrid sharding"),
        ("trainer", "tp2", "it has no setting for tensor parallelism"),
        ("trainer", "dp2 zero3 offload", ""),
    ],
)
def test_what_a_framework_cannot_run(engine: LaunchEngine, plan: str, problem: str) -> None:
    assert launch_problem(engine, parse_plan(plan)) == problem


def plan_of(engine: LaunchEngine, settings: LaunchSettings, gpus: int, batch: int) -> Plan:
    """Return the plan that a framework would run with these settings."""
    found = arguments_of(settings)
    config = json.loads(next(iter(settings.files.values()), "{}"))
    recompute = settings.environment.get("REFOLD_RECOMPUTE", "none")
    match engine:
        case "megatron":
            tensor, pipeline = int(found["--tensor-model-parallel-size"]), int(found["--pipeline-model-parallel-size"])
            data = gpus // (tensor * pipeline)
            return Plan(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                zero=int("--use-distributed-optimizer" in found and data > 1),
                recompute=found.get("--recompute-granularity", "none"),  # type: ignore[arg-type]
                accumulation=batch // (data * int(found["--micro-batch-size"])),
                interleave=int(found.get("--num-virtual-stages-per-pipeline-rank", 1)),
                sequence_parallel="--sequence-parallel" in found,
            )
        case "deepspeed":
            zero, tensor = config["zero_optimization"], config.get("tensor_parallel", {}).get("autotp_size", 1)
            data, accumulation = gpus // tensor, config["gradient_accumulation_steps"]
            assert config["train_batch_size"] == config["train_micro_batch_size_per_gpu"] * accumulation * data == batch
            offload = "offload_optimizer" in zero
            stage = 0 if offload and data == 1 else zero["stage"]
            return Plan(data, tensor, 1, stage, offload, recompute, accumulation)  # type: ignore[arg-type]
        case "fsdp":
            replicas, shards, tensor = config["mesh_shape"]
            stage = 3 if config["reshard_after_forward"] else 2 if shards > 1 else 0
            mode: Any = "full" if config["recompute"] else "none"
            assert config["micro_batch"] * config["accumulation"] * replicas * shards == batch
            return Plan(
                replicas * shards,
                tensor,
                1,
                stage,
                config["cpu_offload"],
                mode,
                config["accumulation"],
                sequence_parallel=config["sequence_parallel"],
                replicate=replicas if shards > 1 else 1,
            )
        case "accelerate":
            tensor = int(found.get("--parallelism_config_tp_size", 1))
            accumulation = found["--gradient_accumulation_steps"]
            sharded = "--use_fsdp" in found
            stage = 0 if not sharded else 3 if found["--fsdp_reshard_after_forward"] == "true" else 2
            mode = "full" if found.get("--fsdp_activation_checkpointing") == "true" else recompute
            data = int(found["--num_processes"]) // tensor
            assert int(settings.environment["REFOLD_MICRO_BATCH"]) * int(accumulation) * data == batch
            replicate = int(found.get("--parallelism_config_dp_replicate_size", 1))
            if "--use_parallelism_config" in found:
                assert int(found["--parallelism_config_dp_shard_size"]) * replicate == data
            offload = found.get("--fsdp_offload_params") == "true"
            return Plan(data, tensor, 1, stage, offload, mode, int(accumulation), replicate=replicate)
        case "trainer":
            accumulation = found["--gradient_accumulation_steps"]
            stage = 0 if "--fsdp" not in found else 3 if config["reshard_after_forward"] else 2
            full = config.get("activation_checkpointing", "--gradient_checkpointing" in found)
            assert int(found["--per_device_train_batch_size"]) * int(accumulation) * gpus == batch
            mode = "full" if full else "none"
            return Plan(gpus, 1, 1, stage, config.get("cpu_offload", False), mode, int(accumulation))


@pytest.mark.parametrize("engine", LAUNCH_ENGINES)
@pytest.mark.parametrize("gpus", [1, 8, 12])
def test_every_offered_plan_can_be_read_back_from_its_settings(
    engine: LaunchEngine, gpus: int, make_setup: MakeSetup
) -> None:
    setup = make_setup("llama-2-7b", on=(gpus,), batch=96, sequence=2048)
    offered = rows_of(all_plans(setup, PlanLimits(engine=engine, max_replicate=8)))
    assert offered
    can_replicate = gpus > 1 and engine in ("fsdp", "accelerate")
    assert any(plan.replicate > 1 for plan in offered) == can_replicate
    for plan in offered:
        read = plan_of(engine, launch_settings(engine, LaunchRequest(plan, 96, Workers(gpus))), gpus, 96)
        if engine == "megatron":  # the optimizer state is always sharded
            assert read == msgspec.structs.replace(plan, zero=int(plan.data > 1))
        else:
            assert read == plan


@pytest.mark.parametrize("engine", LAUNCH_ENGINES)
def test_the_offered_plans_are_all_plans_that_break_no_rule(engine: LaunchEngine, make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(4,), batch=8, sequence=2048, gpu_gib=1e6)
    limits = PlanLimits(engine=engine)
    valid = {plan for plan in rows_of(all_plans(setup)) if not rejection_reasons(setup, plan, limits)}
    assert set(rows_of(all_plans(setup, limits))) == valid
    assert 0 < len(valid) < len(all_plans(setup))


def rows_of(plans: PlanColumns) -> list[Plan]:
    return [plans.plan(row) for row in range(len(plans))]


def test_a_search_says_why_plans_are_not_offered(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup("llama-2-7b"), PlanLimits(engine="trainer"))
    assert ("engine", "trainer cannot run it: it has no setting for pipeline stages") in [
        (one.name, one.explanation) for one in search.rejected
    ]


def test_jobs_of_a_framework_get_only_plans_that_it_can_run() -> None:
    speeds = Speeds(make_cluster(8, 8, types="A100-80GB"))

    def best(engine: LaunchEngine | None) -> Plan:
        job = make_job(workload="llama-2-70b", batch=64, reshapable=True, engine=engine)
        speed = speeds.fastest(job, "A100-80GB", (8,) * 8, 0.0)
        assert speed
        return speed.plan

    assert best(None).tensor > 1
    assert best("trainer") == Plan(data=64, zero=3, recompute="full")
    assert launch_problem("trainer", best(None))


def test_a_menu_of_plans_is_limited_to_those_that_the_framework_can_run() -> None:
    menu: dict[str, tuple[Plan, ...]] = {"llama-2-7b": (Plan(tensor=8), Plan(data=8, zero=3, recompute="full"))}
    speeds = Speeds(make_cluster(8, 8, types="A100-80GB"), Knowledge(menu=menu))
    job = make_job(workload="llama-2-7b", batch=64, reshapable=True, engine="trainer")
    speed = speeds.fastest(job, "A100-80GB", (8,), 0.0)
    assert speed and speed.plan == Plan(data=8, zero=3, recompute="full")


def test_every_framework_has_an_engine_of_the_catalogue() -> None:
    assert tuple(LAUNCH_TARGETS) == LAUNCH_ENGINES
    assert {target.estimated_as for target in LAUNCH_TARGETS.values()} <= {engine.name for engine in engines()}


def test_a_journal_without_engines_is_read_as_before() -> None:
    assert b"engine" not in msgspec.json.encode(make_job())
    with pytest.raises((BadValue, msgspec.ValidationError)):
        msgspec.json.decode(b'{"id": "a", "engine": "pytorch-lightning"}', type=Job)


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("plan", ["dp2 recompute full accumulate 2", "dp2 zero3"])
def test_transformers_accepts_the_arguments_of_its_trainer(plan: str) -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed: run `make test-train`")
    parsed = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args(
        ["--output_dir", "out", *settings_of("trainer", plan).arguments]
    )
    expected = parse_plan(plan)
    assert parsed.gradient_accumulation_steps == expected.accumulation
    assert parsed.per_device_train_batch_size == 64 // (2 * expected.accumulation)
    assert (bool(parsed.fsdp), parsed.fsdp_config) == ((True, "run/fsdp.json") if expected.zero else (False, None))
    assert bool(parsed.gradient_checkpointing) == (expected.recompute == "full")
