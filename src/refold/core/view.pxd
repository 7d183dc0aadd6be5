cimport cython
from refold.core.changes cimport Changes
from refold.core.state cimport State
from refold.placement.free cimport FreeResources
from refold.placement.trial cimport Trial

cdef class View:
    cdef readonly State _state
    cdef Trial _trial
    cdef object _empty_cluster
    cdef readonly Changes changes
    cdef readonly object cluster, waiting, active, runs, stopping, measured_speeds, infeasible, held

    @cython.locals(other=View)
    cpdef View with_changes(self, Changes changes)
    cpdef Trial trial(self)
    cpdef object end_trial(self, object wanted=*)
    cpdef object shortage(self, object demand)
