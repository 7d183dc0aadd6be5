cimport cython
from libc.math cimport fmod
from refold.placement.c_types cimport Need, trailing_zeros
from refold.placement.demand_history cimport DemandHistory, ScoreCache, row_of
from refold.placement.fragmentation cimport fragmentation_after, node_fragmentation
from refold.placement.kernels cimport (
    FreeArrays,
    candidate_row,
    fits,
    instances_on_node,
    max_gpus_per_node,
    need_at,
    pick_gpus,
    words_per_row,
)
from refold.placement.worth cimport loss_on

cdef long long WHOLE, FIRST_GPU, GPUS, LOOSEST, SIGNATURE, TYPE_BIT
cdef double POWER_TOLERANCE_WATTS, BALANCE_WEIGHT, INFINITE
cdef unsigned long long ONE

cdef class RackDraw:
    cdef readonly tuple arrays
    cdef long long[::1] rack_of
    cdef double[::1] watts_per_gpu_milli, watts_per_cpu_milli, draw, limit, scale

cdef double instance_watts(RackDraw power, long long node, Need need) noexcept nogil
cdef double power_cost(RackDraw power, long long node, Need need) noexcept nogil
@cython.locals(count=cython.longlong, within=cython.longlong)
cpdef (long long, long long) count_within_limits(
    FreeArrays free,
    long long[:, ::1] demands,
    long long[::1] order,
    long long[::1] rack_of,
    double[::1] watts,
    double[::1] headroom,
    double[::1] remaining,
) noexcept nogil
cdef double type_cost(FreeArrays free, long long node, Need need, double[::1] prices) noexcept nogil
@cython.locals(pending=cython.ulonglong, power_counts=cython.bint, types_count=cython.bint, score=cython.double)
cdef long long find_least_loss_node(
    bint fgd, FreeArrays free, Need need, long long demand_id, DemandHistory history, ScoreCache cache, RackDraw power
) noexcept nogil
cpdef (double, long long) loss(
    bint fgd, FreeArrays free, long long node, Need need, DemandHistory history
) noexcept nogil
cdef bint _interchangeable(FreeArrays free, long long node, long long other) noexcept nogil
cdef long long _fgd_gpus(FreeArrays free, long long node, Need need, DemandHistory history) noexcept nogil
