"""Commands and configurations of launch targets, read by the frameworks' own parsers, where these are installed."""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from typing import Any, get_type_hints

import pytest
from engine_tests import needs_torch

from refold.model import LaunchEngine, parse_plan
from refold.planning.perf import Precision
from refold.planning.plans import LaunchRequest, LaunchSettings, Workers, launch_settings

pytestmark = needs_torch

BATCH, SEQUENCE = 64, 4096


def settings_of(engine: LaunchEngine, plan: str, nodes: int = 1, precision: Precision = "bf16") -> LaunchSettings:
    parsed = parse_plan(plan)
    workers = Workers(parsed.gpus // nodes, nodes, "1", "10.0.0.1", "4711")
    modules = ("layernorm", "moe_act")
    request = LaunchRequest(parsed, BATCH, workers, "run", SEQUENCE, precision=precision, recomputed=modules)
    return launch_settings(engine, request)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("engine", ["megatron", "deepspeed", "fsdp", "trainer"])
def test_torchrun_accepts_the_launcher(engine: LaunchEngine, nodes: int) -> None:
    from torch.distributed.run import get_args_parser

    launcher = settings_of(engine, "dp8", nodes).launcher
    assert launcher[0] == "torchrun"
    parsed = get_args_parser().parse_args([*launcher[1:], "train.py"])
    assert (int(parsed.nproc_per_node), parsed.training_script) == (8 // nodes, "train.py")
    expected = (True, "1:1") if nodes == 1 else (False, "2")
    assert (parsed.standalone, parsed.nnodes) == expected
    if nodes == 2:
        assert (parsed.node_rank, parsed.master_addr, parsed.master_port) == (1, "10.0.0.1", 4711)


def accelerate_arguments(settings: LaunchSettings) -> argparse.Namespace:
    launch = pytest.importorskip("accelerate.commands.launch", reason="Accelerate is not installed")
    assert settings.launcher[:2] == ("accelerate", "launch")
    found: argparse.Namespace = launch.launch_command_parser().parse_args([*settings.launcher[2:], "train.py"])
    return found


def test_accelerate_accepts_the_options_of_data_parallelism() -> None:
    found = accelerate_arguments(settings_of("accelerate", "dp4 accumulate 4"))
    assert (found.num_processes, found.num_machines, found.multi_gpu, found.use_fsdp) == (4, 1, True, False)
    assert (found.mixed_precision, found.gradient_accumulation_steps) == ("bf16", 4)


def test_accelerate_accepts_the_options_of_sharding_on_several_nodes() -> None:
    settings = settings_of("accelerate", "dp4 tp2 zero3 replicate 2 recompute full", nodes=2)
    found = accelerate_arguments(settings)
    assert (found.use_fsdp, int(found.fsdp_version), found.fsdp_reshard_after_forward) == (True, 2, "true")
    assert (found.fsdp_activation_checkpointing, found.mixed_precision) == ("true", "bf16")
    mesh = [getattr(found, f"parallelism_config_{name}_size") for name in ("dp_replicate", "dp_shard", "tp")]
    assert (found.use_parallelism_config in (True, "true"), list(map(int, mesh))) == (True, [2, 2, 2])
    assert (found.num_machines, found.machine_rank, found.main_process_ip) == (2, 1, "10.0.0.1")


class DataParallelRanks:
    """What DeepSpeed asks for the number of replicas."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def get_data_parallel_world_size(self) -> int:
        return self.replicas


@pytest.mark.parametrize("plan", ["dp4 accumulate 2", "dp4 zero3 offload", "dp2 tp2 zero1 accumulate 4"])
def test_deepspeed_accepts_the_configuration(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed = pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    settings, parsed = settings_of("deepspeed", plan), parse_plan(plan)
    ((path, text),) = settings.files.items()
    found = config.DeepSpeedConfig(json.loads(text), DataParallelRanks(parsed.data))
    assert found.train_micro_batch_size_per_gpu * parsed.data * found.gradient_accumulation_steps == BATCH
    assert found.gradient_accumulation_steps == parsed.accumulation
    assert found.zero_config.stage == parsed.zero
    assert bool(found.zero_config.offload_optimizer) == parsed.offload
    bf16: Any = getattr(found, "bfloat16_config", None)
    assert bf16.enabled if bf16 is not None else found.bfloat16_enabled
    assert found.optimizer_name == "adamw"
    assert found.tensor_parallel_config.autotp_size == (parsed.tensor if parsed.tensor > 1 else 0)
    arguments = deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args([*settings.arguments])
    assert (arguments.deepspeed, arguments.deepspeed_config) == (True, path)


def test_the_trainer_accepts_the_precision_and_the_optimizer() -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed: run `make test-train`")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    settings = settings_of("trainer", "dp4 accumulate 2")
    words = ["--output_dir", "out", "--use_cpu", "true", *settings.arguments]
    found = parser.parse_args(words)
    assert (found.bf16, str(found.optim).endswith("adamw_torch_fused")) == (True, True)
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (8, 2)


@pytest.mark.parametrize(
    ("precision", "formats"),
    [("bf16", (None, None)), ("fp8", ("hybrid", None)), ("mxfp8", ("e4m3", None)), ("nvfp4", (None, "e2m1"))],
)
def test_megatron_accepts_its_arguments(precision: Precision, formats: tuple[str | None, str | None]) -> None:
    reason = "Megatron-LM is not installed: its package on PyPI, megatron-core, has no arguments.py"
    arguments = pytest.importorskip("megatron.training.arguments", reason=reason)
    plan = "dp2 tp4 pp2 sp interleave 2 zero1 recompute selective accumulate 8"
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    found = parser.parse_args([*settings_of("megatron", plan, precision=precision).arguments])
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size) == (4, 2)
    assert (found.micro_batch_size, found.global_batch_size, found.seq_length) == (4, BATCH, SEQUENCE)
    assert (found.bf16, found.optimizer, found.use_distributed_optimizer) == (True, "adam", True)
    assert (found.recompute_granularity, found.recompute_modules) == ("selective", ["layernorm", "moe_act"])
    assert (found.fp8, found.fp4) == formats


@pytest.mark.filterwarnings("ignore")  # of megatron-core, about its own defaults
@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_megatron_core_knows_the_values_of_the_arguments(precision: Precision) -> None:
    """Megatron-LM makes these arguments from the fields of a class, whose types have the values that are allowed."""
    core = pytest.importorskip("megatron.core.transformer", reason="megatron-core is not installed")
    words = [*settings_of("megatron", "dp2 recompute selective", precision=precision).arguments]
    given = dict(pairwise(words))
    allowed = {name: str(kind) for name, kind in get_type_hints(core.TransformerConfig).items()}
    bits = "fp4" if precision == "nvfp4" else "fp8"
    assert repr(given[f"--{bits}-format"]) in allowed[bits]
    assert repr(given[f"--{bits}-recipe"]) in allowed[f"{bits}_recipe"]
    modules = words[words.index("--recompute-modules") + 1 :][:2]
    granularity = given["--recompute-granularity"]
    experts = {"num_moe_experts": 2, "moe_ffn_hidden_size": 64, "moe_grouped_gemm": True, "add_bias_linear": False}
    built = core.TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        recompute_granularity=granularity,
        recompute_modules=modules,
        **experts,
    )
    assert built.recompute_modules == ["layernorm", "moe_act"]
