from refold.core.state cimport State
from refold.core.view cimport View

cdef class Scheduler:
    cdef readonly State _state
    cdef public object _policy
    cdef object _journal, _on_rejection
    cdef readonly View view

    cpdef object step(self, object now, object events, object decide_at=*)
    cdef object _write(self, object entry)
    cdef list _commit(self, object decision, dict holding)
