cimport cython
from refold.placement.c_types cimport Need
from refold.placement.demand_history cimport DemandHistory, ScoreCache
from refold.placement.genetic_operators cimport sort_by_keys
from refold.placement.kernels cimport FreeArrays, adjust_free, fits, need_at
from refold.placement.lookahead cimport RackDraw, find_least_loss_node, instance_watts, loss, power_cost, type_cost

cdef long long WHOLE, GPU_MASK, GPUS, NODE, UP, WHOLE_FREE, ANY_NODE
cdef double WORTH_WEIGHT, JOB_WEIGHT, INFINITE

cdef class Window:
    cdef long long[::1] jobs, first, demand_ids
    cdef long long[:, ::1] demands
    cdef long long urgent
    cdef bint in_order

cdef class PlacementState:
    cdef FreeArrays free
    cdef DemandHistory history
    cdef ScoreCache cache
    cdef RackDraw power

cdef class Genome:
    cdef double[::1] keys
    cdef long long[::1] genes

cdef class Solution:
    cdef long long[:, ::1] placements
    cdef unsigned char[::1] placed, infeasible, exhausted
    cdef long long[::1] order, scratch

cdef bint can_host(FreeArrays free, long long node, Need need) noexcept nogil
cdef void change_usage(PlacementState state, long long node, long long mask, Need need, long long sign) noexcept nogil
cdef (double, long long) cost_on(PlacementState state, long long node, Need need) noexcept nogil
cdef double _place_job(
    PlacementState state, Window window, long long job, Genome genome, Solution solution
) noexcept nogil
cdef double _place_instances(
    PlacementState state, Window window, long long job, Genome genome, Solution solution, bint least_power
) noexcept nogil
cdef void _release_instances(
    PlacementState state, Need need, long long first, long long end, Solution solution
) noexcept nogil
@cython.locals(within_limit=cython.bint)
cdef long long _find_least_watts_node(PlacementState state, Need need) noexcept nogil
cdef double job_gpus(Need need) noexcept nogil
cdef double job_value(Need need) noexcept nogil
cdef double decode(PlacementState state, Window window, Genome genome, Solution solution) noexcept nogil
cdef void _forget_exhausted(Solution solution) noexcept nogil
cdef void place_rest(PlacementState state, Window window, Solution solution) except *
cdef long long count_placed(Solution solution) noexcept nogil
cdef void release_all(PlacementState state, Window window, Solution solution) noexcept nogil
cdef void _release_job(PlacementState state, Window window, long long job, Solution solution) noexcept nogil
@cython.locals(seen=cython.uchar[::1])
cdef void mark_infeasible(PlacementState state, Window window, Solution solution) except *
