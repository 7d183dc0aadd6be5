from .adapt import (
    adapt_to_cluster as adapt_to_cluster,
    ignore_gpu_types as ignore_gpu_types,
    read_gpu_type_map as read_gpu_type_map,
    relax_missing_types as relax_missing_types,
)
from .clusters import node_names as node_names
from .formats import (
    FORMATS as FORMATS,
    SHIPPED as SHIPPED,
    read_cluster as read_cluster,
    read_trace as read_trace,
    write_cluster as write_cluster,
    write_trace as write_trace,
)
from .helios import demand_on_nodes as demand_on_nodes
from .rubick import plan_from_code as plan_from_code
from .sacct import parse_sacct as parse_sacct
from .sacct_cells import (
    GpuAmount as GpuAmount,
    parse_gpus as parse_gpus,
    parse_memory_mib as parse_memory_mib,
    parse_time_limit as parse_time_limit,
    parse_tres as parse_tres,
)
from .shorthand import UNKNOWN_GPU_TYPE as UNKNOWN_GPU_TYPE
from .summary import QUANTILES as QUANTILES, Portion as Portion, Summary as Summary, summarise as summarise
from .synthetic import (
    Lognormal as Lognormal,
    PoissonArrivals as PoissonArrivals,
    SizeClass as SizeClass,
    WorkloadShape as WorkloadShape,
    enlarge as enlarge,
    everyday_workload as everyday_workload,
    fit_shape as fit_shape,
    generate as generate,
)
from .text_source import BadCell as BadCell
from .trace import Trace as Trace
