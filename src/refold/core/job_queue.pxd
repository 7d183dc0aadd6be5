from refold.core.changes cimport Changes
from refold.placement.free cimport FreeResources

cdef class JobQueue:
    cdef readonly dict waiting, held, hold_reasons, infeasible, reasons, start_estimates
    cdef readonly set hold_pending
    cdef readonly object limits
    cdef dict _relaxed_at
    cdef FreeResources _free
    cdef Changes _changes

    cpdef void submit(self, object job, double now) except *
    cpdef void add(self, object job) except *
    cpdef object start(self, str job_id)
    cpdef void end(self, object job) except *
    cdef void _replace(self, object job, object changed) except *
    cdef void _enqueue(self, object job) except *
    cdef void _release_usage(self, object job) except *

cdef object _relaxed(object job)
