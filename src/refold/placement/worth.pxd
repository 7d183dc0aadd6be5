cimport cython
from refold.placement.c_types cimport Need, trailing_zeros
from refold.placement.demand_history cimport DemandHistory
from refold.placement.kernels cimport FreeArrays, max_gpus_per_node, need_at

cdef long long WHOLE, CPU_PER_GPU, GANG_WEIGHT, MEMORY_PER_GPU
cdef long long MAX_GPU_TYPES, MAX_PIVOTS, MAX_PRICED_SIZES, MAX_TYPE_SETS
cdef long long CPU_FREE, FIRST_GPU, GPUS, MEMORY_FREE, MILLI_FREE, TYPE_BIT, UP, WHOLE_FREE
cdef double GANG_BONUS, MEMORY_WEIGHT, TIGHTNESS_WEIGHT, TOLERANCE, INFINITE

cdef double _stranded_fraction(double supply) noexcept nogil
cdef double _stranded(
    double gpus_worth, long long cpu_free, long long memory_free, DemandHistory history
) noexcept nogil
@cython.locals(better=cython.bint)
cdef (double, long long) loss_on(FreeArrays free, long long node, Need need, DemandHistory history) noexcept nogil
@cython.locals(pieces=cython.double[::1], prices=cython.double[::1])
cpdef void update_worth(
    long long[:, ::1] shapes, long long[::1] counts, long long count, DemandHistory history
) except *
cdef void _update_limited_demand(
    long long[:, ::1] shapes, long long[::1] counts, long long count, double milli, DemandHistory history
) noexcept nogil
@cython.locals(free_of=cython.double[62], total=cython.double, capacity=cython.longlong)
cdef void update_type_prices(
    FreeArrays free, long long[::1] type_sets, double[::1] limited_demand, double[::1] prices
) noexcept nogil
@cython.locals(sizes=cython.longlong[::1], prices=cython.double[::1], scale=cython.double)
cdef double[::1] _prices(object pieces, double[::1] worth) except *
cdef void _solve_knapsack(
    long long[::1] sizes, double[::1] piece_prices, double[::1] worth, long long[::1] last
) noexcept nogil
@cython.locals(
    inverse=cython.double[:, ::1],
    amounts=cython.double[::1],
    costs=cython.double[::1],
    prices=cython.double[::1],
    column=cython.double[::1],
    worth=cython.double[::1],
    last=cython.longlong[::1],
)
cpdef double[::1] _cutting_prices(long long[::1] sizes, double[::1] pieces) except *
cdef void _write_pattern(long long[::1] sizes, long long[::1] last, double[::1] column) noexcept nogil
@cython.locals(direction=cython.double[::1])
cdef bint _pivot(
    double[:, ::1] inverse, double[::1] amounts, double[::1] costs, double[::1] column, double cost
) except -1
