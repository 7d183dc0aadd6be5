from refold.core.view cimport View

cdef class QueueByDemand:
    cdef object _key
    cdef dict _heaps, _number_of
    cdef set _closed
    cdef list _heads
    cdef long long _added

    cpdef void add_arrivals(self, View view) except *
    cpdef void reopen_if_freed(self, View view) except *
    cpdef void reopen_all(self) except *
    cpdef bint add(self, object job, bint requeued=*) except *
    cpdef object first(self, View view)
    cpdef void close_for(self, object job) except *
    cpdef void remove_first(self, object job) except *
    cdef bint _is_current(self, tuple entry, View view) except *
    cdef void _drop_first(self, object demand) except *
