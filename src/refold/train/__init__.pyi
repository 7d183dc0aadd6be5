from .checkpoints import CheckpointNotWritten as CheckpointNotWritten
from .hf_accelerate import AccelerateRun as AccelerateRun
from .hf_trainer import RefoldTrainerCallback as RefoldTrainerCallback
from .lightning_callback import RefoldLightningCallback as RefoldLightningCallback
from .own_loop import OwnLoop as OwnLoop
from .pipeline_stages import PipelineRule as PipelineRule
from .profiling import (
    ProfileConfig as ProfileConfig,
    StepBudget as StepBudget,
    check_device as check_device,
    choose_configs as choose_configs,
    default_device as default_device,
    device_name as device_name,
    measure as measure,
    needs_at_least_memory_of as needs_at_least_memory_of,
    profile as profile,
    require_torch as require_torch,
    truncate_layers as truncate_layers,
)
from .session import Session as Session
from .starting import start as start
from .steps import Trainer as Trainer
from .tracing import (
    trace_file as trace_file,
    trace_module as trace_module,
)
