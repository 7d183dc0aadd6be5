from .adapt import for_cluster as for_cluster, with_types_of as with_types_of
from .clusters import ANY_TYPE as ANY_TYPE
from .formats import (
    FORMATS as FORMATS,
    SHIPPED as SHIPPED,
    read_cluster as read_cluster,
    read_trace as read_trace,
    write_trace as write_trace,
)
from .rubick import plan_from_code as plan_from_code
from .summary import QUANTILES as QUANTILES, Portion as Portion, Summary as Summary, summarise as summarise
from .synthetic import (
    Lognormal as Lognormal,
    PoissonArrivals as PoissonArrivals,
    SizeClass as SizeClass,
    WorkloadShape as WorkloadShape,
    calibrated as calibrated,
    enlarge as enlarge,
    everyday as everyday,
    generate as generate,
)
from .trace import Trace as Trace, counted as counted
