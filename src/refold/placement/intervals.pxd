cimport cython
from refold.placement.allowed cimport AllowedRows, is_allowed
from refold.placement.c_types cimport Need, count_ones, view
from refold.placement.kernels cimport FreeArrays, need_at, set_free

cdef double inf
cdef long long WHOLE, FIRST_GPU_FREE, INTERVAL_CPU, INTERVAL_MEMORY, WHOLE_MASK

cdef class FreeIntervals:
    cdef readonly tuple arrays
    cdef readonly AllowedRows allowed
    cdef Need need
    cdef long long[::1] gpus, types, up, number, gpu_free, changes, losses, fitting
    cdef double[:, ::1] starts
    cdef double[::1] times
    cdef long long[:, :, ::1] free

cdef class BookedArrays:
    cdef long long[:, ::1] demands
    cdef long long[::1] demand_row, node, mask, touched
    cdef double[::1] duration, start

cdef long long interval_at(FreeIntervals intervals, long long node, double time) noexcept nogil
cdef void _copy(FreeIntervals intervals, long long node, long long interval, long long to) noexcept nogil
cdef long long _split(FreeIntervals intervals, long long node, double time) noexcept nogil
cdef void _merge(FreeIntervals intervals, long long node, long long interval) noexcept nogil
cpdef bint has_room(FreeIntervals intervals, long long node) noexcept nogil
@cython.locals(whole=cython.longlong)
cpdef void change_interval(
    FreeIntervals intervals, long long node, double start, double end, long long mask, long long milli, long long cpu,
    long long memory
) noexcept nogil
cpdef bint is_overbooked(
    FreeIntervals intervals, long long node, double start, double end, long long mask, bint cpu, bint memory
) noexcept nogil
cpdef void drop_past_intervals(FreeIntervals intervals, double now) noexcept nogil
cdef long long _instances_on_gpus(FreeIntervals intervals, long long gpus) noexcept nogil
@cython.locals(shared=cython.bint, whole=cython.longlong, cpu=cython.longlong, memory=cython.longlong)
cdef long long instances_in(
    FreeIntervals intervals, long long node, long long first, double until
) noexcept nogil
cdef bint has_suitable_gpus(FreeIntervals intervals, long long node) noexcept nogil
cdef bint _gpus_suffice(FreeIntervals intervals, long long node, long long interval) noexcept nogil
@cython.locals(on_this_node=cython.bint)
cpdef long long first_that_can_start_earlier(
    FreeIntervals intervals, BookedArrays booked, long long[::1] order, long long position, long long[::1] candidates,
    double now, long long[::1] checks_left
) noexcept nogil
cdef double earliest_start_on_node(
    FreeIntervals intervals, long long node, double duration, double after, double before
) noexcept nogil
cdef double free_duration_on_node(FreeIntervals intervals, long long node, double now) noexcept nogil
cpdef double longest_free_duration_on(
    FreeIntervals intervals, long long[::1] candidates, long long[:, ::1] demands, double now
) noexcept nogil
@cython.locals(cpu=cython.longlong, memory=cython.longlong)
cdef void _write_free_on_node(
    FreeIntervals intervals, FreeArrays free, long long node, double start, double end
) noexcept nogil
cpdef void write_free_during(FreeIntervals intervals, FreeArrays free, double start, double end) noexcept nogil
