"""How training frameworks are told a plan: launcher, arguments, variables and files, and the plans they cannot run.

For scripts that do not use `refold.train`. docs/launch.md has the same table for users, with the versions.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.model import LaunchEngine, Plan
from refold.planning.perf import SELECTIVE, PlanColumns, Precision, plans_to_columns

TORCHRUN = ("torchrun",)


class Workers(msgspec.Struct, frozen=True):
    """The processes of a run: one per GPU on each of `nodes` nodes.

    `rank`, `address` and `port` are those of the rendezvous of several nodes; by default, shell variables.
    """

    per_node: int
    nodes: int = 1
    rank: str = "$NODE_RANK"
    address: str = "$MASTER_ADDR"
    port: str = "$MASTER_PORT"


class LaunchRequest(msgspec.Struct, frozen=True):
    """A plan to be launched: the global batch in samples (0: unknown), the processes, and a folder for files.

    `sequence`: tokens per sample; with it, precision and optimizer are set as planned (`half`, AdamW). 0: they are left
    to the script. `precision` of products and the modules that selective recomputation repeats are for Megatron-LM.
    """

    plan: Plan
    batch: int
    workers: Workers
    folder: str = ""
    sequence: int = 0
    half: Literal["bf16", "fp16"] = "bf16"
    precision: Precision = "bf16"
    recomputed: tuple[str, ...] = ()

    @property
    def micro_batch(self) -> int:
        """Samples per micro-batch; 0: unknown."""
        return self.batch // (self.plan.data * self.plan.accumulation)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name


class LaunchSettings(msgspec.Struct, frozen=True):
    """What starts a script with a plan: `launcher script arguments`, environment variables, and files by path."""

    launcher: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    files: dict[str, str] = {}

    def command(self, script: str = "train.py") -> str:
        return " ".join(map(_quote, (*self.launcher, script, *self.arguments)))

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a run, with launcher and arguments for an unquoted expansion."""
        words = {"REFOLD_LAUNCHER": self.launcher, "REFOLD_LAUNCH_ARGS": self.arguments}
        return {**{name: shlex.join(value) for name, value in words.items()}, **self.environment}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Plans that a framework cannot run, and the reason."""

    test: Callable[[PlanColumns], Any]
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """A training framework that can be told a plan.

    `estimated_as`: the engine of the catalogue whose speed and memory it has.
    """

    estimated_as: str
    settings: Callable[[LaunchRequest], LaunchSettings]
    unsupported: tuple[Unsupported, ...] = ()


def launch_settings(engine: LaunchEngine, request: LaunchRequest) -> LaunchSettings:
    """Return what starts a script of this framework with a plan that it can run.

    `REFOLD_…` variables have what the framework leaves to the script.
    """
    return LAUNCH_TARGETS[engine].settings(request)


def cannot_launch(engine: LaunchEngine, plans: PlanColumns) -> NDArray[np.bool_]:
    broken = [limit.test(plans) for limit in LAUNCH_TARGETS[engine].unsupported]
    return np.asarray(np.logical_or.reduce([np.zeros(len(plans), bool), *broken]))


def launch_problem(engine: LaunchEngine, plan: Plan) -> str:
    """Return why a framework cannot run a plan; '' if it can."""
    plans = plans_to_columns([plan])
    return next((limit.reason for limit in LAUNCH_TARGETS[engine].unsupported if limit.test(plans)[0]), "")


def _quote(word: str) -> str:
    return word if word.startswith("$") else shlex.quote(word)


def _torchrun(workers: Workers) -> tuple[str, ...]:
    if workers.nodes == 1:
        return (*TORCHRUN, "--standalone", *_words({"--nproc-per-node": workers.per_node}))
    rendezvous = {"--node-rank": workers.rank, "--master-addr": workers.address, "--master-port": workers.port}
    return (*TORCHRUN, *_words({"--nnodes": workers.nodes, "--nproc-per-node": workers.per_node, **rendezvous}))


def _words(options: dict[str, Any]) -> tuple[str, ...]:
    """Return options as words: True is a switch, False and None are left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is not False and value is not None:
            words += [name, *(() if value is True else map(str, value) if isinstance(value, tuple) else (str(value),))]
    return tuple(words)


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


# Megatron-LM.


