cimport cython
from refold.placement.demand_history cimport is_update_due
from refold.placement.heap cimport TaskHeap
from refold.placement.c_types cimport Need
from refold.placement.kernels cimport FreeArrays, adjust_free, need_at
from refold.placement.rules cimport GreedyRule, place_instances

cdef long long WHOLE, NODE, GPU_MASK
cdef double INFINITE

cpdef object replay_fifo(object tasks, object cluster, object placement=*, object order=*, object seed=*)

@cython.final
cdef class PlacedTasks:
    cdef readonly tuple arrays
    cdef readonly GreedyRule rule
    cdef long long[:, ::1] demands, placements
    cdef long long[::1] demand_of, first_row
    cdef unsigned char[::1] fits_empty

    cdef Need need(self, long long task) noexcept nogil
    cdef bint place(self, FreeArrays free, long long task) noexcept nogil
    cdef void take(self, FreeArrays free, long long task) noexcept nogil
    cdef void release(self, FreeArrays free, long long task) noexcept nogil
    @cython.locals(mask=cython.longlong)
    cdef void _change(self, FreeArrays free, long long task, long long sign) noexcept nogil

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
