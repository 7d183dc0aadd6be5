from .columns import (
    SELECTIVE as SELECTIVE,
    Column as Column,
    PlanColumns as PlanColumns,
    columns_of as columns_of,
    joined as joined,
)
from .compute import head_time as head_time, layer_time as layer_time
from .engine import Engine as Engine
from .estimation import (
    USUAL_CPUS_PER_GPU as USUAL_CPUS_PER_GPU,
    Estimate as Estimate,
    estimate as estimate,
    estimate_all as estimate_all,
    row_of as row_of,
    step_parts as step_parts,
)
from .explanation import FormulaLine as FormulaLine, Section as Section, explain as explain
from .fitting import (
    Fitted as Fitted,
    Form as Form,
    Parameter as Parameter,
    Times as Times,
    Vector as Vector,
    errors_of as errors_of,
    factor_text as factor_text,
    first_samples as first_samples,
    fit as fit,
    most_telling as most_telling,
    predict as predict,
    samples_in_turn as samples_in_turn,
)
from .forms import CorrectedForm as CorrectedForm, RubickForm as RubickForm, corrected as corrected
from .hardware import Efficiency as Efficiency, GpuSpec as GpuSpec, Machines as Machines, machines_of as machines_of
from .measurement import Measurement as Measurement, Status as Status
from .memory_model import MEANINGS as MEANINGS, USABLE as USABLE, memory as memory
from .setting import Setting as Setting
from .shapes import Kind as Kind, ModelShape as ModelShape
