cimport cython

cdef double INFINITE, LONGEST

@cython.final
cdef class ShortestTasks:
    cdef long long[::1] demand_of, tree, leaves, leaf, first_task, tasks
    cdef readonly long long[::1] number
    cdef double[::1] shortest_below

    cpdef void add(self, long long task, double duration) noexcept nogil
    cpdef void remove(self, long long task) noexcept nogil
    cdef void _set_duration(self, long long task, double duration) noexcept nogil
    cpdef double shortest(self, long long demand) noexcept nogil
    cpdef long long first(self, long long demand, double longest) noexcept nogil
