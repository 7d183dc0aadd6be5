cdef class Agenda:
    cdef object _arrivals
    cdef long long _arrived, _added
    cdef list _heap
    cdef set _withdrawn, _wakes

    cpdef object add(self, object at, object event)
    cpdef void withdraw(self, object number) except *
    cpdef void wake(self, object at) except *
    cpdef tuple next(self)
