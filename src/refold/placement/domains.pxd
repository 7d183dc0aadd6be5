cimport cython
from refold.placement.allowed cimport AllowedRows, has_request, room_of_largest, segment_size
from refold.placement.c_types cimport Need, trailing_zeros
from refold.placement.kernels cimport (
    EncodedDemand,
    FreeArrays,
    candidate_row,
    fits,
    instances_that_fit,
    max_gpus_per_node,
    words_per_row,
)

cdef long long CPU_TOTAL, MEMORY_TOTAL, MOST, NO_SUCH_LEVEL, ON_ALL_NODES, PARENT, PREFERRED, REQUIRED, SEGMENT_LEVEL
cdef long long UNLIMITED, WHOLE
cdef unsigned long long ONE

cdef class Parts:
    cdef long long size
    cdef long long[::1] domain, instances

    cpdef void make_room(self, long long parts) except *

cpdef long long limit_by_domains(FreeArrays free, EncodedDemand demand, long long fitting) noexcept
cdef void count_room(FreeArrays free, AllowedRows allowed, Need need) noexcept nogil
cdef bint _only_whole_gpus_matter(FreeArrays free, AllowedRows allowed, Need need) noexcept nogil
@cython.locals(pending=cython.ulonglong)
cdef void _count_by_node(FreeArrays free, AllowedRows allowed, Need need, long long low) noexcept nogil
cdef void _count_outwards(AllowedRows allowed, Need need) noexcept nogil
@cython.locals(level=cython.longlong)
cdef bint choose_domains(FreeArrays free, AllowedRows allowed, Need need, Parts parts) noexcept nogil
cdef long long _wanted(AllowedRows allowed, Need need, long long level, long long instances) noexcept nogil
cdef long long _smallest(AllowedRows allowed, long long level, long long parent, long long wanted) noexcept nogil
cdef long long _largest(AllowedRows allowed, long long level, long long parent) noexcept nogil
@cython.locals(here=cython.longlong)
cdef void _divide(
    AllowedRows allowed, Need need, long long level, long long domain, long long instances, Parts parts
) noexcept nogil
