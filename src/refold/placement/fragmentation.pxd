cimport cython
from refold.placement.c_types cimport Need
from refold.placement.demand_history cimport DemandHistory
from refold.placement.kernels cimport FreeArrays, need_at

cdef long long CPU_FREE, FIRST_GPU, GPUS, MAX_FREE, MILLI_FREE, TYPE_BIT, UP

cdef long long _fragment(
    FreeArrays free, long long node, long long cpu_free, long long total, DemandHistory history, long long rank
) noexcept nogil
cdef double _expected_fragment(
    FreeArrays free, long long node, long long cpu_free, long long total, DemandHistory history
) noexcept nogil
cpdef double node_fragmentation(FreeArrays free, long long node, DemandHistory history) noexcept nogil
cpdef double fragmentation_after(
    FreeArrays free, long long node, long long mask, long long milli, long long cpu, DemandHistory history
) noexcept nogil
cpdef double cluster_fragmentation(FreeArrays free, DemandHistory history) noexcept nogil
@cython.locals(order=cython.longlong[::1], total=cython.double)
cpdef void update_typical_demands(
    long long[:, ::1] shapes, long long[::1] counts, long long count, DemandHistory history
) except *
cdef bint _same_fragments(Need one, Need other) noexcept nogil
