cimport cython
from refold.placement.demand_history cimport is_update_due
from refold.placement.heap cimport TaskHeap
from refold.placement.kernels cimport FreeArrays
from refold.placement.placed_tasks cimport PlacedTasks

cdef long long NODE
cdef double INFINITE

cpdef object replay_fifo(object tasks, object cluster, object placement=*, object order=*, object seed=*)

@cython.final
cdef class FifoLoop:
    cdef object columns, times, numbers
    cdef double[::1] submitted, work, started, ended, speed_of_node
    cdef long long[::1] start_number, start_step, end_step
    cdef PlacedTasks tasks
    cdef FreeArrays free
    cdef TaskHeap ends
    cdef long long count, step, arrived, waiting, starts
    cdef double now
    cdef bint strict, learns
    cdef object update
    cdef long long head, last_end_step, tasks_seen, demands_seen
    cdef long long[::1] head_of, next_task, blocked_step, demand_counts

    cdef void _link_equal_demands(self) noexcept nogil
    cdef bint _advance(self) noexcept nogil
    cdef long long _next_end(self) noexcept nogil
    cdef long long _next_arrival(self) noexcept nogil
    cdef bint _fits_empty(self, long long task) noexcept nogil
    cdef void _start(self, long long task) noexcept nogil
    @cython.locals(slowest=cython.double)
    cdef double _speed(self, long long task) noexcept nogil
    cdef void _learn(self, long long demand) except *
    cdef void _start_tasks(self) noexcept nogil
    cdef long long _first_task(self) noexcept nogil
    cdef long long _first_candidate(self) noexcept nogil
    cdef bint _may_fit(self, long long demand) noexcept nogil
