cimport cython

cdef class Usage:
    cdef readonly dict _amounts

    @cython.locals(until=double, length=double, begin=double)
    cpdef void add_run(self, object account, double gpus, double since, double now) except *

cdef list _merge(object amounts, double now)
