from refold.core.changes cimport Changes, JobProgress
from refold.core.usage cimport Usage
from refold.placement.free cimport FreeResources

cdef class RunTable:
    cdef readonly dict jobs, runs, progress, stopping
    cdef readonly set cancelled
    cdef readonly set _with_change_limit
    cdef readonly dict _reshape_holdings, _reshapes
    cdef readonly object measurements
    cdef readonly Usage usage
    cdef object _cluster
    cdef FreeResources _free
    cdef Changes _changes

    cpdef tuple held_by(self, str job_id)
    cpdef object begin(self, object job, object allocation, object now, object profiling=*)
    cdef object _begin(self, object job, object allocation, object now, object since, object profiling)
    cpdef object end(self, str job_id, object now)
    cpdef object end_job(self, str job_id)
