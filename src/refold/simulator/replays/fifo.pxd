cimport cython
from refold.placement.demand_history cimport is_update_due
from refold.simulator.replays.loop cimport JournalNotes, ReplayLoop

cdef double INFINITE

cpdef object replay_fifo(
    object tasks, object cluster, object placement=*, object order=*, object seed=*, object notes=*
)

@cython.final
cdef class FifoLoop(ReplayLoop):
    cdef bint strict, learns
    cdef object update
    cdef long long head, last_end_step, tasks_seen, demands_seen
    cdef long long[::1] head_of, next_task, blocked_step, demand_counts

    cdef void _link_equal_demands(self) noexcept nogil
    cdef void _learn(self, long long demand) except *
    cdef void _start_tasks(self) noexcept nogil
    cdef long long _first_task(self) noexcept nogil
    cdef long long _first_candidate(self) noexcept nogil
    cdef bint _may_fit(self, long long demand) noexcept nogil
