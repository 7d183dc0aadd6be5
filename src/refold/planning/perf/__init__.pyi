from .columns import (
    FULL as FULL,
    SELECTIVE as SELECTIVE,
    Column as Column,
    PlanColumns as PlanColumns,
    concatenate_plans as concatenate_plans,
    plans_to_columns as plans_to_columns,
)
from .compute import TENSOR_CORE_ALIGNMENT as TENSOR_CORE_ALIGNMENT, head_time as head_time, layer_time as layer_time
from .engine import Arithmetic as Arithmetic, Engine as Engine, PlanFeature as PlanFeature, Precision as Precision
from .estimation import (
    DEFAULT_CPUS_PER_GPU as DEFAULT_CPUS_PER_GPU,
    Estimate as Estimate,
    EstimateColumns as EstimateColumns,
    estimate as estimate,
    estimate_all as estimate_all,
    estimate_at as estimate_at,
    model_flops as model_flops,
    step_time_parts as step_time_parts,
)
from .explained_communication import FormulaLine as FormulaLine, Section as Section
from .explanation import explain as explain
from .fitting import (
    Fitted as Fitted,
    Form as Form,
    Parameter as Parameter,
    PhaseTimes as PhaseTimes,
    Vector as Vector,
    choose_initial_samples as choose_initial_samples,
    choose_samples_adaptively as choose_samples_adaptively,
    fit as fit,
    fit_as_far_as_useful as fit_as_far_as_useful,
    format_uncertainty as format_uncertainty,
    most_informative_sample as most_informative_sample,
    predict as predict,
    refit_if_needed as refit_if_needed,
    relative_errors as relative_errors,
)
from .forms import CorrectedForm as CorrectedForm, RubickForm as RubickForm, apply_corrections as apply_corrections
from .hardware import (
    Crossing as Crossing,
    Efficiency as Efficiency,
    GpuSpec as GpuSpec,
    Machines as Machines,
    build_machines as build_machines,
    spread_evenly as spread_evenly,
)
from .linear_attention import LinearAttention as LinearAttention
from .measurement import Measurement as Measurement, Status as Status
from .memory_model import MEMORY_PART_MEANINGS as MEMORY_PART_MEANINGS, memory_footprint as memory_footprint
from .module_totals import (
    ModuleCosts as ModuleCosts,
    ModuleTotals as ModuleTotals,
    ProductKind as ProductKind,
    ProductTotals as ProductTotals,
    TrafficKind as TrafficKind,
)
from .shapes import ModelKind as ModelKind, ModelShape as ModelShape
from .training_cost import (
    Training as Training,
    TrainingCost as TrainingCost,
    compute_training_cost as compute_training_cost,
    default_tokens as default_tokens,
    explain_cost as explain_cost,
)
from .training_setup import (
    AdaptedLayers as AdaptedLayers,
    Optimizer as Optimizer,
    TrainingSetup as TrainingSetup,
    Tuning as Tuning,
)
