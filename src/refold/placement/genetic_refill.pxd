cimport cython
from refold.placement.c_types cimport Need
from refold.placement.genetic_decoding cimport (
    JOB_WEIGHT, PlacementState, Solution, Window, can_host, change_usage, cost_on, job_value
)
from refold.placement.genetic_operators cimport Random, next_random, random_fraction
from refold.placement.kernels cimport need_at
from refold.placement.lookahead cimport power_cost

cdef long long WHOLE, CPU_FREE, FIRST_GPU, GPU_MASK, GPUS, MILLI_FREE, NODE, MAX_REFILLS, MAX_PIECES
cdef double TOLERANCE, INFINITE

cdef class Pool:
    cdef long long[::1] jobs, first, size, head, following, piece_rows
    cdef double[::1] best
    cdef unsigned char[:, ::1] take

cdef bint _is_movable(Window window, long long job) noexcept nogil
cdef void _fill_pool(Window window, Pool pool, Solution solution) noexcept nogil
cdef void _push(Pool pool, long long row, long long job) noexcept nogil
cdef void _put(
    PlacementState state, Window window, Pool pool, long long row, long long node, long long mask, Solution solution
) noexcept nogil
cdef double _value_on(Window window, Pool pool, long long node) noexcept nogil
cdef long long _clear_node(
    PlacementState state, Window window, Pool pool, long long node, Solution solution, long long[:, ::1] cleared
) noexcept nogil
@cython.locals(
    improved=cython.bint, used=cython.longlong[::1], before=cython.longlong[:, ::1], after=cython.longlong[:, ::1]
)
cdef void refill_nodes(PlacementState state, Window window, Random rng, Solution solution) except *
cdef void _fill_gpus(
    PlacementState state, Window window, Pool pool, long long node, Random rng, Solution solution
) noexcept nogil
cdef void _fill_gpu(
    PlacementState state, Window window, Pool pool, long long node, long long gpu, double cpu_weight, long long start,
    Solution solution
) noexcept nogil
cdef long long _solve_knapsack(
    PlacementState state, Window window, Pool pool, long long node, long long capacity, double cpu_weight,
    long long start
) noexcept nogil
cdef void _add_piece(
    double[::1] best, unsigned char[:, ::1] take, long long piece, long long capacity, long long milli, double value
) noexcept nogil
cdef bint _allows(PlacementState state, long long node, Need need) noexcept nogil
