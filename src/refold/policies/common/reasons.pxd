from refold.core.view cimport View

cdef class Reasons:
    cdef object _placer
    cdef dict _lacks_power, _reported, _shortages
    cdef list _waits

    cpdef void note_resources(self, View view, object job) except *
    cdef void _note_resources_or_power(self, object placer, View view, object job) except *
    cpdef void note_reserved(self, object job) except *
    cpdef void clear(self) except *
    cpdef tuple collect(self, View view, object starts)
    cdef void _note_priority(self, View view, object starts) except *
    cdef bint _is_new(self, object job, object reason) except *
