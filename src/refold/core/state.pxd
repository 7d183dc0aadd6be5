from refold.core.changes cimport Changes, JobProgress
from refold.core.job_queue cimport JobQueue
from refold.core.run_table cimport RunTable
from refold.placement.free cimport FreeResources

cdef class State:
    cdef public object now
    cdef readonly object cluster, late, availability
    cdef readonly FreeResources free
    cdef readonly Changes changes
    cdef readonly JobQueue queue
    cdef readonly RunTable running
    cdef dict _runs

    cpdef object apply(self, object event)
    cdef object _apply_to_run(self, object event)
    cdef bint _note(self, object event) except *
    cpdef object start(self, str job_id, object allocation)
    cdef bint _is_current(self, object report) except *
    cdef void _submit(self, object job) except *
    cdef void _end_active_job(self, str job_id) except *
