cimport cython
from refold.placement.allowed cimport AllowedRows, is_allowed
from refold.placement.c_types cimport Need, trailing_zeros

cdef long long WHOLE, CPU_FREE, FIRST_GPU, GPUS, MAX_FREE, MEMORY_FREE, MILLI_FREE, SIGNATURE, TYPE_BIT, UP, WHOLE_FREE
cdef long long PART, FIRST, TIGHTEST, TAKEN, NODE_DOWN, NO_SUCH_GPU, GPU_OVER, CPU_OVER, MEMORY_OVER
cdef long long FITS, DOWN, WRONG_TYPE, NOT_ALLOWED, TOO_SMALL, FEW_GPUS, FEW_CPUS, LITTLE_MEMORY, INSTANCES_THAT_FIT
cdef unsigned long long CPU_HASH, MEMORY_HASH, GPU_HASH, SIGNATURE_BITS, ONE, ALL_BITS

cdef class FreeArrays:
    cdef readonly tuple arrays
    cdef readonly AllowedRows allowed
    cdef long long[:, ::1] nodes
    cdef long long[::1] gpus
    cdef unsigned long long[:, ::1] bits
    cdef long long[:, ::1] room

cdef class EncodedDemand:
    cdef readonly object demands
    cdef Need need

cdef Need need_at(long long[:, ::1] demands, long long row) noexcept nogil
cdef long long max_gpus_per_node(FreeArrays free) noexcept nogil
cdef long long words_per_row(FreeArrays free) noexcept nogil
cdef bint any_node_with_free(FreeArrays free, long long whole) noexcept nogil
cdef bint any_node_of_size_with_free(FreeArrays free, long long size, long long whole) noexcept nogil
cdef void _update_bits(FreeArrays free, long long node, long long size, long long before, long long after) noexcept nogil
cdef void adjust_free(
    FreeArrays free, long long node, long long mask, long long milli, long long cpu, long long memory
) noexcept nogil
@cython.locals(same=cython.bint)
cdef void set_free(
    FreeArrays free, long long node, long long[::1] gpu_free, long long cpu, long long memory
) noexcept nogil
cpdef void release(
    FreeArrays free, long long node, long long mask, long long milli, long long cpu, long long memory
) noexcept nogil
cpdef void take_unchecked(
    FreeArrays free, long long node, long long mask, long long milli, long long cpu, long long memory
) noexcept nogil
cpdef long long take(
    FreeArrays free, long long node, long long mask, long long milli, long long cpu, long long memory
) noexcept nogil
cpdef void set_node_up(FreeArrays free, long long node, long long up) noexcept nogil
cdef long long count_gpus_with(FreeArrays free, long long node, long long milli) noexcept nogil
cdef bint fits(FreeArrays free, long long node, Need need) noexcept nogil
cdef long long pick_gpus(FreeArrays free, long long node, Need need, long long which) noexcept nogil
cdef long long candidate_row(Need need) noexcept nogil
@cython.locals(pending=cython.ulonglong)
cdef long long next_fitting_node(
    FreeArrays free, long long low, long long above, long long only, Need need, long long start
) noexcept nogil
cpdef bint any_node_fits(FreeArrays free, EncodedDemand demand) noexcept nogil
cdef long long first_shortage(FreeArrays free, long long node, Need need) noexcept nogil
cdef long long instances_that_fit(FreeArrays free, long long node, Need need) noexcept nogil
cdef long long instances_on_node(FreeArrays free, long long node, Need need) noexcept nogil
cpdef object count_shortages(FreeArrays free, long long[:, ::1] demands, long long row)
cdef void write_shortages(FreeArrays free, Need need, long long[:, ::1] counts, long long row) noexcept nogil
