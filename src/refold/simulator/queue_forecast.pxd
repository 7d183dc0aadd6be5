cimport cython
from refold.placement.heap cimport TaskHeap
from refold.placement.kernels cimport FreeArrays, adjust_free
from refold.placement.placed_tasks cimport PlacedTasks

cdef long long BACKFILL_DEPTH, MILLI_FREE, NODE, MASK, MILLI, CPU, MEMORY
cdef double INFINITE

@cython.final
cdef class QueueForecast:
    cdef object free
    cdef PlacedTasks jobs
    cdef long long[:, ::1] shares
    cdef long long[::1] first_share

@cython.final
cdef class _Future:
    cdef QueueForecast queue
    cdef FreeArrays free
    cdef TaskHeap ends
    cdef double[::1] durations, started
    cdef long long[::1] blocked_step
    cdef long long runs, count, step, head, reserved
    cdef double now, reserved_start

    cdef void _start_in_order(self) noexcept nogil
    cdef void _start_others(self, bint reserves) except *
    cdef bint _waits(self, long long job) noexcept nogil
    cdef bint _start(self, long long job) noexcept nogil
    cdef void _end_tasks(self, FreeArrays free, TaskHeap ends, double now) noexcept nogil
    cdef double _earliest_start(self) except? -1
