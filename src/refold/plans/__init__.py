"""Which plans a job could run with on given machines, the best of them, and how that depends on what it is given."""

from refold.plans.curves import Curve, Curves, Packed, Point, cpu_curve, gpu_curve
from refold.plans.lost import Lost
from refold.plans.rules import RULES, Rule, why_not
from refold.plans.search import Search, best_plan, best_plans
from refold.plans.space import Limits, Pins, all_plans

__all__ = [
    "RULES",
    "Curve",
    "Curves",
    "Limits",
    "Lost",
    "Packed",
    "Pins",
    "Point",
    "Rule",
    "Search",
    "all_plans",
    "best_plan",
    "best_plans",
    "cpu_curve",
    "gpu_curve",
    "why_not",
]
