from .cluster_machines import Layout as Layout, Spread as Spread
from .crossings import Crossings as Crossings, explain_segments as explain_segments
from .curves import (
    MIN_SPEEDUP as MIN_SPEEDUP,
    Curve as Curve,
    CurvePoint as CurvePoint,
    PackedMachines as PackedMachines,
    cpu_curve as cpu_curve,
    gpu_curve as gpu_curve,
)
from .defaults import Task as Task, default_engine as default_engine, default_sizes as default_sizes
from .launch_targets import (
    LAUNCH_TARGETS as LAUNCH_TARGETS,
    LaunchRequest as LaunchRequest,
    LaunchSettings as LaunchSettings,
    Workers as Workers,
    launch_problem as launch_problem,
    launch_settings as launch_settings,
)
from .relative_speed import (
    GUARANTEE_TOLERANCE as GUARANTEE_TOLERANCE,
    Minimums as Minimums,
    ModelledSpeedSource as ModelledSpeedSource,
    SpeedSource as SpeedSource,
)
from .rendezvous import (
    GANG_VARIABLES as GANG_VARIABLES,
    check_gang_command as check_gang_command,
    gang_variables as gang_variables,
)
from .rules import RULES as RULES, format_gib as format_gib, rejection_reasons as rejection_reasons
from .search import (
    RISKY_GIB as RISKY_GIB,
    PlanSearch as PlanSearch,
    best_plan as best_plan,
    best_plans as best_plans,
    is_risky as is_risky,
)
from .selection import TIE_FACTOR as TIE_FACTOR, RejectedPlans as RejectedPlans
from .space import (
    Pins as Pins,
    PlanLimits as PlanLimits,
    all_plans as all_plans,
    divisors as divisors,
    wide_limits as wide_limits,
)
from .speeds import (
    CATALOGUE_ONLY as CATALOGUE_ONLY,
    Knowledge as Knowledge,
    Speed as Speed,
    Speeds as Speeds,
)
from .workloads import (
    WorkloadKind as WorkloadKind,
    requested_cpus as requested_cpus,
    requested_layout as requested_layout,
    workload_kind as workload_kind,
)
