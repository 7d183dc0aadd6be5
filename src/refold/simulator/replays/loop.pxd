cimport cython
from refold.placement.heap cimport TaskHeap
from refold.placement.kernels cimport FreeArrays, write_shortages
from refold.placement.placed_tasks cimport PlacedTasks

cdef long long NODE
cdef double INFINITE

@cython.final
cdef class JournalNotes:
    cdef readonly long long[::1] arrival_step, blocked_step, blocked_number, wake_set
    cdef readonly long long[:, ::1] shortages
    cdef readonly unsigned char[::1] may_fit
    cdef readonly double[::1] times, wake_at

cdef class ReplayLoop:
    cdef object columns, times, numbers
    cdef double[::1] submitted, work, started, ended, speed_of_node
    cdef long long[::1] start_number, start_step, end_step
    cdef PlacedTasks tasks
    cdef FreeArrays free
    cdef TaskHeap ends
    cdef JournalNotes notes
    cdef long long count, step, arrived, waiting, starts, noted
    cdef double now

    cdef bint advance(self, double wake) noexcept nogil
    cdef long long next_end(self) noexcept nogil
    cdef long long next_arrival(self) noexcept nogil
    cdef bint fits_empty(self, long long task) noexcept nogil
    cdef void start(self, long long task) noexcept nogil
    @cython.locals(slowest=cython.double)
    cdef double _speed(self, long long task) noexcept nogil
    cdef void note_blocked(self, long long task) noexcept nogil