LOW_PRECISION_ARGUMENTS: dict[Precision, dict[str, str]] = {
    "bf16": {},
    "fp8": {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "mxfp8": {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "nvfp4": {"--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}
"""Arguments of Megatron-LM for products in low precision: scaling per tensor, or by blocks."""


def _megatron(request: LaunchRequest) -> LaunchSettings:
    """Return arguments of Megatron-LM (megatron/training/arguments.py).

    The optimizer state is sharded in any case, since a checkpoint without sharding could not be loaded with it.
    """
    plan = request.plan
    recompute: dict[str, dict[str, Any]] = {
        "none": {},
        "selective": {"--recompute-granularity": "selective", "--recompute-modules": request.recomputed or None},
        "full": {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1},
    }
    megatron_training = {
        "--seq-length": request.sequence,
        "--max-position-embeddings": request.sequence,
        f"--{request.half}": True,
        "--grad-reduce-in-bf16": request.half == "bf16",  # gradients in half precision, as megatron-core is estimated
        "--optimizer": "adam",
        **LOW_PRECISION_ARGUMENTS[request.precision],
    }
    options: dict[str, Any] = {
        "--tensor-model-parallel-size": plan.tensor,
        "--pipeline-model-parallel-size": plan.pipeline,
        "--context-parallel-size": plan.context if plan.context > 1 else None,
        "--expert-model-parallel-size": plan.expert if plan.expert > 1 else None,
        "--num-virtual-stages-per-pipeline-rank": plan.interleave if plan.interleave > 1 else None,
        "--sequence-parallel": plan.sequence_parallel,
        "--micro-batch-size": request.micro_batch or None,
        "--global-batch-size": request.batch or None,
        **recompute[plan.recompute],
        **(megatron_training if request.sequence else {}),
        "--use-distributed-optimizer": True,
        "--ckpt-format": "torch_dist",
        "--dist-ckpt-optim-fully-reshardable": True,
    }
    # Without this, communication of tensor parallelism does not overlap as Megatron-LM expects.
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if plan.tensor > 1 else {}
    return LaunchSettings(_torchrun(request.workers), _words(options), environment)


# DeepSpeed.


def _deepspeed(request: LaunchRequest) -> LaunchSettings:
    """Return a DeepSpeed configuration (deepspeed.ai/docs/config-json). Offloading needs ZeRO, even on one GPU."""
    plan, path = request.plan, request.path("deepspeed.json")
    zero: dict[str, Any] = {"stage": max(plan.zero, 1) if plan.offload else plan.zero}
    if plan.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    sizes = {"train_batch_size": request.batch, "train_micro_batch_size_per_gpu": request.micro_batch}
    config = {
        **(sizes if request.batch else {}),
        "gradient_accumulation_steps": plan.accumulation,
        **({request.half: {"enabled": True}, "optimizer": {"type": "AdamW"}} if request.sequence else {}),
        "zero_optimization": zero,
        **({"tensor_parallel": {"autotp_size": plan.tensor}} if plan.tensor > 1 else {}),
    }
    arguments = _words({"--deepspeed": True, "--deepspeed_config": path})
    variables = {"REFOLD_DEEPSPEED_CONFIG": path, **_recompute_variable(plan)}
    return LaunchSettings(_torchrun(request.workers), arguments, variables, {path: _json(config)})


# PyTorch FSDP2, in a script of one's own.

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _fsdp(request: LaunchRequest) -> LaunchSettings:
    """Return the arguments of `init_device_mesh` and `fully_shard` as JSON, under their names in PyTorch."""
    plan, path = request.plan, request.path("fsdp.json")
    copies = plan.replicate if plan.zero else plan.data
    config = {
        "mesh_shape": [copies, plan.data // copies, plan.tensor],
        "mesh_dim_names": ["dp_replicate", "dp_shard", "tp"],
        "reshard_after_forward": plan.zero == 3,
        "cpu_offload": plan.offload,
        "sequence_parallel": plan.sequence_parallel,
        "recompute": plan.recompute != "none",
        "accumulation": plan.accumulation,
        **({"micro_batch": request.micro_batch} if request.batch else {}),
        **({"sequence": request.sequence, "param_dtype": DTYPES[request.half]} if request.sequence else {}),
    }
    return LaunchSettings(_torchrun(request.workers), (), {"REFOLD_FSDP_CONFIG": path}, {path: _json(config)})


# Hugging Face Accelerate and Trainer.


def _accelerate(request: LaunchRequest) -> LaunchSettings:
    """Return options of `accelerate launch`: DDP without ZeRO, otherwise FSDP2."""
    plan, workers = request.plan, request.workers
    rendezvous = {"--machine_rank": workers.rank, "--main_process_ip": workers.address}
    sharded = {
        "--use_fsdp": True,
        "--fsdp_version": 2,
        "--fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "--fsdp_reshard_after_forward": _flag(plan.zero == 3),
        "--fsdp_offload_params": _flag(plan.offload),
        "--fsdp_activation_checkpointing": _flag(plan.recompute == "full"),
    }
    mesh = {
        "--use_parallelism_config": True,
        "--parallelism_config_dp_replicate_size": plan.replicate if plan.replicate > 1 else None,
        "--parallelism_config_dp_shard_size": plan.data // plan.replicate,
        "--parallelism_config_tp_size": plan.tensor,
    }
    options = {
        "--num_processes": plan.gpus,
        "--num_machines": workers.nodes,
        **(rendezvous if workers.nodes > 1 else {}),
        "--main_process_port": workers.port if workers.nodes > 1 else 0,  # 0: a free one
        **(sharded if plan.zero else {"--multi_gpu": plan.gpus > 1}),
        **(mesh if max(plan.tensor, plan.replicate) > 1 else {}),
        "--mixed_precision": request.half if request.sequence else None,
        "--gradient_accumulation_steps": plan.accumulation,
    }
    micro_batch = {"REFOLD_MICRO_BATCH": str(request.micro_batch)} if request.batch else {}
    variables = {**micro_batch, **({} if plan.zero else _recompute_variable(plan))}
    return LaunchSettings(("accelerate", "launch", *_words(options)), (), variables)


def _trainer(request: LaunchRequest) -> LaunchSettings:
    """Return arguments of `TrainingArguments` of Hugging Face Transformers: DDP without ZeRO, otherwise FSDP2."""
    plan, path = request.plan, request.path("fsdp.json")
    recompute = plan.recompute == "full"
    config = {
        "version": 2,
        "reshard_after_forward": plan.zero == 3,
        "cpu_offload": plan.offload,
        "activation_checkpointing": recompute,
    }
    options = {
        "--per_device_train_batch_size": request.micro_batch or None,
        "--gradient_accumulation_steps": plan.accumulation,
        f"--{request.half}": True if request.sequence else None,
        "--optim": "adamw_torch_fused" if request.sequence else None,
        "--gradient_checkpointing": "true" if recompute and not plan.zero else None,
        "--fsdp": True if plan.zero else None,
        "--fsdp_config": path if plan.zero else None,
    }
    files = {path: _json(config)} if plan.zero else {}
    return LaunchSettings(_torchrun(request.workers), _words(options), {}, files)


def _recompute_variable(plan: Plan) -> dict[str, str]:
    """Return the variable for scripts whose framework cannot switch on recomputation itself."""
    return {"REFOLD_RECOMPUTE": plan.recompute} if plan.recompute != "none" else {}


def _flag(value: bool) -> str:
    return "true" if value else "false"


# What they cannot run.


def _more_than(field: str, maximum: int, reason: str) -> Unsupported:
    return Unsupported(lambda plans: getattr(plans, field) > maximum, reason)


def _stages_of(allowed: Sequence[int], reason: str) -> Unsupported:
    return Unsupported(lambda plans: ~np.isin(plans.zero, allowed), reason)


_NO_PIPELINE = _more_than("pipeline", 1, "it has no setting for pipeline stages")
_NO_TENSOR = _more_than("tensor", 1, "it has no setting for tensor parallelism")
_NO_EXPERT = _more_than("expert", 1, "it has no setting for expert parallelism")
_NO_CONTEXT = _more_than("context", 1, "it has no setting for context parallelism")
_NO_REPLICATE = _more_than("replicate", 1, "it has no setting for hybrid sharding")
_NO_SEQUENCE = _more_than("sequence_parallel", 0, "it has no setting for sequence parallelism")
_NO_SELECTIVE = Unsupported(lambda plans: plans.recompute == SELECTIVE, "it recomputes whole layers or nothing")
_NO_ZERO_1 = _stages_of((0, 2, 3), "FSDP2 shards gradients too: ZeRO-2 or ZeRO-3, or none")
_OFFLOADS_SHARDS = Unsupported(
    lambda plans: (plans.offload > 0) & (plans.zero == 0), "FSDP2 offloads only what it shards: ZeRO-2 or ZeRO-3"
)

LAUNCH_TARGETS: dict[LaunchEngine, LaunchTarget] = {
    "megatron": LaunchTarget(
        "megatron-core",
        _megatron,
        (
            _stages_of((0, 1), "ZeRO-2 and ZeRO-3 need Megatron-FSDP, whose checkpoints other plans cannot load"),
            _more_than("offload", 0, "with offload, its checkpoints cannot be loaded under other plans"),
        ),
    ),
    "deepspeed": LaunchTarget(
        "deepspeed",
        _deepspeed,
        (
            _NO_PIPELINE,
            _NO_CONTEXT,
            _NO_EXPERT,
            _NO_REPLICATE,
            Unsupported(
                lambda plans: (plans.tensor > 1) & (plans.zero == 3), "tensor parallelism needs at most ZeRO-2"
            ),
            _NO_SEQUENCE,
            _NO_SELECTIVE,
        ),
    ),
    "fsdp": LaunchTarget("fsdp", _fsdp, (_NO_PIPELINE, _NO_CONTEXT, _NO_EXPERT, _NO_ZERO_1, _NO_SELECTIVE)),
    "accelerate": LaunchTarget(
        "fsdp",
        _accelerate,
        (
            _NO_PIPELINE,
            _NO_CONTEXT,
            _NO_EXPERT,
            _NO_ZERO_1,
            _OFFLOADS_SHARDS,
            Unsupported(
                lambda plans: (plans.tensor > 1) & (plans.data > 1) & (plans.zero == 0),
                "tensor parallelism with replicas needs ZeRO-2 or ZeRO-3",
            ),
            _NO_SEQUENCE,
            _NO_SELECTIVE,
        ),
    ),
    "trainer": LaunchTarget(
        "fsdp",
        _trainer,
        (
            _NO_PIPELINE,
            _NO_CONTEXT,
            _NO_EXPERT,
            _NO_REPLICATE,
            _NO_TENSOR,
            _NO_ZERO_1,
            _OFFLOADS_SHARDS,
            _NO_SEQUENCE,
            _NO_SELECTIVE,
        ),
    ),
}
"""All frameworks."""
