from .curves import (
    Curve as Curve,
    CurvePoint as CurvePoint,
    Curves as Curves,
    Packed as Packed,
    cpu_curve as cpu_curve,
    gpu_curve as gpu_curve,
)
from .ranking import NEARLY as NEARLY
from .rejections import RejectedPlans as RejectedPlans
from .relative_speed import Minimums as Minimums, ModelledSpeedSource as ModelledSpeedSource, SpeedSource as SpeedSource
from .rules import RULES as RULES, Rule as Rule, gib as gib, why_not as why_not
from .search import Search as Search, best_plan as best_plan, best_plans as best_plans
from .space import Pins as Pins, PlanLimits as PlanLimits, all_plans as all_plans, divisors as divisors
from .speeds import (
    NOTHING_MORE as NOTHING_MORE,
    Kind as Kind,
    Knowledge as Knowledge,
    Layout as Layout,
    Speed as Speed,
    Speeds as Speeds,
    asked_cpus as asked_cpus,
    asked_layout as asked_layout,
    kind_of as kind_of,
)
