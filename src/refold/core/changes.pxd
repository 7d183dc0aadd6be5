cdef class JobProgress:
    cdef public long long runs, changes
    cdef public bint reported_start
    cdef public object done, steps, steps_at, gpu_seconds, computing_since, loss, samples_per_second, first_report
    cdef public object changed_at
    cdef public dict change_costs

    cpdef void record_steps(self, object steps, object now) except *

cdef class Changes:
    cdef public list submitted, requeued, removed, started, progressed, ended, nodes, past_jobs

    cpdef void clear(self) except *
